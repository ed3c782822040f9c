"""`securefl site review`: what a job would have leave this machine."""

from __future__ import annotations

import math
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from securefl_cli.connection import FILE, config_argument, settings_option


@click.command()
@config_argument
@settings_option
@click.option(
    "--data", type=FILE, metavar="SITE.toml", help="This site's file; it is checked, too."
)
@click.option("--name", metavar="NAME", help="This site's name, of data.names; with --data.")
def review(
    config_file: Path | None, settings: tuple[str, ...], data: Path | None, name: str | None
) -> None:
    """Say what a job would have leave this machine, before it takes part.

    Connects to nobody. With --data and --name the site's own samples are read, and held against the
    form that the settings have.

    \b
    Example:
      securefl site review job.toml --data site.toml --name north
    """  # noqa: D301
    from securefl.build.own_data import site_job
    from securefl.build.review import review as reviewed
    from securefl.config.load import load_config

    if (data is None) != (name is None):
        raise click.UsageError("--data and --name go together: give both or none")
    config = load_config(config_file, settings)
    job = site_job(config, name, data)
    found = reviewed(job)
    table = Table("Message", "Values", "Rounds, at most", "The server reads")
    for message in found.outgoing:
        values = f"{message.n_values:,}" if message.n_values else "by the model"
        reads = "totals alone" if message.n_values else "scores alone"
        reads = reads if message.sealed else "this site's values"
        table.add_row(message.name, values, f"{message.n_rounds:,}", reads)
    Console(width=100).print(table)
    click.echo(
        "No sample leaves as it is. What these messages tell of samples, `securefl audit` measures "
        "on a rehearsal."
    )
    shown = "The server learns this site's number of samples from the weight of what it reads."
    click.echo(shown if found.shows_size else "No message shows this site's number of samples.")
    if found.epsilon is None:
        click.echo("No noise is added: no ε bounds what the model tells of a sample.")
    elif math.isinf(found.epsilon):
        click.echo("Noise is added, and bounds nothing: ε is infinite.")
    else:
        click.echo(f"Differential privacy: ε ≤ {found.epsilon:.3g} after {found.rounds} rounds.")
    if name:
        click.echo(f"{name}: {len(job.data[name]):,} samples of the form that the settings have.")

"""`securefl nvflare`: a federation over NVIDIA FLARE, for those who run it already."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.config.load import load_config
from securefl_cli.connection import FILE


@click.group()
def nvflare() -> None:
    """Run a federation over NVIDIA FLARE, which carries its chunks and is trusted with nothing.

    \b
    Example:
      securefl nvflare export job.toml --out jobs/first
      nvflare job submit -j jobs/first
    """  # noqa: D301


@nvflare.command()
@click.argument("config_file", metavar="CONFIG.toml", type=FILE)
@click.option("--out", required=True, type=FILE, metavar="DIR", help="The job's folder: a new one.")
@click.option(
    "--site",
    "sites",
    multiple=True,
    metavar="NAME",
    help="A client's site, as NVIDIA FLARE names it; for each client. Default: data.names.",
)
@click.option(
    "--authority",
    default="authority",
    show_default=True,
    metavar="NAME",
    help="The authority's site, where anything is encrypted.",
)
@click.option(
    "--officer",
    "officers",
    multiple=True,
    metavar="NAME",
    help="The site of an officer beside the authority; for each (exchange.officers).",
)
def export(
    config_file: Path,
    out: Path,
    sites: tuple[str, ...],
    authority: str,
    officers: tuple[str, ...],
) -> None:
    """Write a job for NVIDIA FLARE: who takes part, and the digest of the settings.

    Neither settings, nor code, nor a secret is in it. Each site has its own, and names them in the
    file securefl.toml of its folder `local`; it takes part only in a job whose settings it has.

    \b
    Example:
      securefl nvflare export job.toml --out jobs/first --authority keeper
    """  # noqa: D301
    config = load_config(config_file)
    from securefl_cli.nvflare_export import write_job

    write_job(out, config, sites, authority, officers)
    click.echo(f"Job: {out}. Hand it over with: nvflare job submit -j {out}")

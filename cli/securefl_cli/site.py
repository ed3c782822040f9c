"""`securefl site`: take part in a run, or see first what it would have leave this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from securefl.settings.load import load_config
from securefl_cli.as_json import json_option, say_json
from securefl_cli.connection import (
    FILE,
    OWN_PASSPHRASE_FILE,
    config_argument,
    ended_by_sigterm,
    health_option,
    introduce,
    member_options,
    metrics_option,
    or_environment,
    run_until_done,
    seconds_option,
    server_option,
    settings_option,
    watched_at,
)
from securefl_cli.key_options import PASSPHRASE_FILE
from securefl_cli.log import log_option, say
from securefl_cli.own_data import say_doubts
from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from securefl.build.job import Job
    from securefl.build.review import Outgoing, Review
    from securefl_keys.identity import Identity


@click.command()
@config_argument
@settings_option
@click.option(
    "--data", type=FILE, metavar="SITE.toml", help="This site's file; it is checked, too."
)
@click.option("--name", metavar="NAME", help="This site's name, of data.names; with --data.")
@click.option(
    "--approve",
    is_flag=True,
    help="Approve the job: sign its settings, and what they have leave this machine.",
)
@click.option(
    "--identity", type=FILE, metavar="DIR", help="This site's own folder, which signs; it names it."
)
@PASSPHRASE_FILE
@click.option(
    "--out",
    type=FILE,
    metavar="FILE",
    help="The approval. Default: approved.json beside SITE.toml, else in the folder of the "
    "identity.",
)
@json_option
def review(  # noqa: PLR0913, PLR0917
    config_file: Path | None,
    settings: tuple[str, ...],
    data: Path | None,
    name: str | None,
    approve: bool,
    identity: Path | None,
    passphrase_file: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Say what a job would have leave this machine, before it takes part.

    Connects to nobody. With --data and --name the site's own samples are read, and held against the
    form that the settings have.

    With --approve the site's identity signs the settings' digest, this list and the date. A site
    that requires approval (`securefl site join --require-approval`, or approval = "required" in
    SITE.toml) takes part in exactly what it has approved.

    \b
    Example:
      securefl site review job.toml --data site.toml --name north
      securefl site review job.toml --data site.toml --identity north --approve
    """  # noqa: D301
    if (identity is None) == approve:
        raise click.UsageError("--approve and --identity go together: an identity signs")
    if out and not approve:
        raise click.UsageError("--out is for the approval: give --approve, too")
    config = load_config(config_file, settings)
    from securefl.build.own_data import site_job
    from securefl.build.review import review as reviewed
    from securefl.network.approval import APPROVED

    own = signing_identity(identity, passphrase_file) if identity else None
    if own and name not in {None, own.name}:
        raise click.UsageError(f"--name {name}: the identity is {own.name}'s")
    name = own.name if own and data else name
    if (data is None) != (name is None):
        raise click.UsageError("--data and --name go together: give both or none")
    if data:
        say_doubts(data)
    job = site_job(config, name, data)
    found = reviewed(job)
    n_samples = len(job.data[name]) if name else None
    path = (out or (data.parent if data else identity) / APPROVED) if identity else None
    if own and path:
        write_approval(job, own, path)
    if as_json:
        asked = {"asked": found.asked, "asks_size": found.asks_size, "shows_size": found.shows_size}
        approval = {"site": name, "n_samples": n_samples, "approval": path}
        say_json({**asdict(found), **asked, **approval})
        return
    _print_review(found)
    if name:
        click.echo(f"{name}: {n_samples:,} samples of the form that the settings have.")
    if own:
        click.echo(f"{own.name} approves of this: {path}")


def _print_review(found: Review) -> None:
    """Print what leaves the machine, what the server asks for, and what bounds it."""
    table = Table("Message", "Values", "Rounds, at most", "The server reads")
    for message in found.outgoing:
        values = f"{message.n_values:,}" if message.n_values else "by the model"
        table.add_row(message.name, values, f"{message.n_rounds:,}", _read_of(message))
    Console(width=100).print(table)
    click.echo(
        "No sample leaves as it is. What these messages tell of samples, `securefl audit` measures "
        "on a rehearsal."
    )
    for line in _numbers_told(found):
        click.echo(line)
    if found.epsilon is None:
        click.echo("No noise is added: no ε bounds what the model tells of a sample.")
    elif math.isinf(found.epsilon):
        click.echo("Noise is added, and bounds nothing: ε is infinite.")
    else:
        click.echo(f"Differential privacy: ε ≤ {found.epsilon:.3g} after {found.rounds} rounds.")


def _read_of(message: Outgoing) -> str:
    """Return words on what the server reads of a message."""
    from securefl.federation.message import CARD

    if message.name == CARD:
        return "nothing: a key for who opens totals"
    if message.blind:
        return "nothing: sealed for sites"
    if not message.sealed:
        return "this site's values"
    return "totals alone" if message.n_values else "scores alone"


def _numbers_told(found: Review) -> Iterator[str]:
    """Yield a line for each number of the site that the server reads; its size in any case."""
    for number in found.asked:
        yield f"The server asks this site for {number}, and reads it."
    if found.asks_size:
        return
    if found.shows_size:
        yield "The server learns this site's number of samples from the weight of what it reads."
    else:
        yield "No message shows this site's number of samples."


def signing_identity(directory: Path, passphrase_file: Path | None) -> Identity:
    """Return a site's identity, which may sign now.

    Raises:
        ConfigError: its certificate is not valid at this time.
        KeyFileError: as `load_identity`.
    """
    from securefl.network.approval import require_current
    from securefl_keys.certificate_form import read_pem
    from securefl_keys.identity import load_identity
    from securefl_keys.signed_file import now

    own = load_identity(directory, read_passphrase(passphrase_file, confirm=False))
    require_current(own.name, read_pem(own.certificate_pem), now())
    return own


def write_approval(job: Job, own: Identity, path: Path) -> None:
    """Write a site's signed approval of a job, in the place of an older one.

    Raises:
        ConfigError: the site is none of the settings', or the file cannot be written.
    """
    from securefl.errors import ConfigError
    from securefl.io.files import write_whole
    from securefl.network.approval import Approval
    from securefl_keys.signed_file import now

    if own.name not in job.names:
        raise ConfigError(f"{own.name} is none of the settings' data.names: it approves nothing")
    approval = Approval.of(job, own.name, now()).signed(own.private_key)
    try:
        write_whole(path, approval.text().encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from error


@click.group()
def site() -> None:
    """Take part in the rounds of a server in another process, or look first what that would send.

    \b
    Example:
      securefl site review job.toml --data site.toml --name alice
      securefl site join job.toml --bundle bundles/client --identity alice \\
        --server 127.0.0.1:7443
    """  # noqa: D301


site.add_command(review)


@site.command()
@config_argument
@settings_option
@log_option("site")
@member_options
@OWN_PASSPHRASE_FILE
@click.option(
    "--data",
    type=FILE,
    metavar="SITE.toml",
    help="Where this site's own samples lie, of the form that the settings' [samples] says.",
    **or_environment("DATA"),
)
@click.option(
    "--require-approval",
    is_flag=True,
    help="Take part only if this site has approved exactly this job, with: securefl site review "
    '--approve. The same as approval = "required" in SITE.toml.',
)
@click.option(
    "--approved",
    type=FILE,
    metavar="FILE",
    help="The approval that is required. Default: approved.json beside SITE.toml, else in the "
    "folder of the identity.",
)
@server_option
@seconds_option("--wait", 60.0, 0, "to wait for the server to be there.")
@metrics_option
@health_option
@ended_by_sigterm()
def join(  # noqa: PLR0913, PLR0917
    config_file: Path | None,
    settings: tuple[str, ...],
    bundle: Path,
    identity: Path,
    passphrase_file: Path | None,
    data: Path | None,
    require_approval: bool,
    approved: Path | None,
    server: str,
    wait: float,
    metrics: str | None,
    health: str | None,
) -> None:
    """Train on this site's own data, and send what is sealed and signed.

    Where the settings have a table [samples], the data are those of SITE.toml, which stay here.
    Else they are a part of the data set that the settings name, by the name in the site's
    certificate and data.names. Keys of a new epoch come from the authority by way of the
    server, signed. What it keeps between rounds lies in the folder of its identity, under runs/; a
    site that has stopped goes on with the same command. Once the run is over, its own part of the
    model, where the settings give clients one, stays there under models/.

    \b
    Example:
      securefl site join job.toml --bundle bundles/client --identity alice \\
        --server 127.0.0.1:7443 --data site.toml
    """  # noqa: D301
    config = load_config(config_file, settings)
    from securefl.network.approval import APPROVED
    from securefl.network.client import ClientProcess
    from securefl.network.connect import Address
    from securefl.network.party import client_party
    from securefl_keys.bundle import VerifiedBundle, process_identity

    at = Address.parse(server)
    sound = VerifiedBundle.load(bundle, "client")
    passphrase = read_passphrase(passphrase_file, confirm=False)
    mine = process_identity(identity, passphrase, sound.ca, "client")
    introduce(mine, "client", identity)
    if require_approval and approved is None:
        approved = (data.parent if data else identity) / APPROVED
    party = client_party(config, mine, identity, data, approved)
    if data:
        say_doubts(data)
    process = ClientProcess(mine, party, sound, say)
    with watched_at(metrics, health, process.monitor, "client"):
        run_until_done(process.run(at, wait))

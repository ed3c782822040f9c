"""`securefl authority serve` and `securefl server serve`."""

from datetime import datetime
from pathlib import Path

import click

from securefl.settings.load import load_config
from securefl_cli.connection import (
    AUTHORITY_KEYS,
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
from securefl_cli.log import log_option, say
from securefl_cli.passphrase import read_passphrase


@click.group()
def authority() -> None:
    """Open totals for a server in another process.

    \b
    Example:
      securefl authority serve job.toml --keys my-keys --server 127.0.0.1:7443
    """  # noqa: D301


@authority.command("serve")
@config_argument
@settings_option
@log_option("authority")
@AUTHORITY_KEYS
@OWN_PASSPHRASE_FILE
@server_option
@metrics_option
@health_option
@ended_by_sigterm()
def serve_openings(  # noqa: PLR0913, PLR0917
    config_file: Path | None,
    settings: tuple[str, ...],
    directory: Path,
    passphrase_file: Path | None,
    server: str,
    metrics: str | None,
    health: str | None,
) -> None:
    """Hold the secret keys, call the server, and open for it what the consortium's policy allows.

    Until Ctrl-C: a server that is not there yet, or no longer, is called again. Nobody calls this
    process.

    The settings are the same file that server and clients have. Whatever is opened or refused is
    written to authority/log in the key folder first, and nothing is opened twice, also after a
    restart. One process serves a key folder.
    What `securefl keys rotate` and `revoke` change meanwhile holds from the next round on.

    \b
    Example:
      securefl authority serve job.toml --keys my-keys --server 127.0.0.1:7443
    """  # noqa: D301
    config = load_config(config_file, settings)
    from securefl.network.connect import Address
    from securefl_cli.roles import authority_process
    from securefl_keys import layout
    from securefl_keys.authority_keys import alone
    from securefl_keys.bundle import process_identity
    from securefl_keys.roster import load_roster

    at = Address.parse(server)
    ca = load_roster(directory).ca
    passphrase = read_passphrase(passphrase_file, confirm=False)
    own = directory / layout.AUTHORITY_IDENTITY.parent
    identity = process_identity(own, passphrase, ca, "authority")
    introduce(identity, "authority", own)

    with alone(directory):
        process = authority_process(config, directory, passphrase, say)
        with watched_at(metrics, health, process.monitor, "authority"):
            say(f"Calling the server at {at} for consortium {ca.name}")
            run_until_done(process.run(identity, at))


@click.group()
def officer() -> None:
    """Add up keys for a server in another process, as one of several officers.

    \b
    Example:
      securefl officer serve job.toml --bundle bundles/officer --identity olga \\
        --server 127.0.0.1:7443
    """  # noqa: D301


@officer.command("serve")
@config_argument
@settings_option
@log_option("officer")
@member_options
@OWN_PASSPHRASE_FILE
@server_option
@metrics_option
@health_option
@ended_by_sigterm()
def serve_key_sums(  # noqa: PLR0913, PLR0917
    config_file: Path | None,
    settings: tuple[str, ...],
    bundle: Path,
    identity: Path,
    passphrase_file: Path | None,
    server: str,
    metrics: str | None,
    health: str | None,
) -> None:
    """Hold a card key, call the server, and add up for it what the consortium's policy allows.

    Until Ctrl-C: a server that is not there yet, or no longer, is called again. Nobody calls this
    process. The first officer is the authority: securefl authority serve.

    The settings are the same file that server and clients have. Each request is checked here,
    whatever other officers say. Whatever is answered or refused is written to log in the folder of
    the identity first, and nothing is answered for a second list, also after a restart. Keys of a
    new epoch need a card key of that epoch (securefl keys officers card).

    \b
    Example:
      securefl officer serve job.toml --bundle bundles/officer --identity olga \\
        --server 127.0.0.1:7443
    """  # noqa: D301
    config = load_config(config_file, settings)
    from securefl.network.connect import Address
    from securefl_cli.roles import officer_process
    from securefl_keys.authority_keys import alone
    from securefl_keys.bundle import VerifiedBundle, process_identity

    at = Address.parse(server)
    sound = VerifiedBundle.load(bundle, "officer")
    passphrase = read_passphrase(passphrase_file, confirm=False)
    mine = process_identity(identity, passphrase, sound.ca, "officer")
    introduce(mine, "officer", identity)
    with alone(identity, "officer"):
        process = officer_process(config, identity, sound, passphrase, say)
        with watched_at(metrics, health, process.monitor, "officer"):
            say(f"Calling the server at {at} for consortium {sound.ca.name}")
            run_until_done(process.run(mine, at))


@click.group()
def server() -> None:
    """Run the rounds of clients in other processes.

    \b
    Example:
      securefl server serve job.toml --bundle bundles/server --identity hub
    """  # noqa: D301


@server.command("serve")
@config_argument
@settings_option
@log_option("server")
@member_options
@click.option(
    "--passphrase-file",
    type=FILE,
    metavar="FILE",
    help="Take the passphrase of its own identity from the first line of FILE, else the terminal "
    "asks: the server's environment is to hold no secret.",
    **or_environment("PASSPHRASE_FILE"),
)
@click.option(
    "--listen",
    default="127.0.0.1:7443",
    show_default=True,
    metavar="HOST:PORT",
    help="Where all others call.",
    **or_environment("LISTEN"),
)
@seconds_option(
    "--joining", 120.0, 0, "to wait for authority, officers and clients before the first round."
)
@seconds_option(
    "--timeout",
    60.0,
    0.1,
    "that a client has for its next message; then the round goes on without it.",
)
@seconds_option(
    "--away",
    30.0,
    0,
    "that the authority, or too many of the officers, may be away in the middle of a run.",
)
@click.option(
    "--model",
    metavar="MODULE:FUNCTION",
    help="Code of this installation that the settings' model.name may run here.",
)
@click.option(
    "--data",
    type=FILE,
    metavar="SERVER.toml",
    help="The server's own file, where the settings of sites with their own data have public "
    "samples read: it names these.",
    **or_environment("DATA"),
)
@click.option(
    "--admit",
    "admitted",
    multiple=True,
    metavar="NAME",
    help="A site that joins the run in --out from now on: the settings name it at the end of "
    "data.names. May be given several times.",
)
@click.option("--out", type=FILE, metavar="DIR", help="The run's folder.", **or_environment("OUT"))
@metrics_option
@health_option
@ended_by_sigterm()
def serve_rounds(  # noqa: PLR0913, PLR0917
    config_file: Path | None,
    settings: tuple[str, ...],
    bundle: Path,
    identity: Path,
    passphrase_file: Path | None,
    listen: str,
    joining: float,
    timeout: float,
    away: float,
    model: str | None,
    data: Path | None,
    admitted: tuple[str, ...],
    out: Path | None,
    metrics: str | None,
    health: str | None,
) -> None:
    """Wait for the consortium's clients, and run all rounds of the settings with them.

    Clients and, where anything is encrypted, the authority call this one address.

    Holds no key that opens anything, and no client's data. A client that drops out or is late
    leaves the round, and may join again for the next one. Whatever `securefl run` runs runs here,
    but for simulated devices ([devices]). With several officers (exchange.officers) as many as are
    needed call this address, too. A run that has stopped goes on with the same command and the
    same --out, or with securefl run --resume.

    \b
    Example:
      securefl server serve job.toml --bundle bundles/server --identity hub \\
        --out runs/first
    """  # noqa: D301
    config = load_config(config_file, settings)
    from securefl.runs.session import ServerStart
    from securefl_cli.server_run import run_server

    path = out or Path("runs") / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{config.name}"
    start = ServerStart(
        bundle=bundle.absolute(),
        identity=identity.absolute(),
        listen=listen,
        joining_s=joining,
        timeout_s=timeout,
        away_s=away,
        metrics=metrics,
        health=health,
        data=data.absolute() if data else None,
    )
    run_server(config, start, path, passphrase_file, model, admitted)

"""`securefl authority serve` and `securefl server serve`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.errors import ConfigError
from securefl_cli.connection import (
    FILE,
    config_argument,
    identity_of,
    identity_options,
    roster_option,
    run_until_done,
    say,
    settings_option,
)
from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from securefl.crypto.public import AddingContext


@click.group()
def authority() -> None:
    """Open totals for a server in another process.

    \b
    Example:
      securefl authority serve job.toml --secret authority/secret.key --roster clients/ \\
        --ca ca.pem --cert authority.pem --key authority.key --out authority-log
    """  # noqa: D301


@authority.command("serve")
@config_argument
@settings_option
@identity_options
@roster_option
@click.option("--secret", required=True, type=FILE, metavar="FILE", help="The sealed secret key.")
@click.option(
    "--passphrase-file",
    type=FILE,
    metavar="FILE",
    help="Its first line opens the secret key; else SECUREFL_PASSPHRASE, else the terminal.",
)
@click.option("--listen", default="127.0.0.1:7444", show_default=True, metavar="HOST:PORT")
@click.option("--server-name", default="server", show_default=True, help="Who may ask.")
@click.option("--out", required=True, type=FILE, metavar="DIR", help="The log of openings.")
def serve_authority(  # noqa: PLR0913, PLR0917
    config_file: Path | None,
    settings: tuple[str, ...],
    ca: Path,
    cert: Path,
    key: Path,
    key_passphrase_file: Path | None,
    roster: Path,
    secret: Path,
    passphrase_file: Path | None,
    listen: str,
    server_name: str,
    out: Path,
) -> None:
    """Hold the secret key, and open totals of at least exchange.min_clients until Ctrl-C.

    The settings are the same file that server and clients have. Whatever is opened or refused is
    written to DIR first, and nothing is opened twice, also after a restart with the same DIR.

    \b
    Example:
      securefl authority serve job.toml --secret authority/secret.key --roster clients/ \\
        --ca ca.pem --cert authority.pem --key authority.key --out authority-log
    """  # noqa: D301
    import asyncio

    from securefl.config.load import load_config
    from securefl.exchange.ckks_open import CkksOpener
    from securefl.exchange.releases import MemoryCount
    from securefl.net.authority import AuthorityProcess, Log
    from securefl.net.connect import Address, bound, listening
    from securefl.net.identity import read_roster
    from securefl.roles.authority import Authority
    from securefl.roles.wire import Roster
    from securefl.terms import policy_of
    from securefl_keys.key_files import load_secret
    from securefl_keys.sealed_file import open_secret

    config, at = load_config(config_file, settings), Address.parse(listen)
    identity, clients = identity_of(ca, cert, key, key_passphrase_file), read_roster(roster)
    identity.serving()
    passphrase = read_passphrase(passphrase_file, confirm=False)
    secret_key = load_secret(secret, lambda text: open_secret(text, passphrase))
    log = Log(out)
    policy = policy_of(config, None)
    opener = CkksOpener(secret_key, MemoryCount(), policy.flooding, len(clients))
    role = Authority(opener, Roster(clients), policy, log.note)
    process = AuthorityProcess(role, secret_key.parameters, server_name, log, say)

    async def work() -> None:
        door = await listening(identity, at, None, process.serve, say)
        say(f"Listening on {bound(door)} for {server_name}, key {secret_key.key_id[:16]}")
        await asyncio.Event().wait()

    run_until_done(work())


@click.group()
def server() -> None:
    """Run the rounds of clients in other processes.

    \b
    Example:
      securefl server serve job.toml --parameters server/parameters.json --roster clients/ \\
        --authority 127.0.0.1:7444 --ca ca.pem --cert server.pem --key server.key
    """  # noqa: D301


@server.command("serve")
@config_argument
@settings_option
@identity_options
@roster_option
@click.option(
    "--parameters", type=FILE, metavar="FILE", help="CKKS parameters, where sums are encrypted."
)
@click.option("--listen", default="127.0.0.1:7443", show_default=True, metavar="HOST:PORT")
@click.option("--authority", "opener", metavar="HOST:PORT", help="Where sums are encrypted.")
@click.option("--authority-name", default="authority", show_default=True)
@click.option(
    "--joining",
    default=120.0,
    show_default=True,
    type=click.FloatRange(0, 10**6),
    metavar="S",
    help="Seconds to wait for all clients before the first round.",
)
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0.1, 10**6),
    metavar="S",
    help="Seconds that a client has for its next message; then the round goes on without it.",
)
@click.option("--out", type=FILE, metavar="DIR", help="The run's folder.")
def serve_rounds(  # noqa: PLR0913, PLR0917
    config_file: Path | None,
    settings: tuple[str, ...],
    ca: Path,
    cert: Path,
    key: Path,
    key_passphrase_file: Path | None,
    roster: Path,
    parameters: Path | None,
    listen: str,
    opener: str | None,
    authority_name: str,
    joining: float,
    timeout: float,
    out: Path | None,
) -> None:
    """Wait for the roster's clients, and run all rounds of the settings with them.

    Holds no key that opens anything, and no client's data. A client that drops out or is late
    leaves the round, and may join again for the next one. FedAvg and FedTAN, with all clients in
    each round; a run that stops is begun anew, it does not resume.

    \b
    Example:
      securefl server serve job.toml --parameters server/parameters.json --roster clients/ \\
        --authority 127.0.0.1:7444 --ca ca.pem --cert server.pem --key server.key
    """  # noqa: D301
    from securefl.config.load import load_config
    from securefl.net.connect import Address
    from securefl.net.identity import read_roster
    from securefl.net.party import check_scope, server_party
    from securefl.net.server import Patience, ServerProcess
    from securefl.runfolder import RunFolder

    config, at = load_config(config_file, settings), Address.parse(listen)
    check_scope(config)
    identity, clients = identity_of(ca, cert, key, key_passphrase_file), read_roster(roster)
    identity.serving()
    adding = _adding(parameters)
    if (adding is None) == config.exchange.seals_sums or (opener is None) != (adding is None):
        raise ConfigError(
            f"exchange.encrypt = {[str(part) for part in config.exchange.encrypt]}: encrypted sums "
            "need --parameters and --authority, sums in the clear take neither"
        )
    party = server_party(config, len(clients))
    process = ServerProcess(identity, party, clients, adding, Patience(joining, timeout), say)
    path = out or Path("runs") / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{config.name}"
    folder = RunFolder.create(path, config)
    authority_at = Address.parse(opener, authority_name) if opener else None
    with folder.locked():
        # The clients' tasks are their own: `securefl run --resume` does not go on from here.
        folder.note_session(config, adding.key_id if adding else "", own_task=True)
        run_until_done(process.run(at, authority_at, folder))
    say(f"Run folder: {path}")


def _adding(parameters: Path | None) -> AddingContext | None:
    if parameters is None:
        return None
    from securefl.crypto.public import AddingContext
    from securefl_keys.key_files import load

    return load(parameters, AddingContext.from_json)

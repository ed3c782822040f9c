"""`securefl client join`."""

from __future__ import annotations

from pathlib import Path

import click

from securefl_cli.connection import (
    config_argument,
    member_options,
    run_until_done,
    say,
    seconds_option,
    settings_option,
)
from securefl_cli.key_options import PASSPHRASE_FILE
from securefl_cli.passphrase import read_passphrase


@click.group()
def client() -> None:
    """Take part in the rounds of a server in another process.

    \b
    Example:
      securefl client join job.toml --bundle bundles/client --identity alice \\
        --server 127.0.0.1:7443
    """  # noqa: D301


@client.command()
@config_argument
@settings_option
@member_options
@PASSPHRASE_FILE
@click.option("--server", default="127.0.0.1:7443", show_default=True, metavar="HOST:PORT")
@seconds_option("--wait", 60.0, 0, "to wait for the server to be there.")
def join(  # noqa: PLR0913, PLR0917
    config_file: Path | None,
    settings: tuple[str, ...],
    bundle: Path,
    identity: Path,
    passphrase_file: Path | None,
    server: str,
    wait: float,
) -> None:
    """Train on this client's own data, and send what is sealed and signed.

    Its name is its certificate's: by it, `data.names` says which part of the data is this
    client's. Keys of a new epoch come from the authority by way of the server, signed. What it
    keeps between rounds lies in the folder of its identity, under runs/; a client that has stopped
    goes on with the same command.

    \b
    Example:
      securefl client join job.toml --bundle bundles/client --identity alice \\
        --server 127.0.0.1:7443
    """  # noqa: D301
    from securefl.config.load import load_config
    from securefl.network.client import ClientProcess
    from securefl.network.connect import Address
    from securefl.network.party import client_party
    from securefl_keys.sound_bundle import SoundBundle, process_identity

    config, at = load_config(config_file, settings), Address.parse(server)
    sound = SoundBundle.load(bundle, "client")
    passphrase = read_passphrase(passphrase_file, confirm=False)
    mine = process_identity(identity, passphrase, sound.ca, "client")
    party = client_party(config, mine, identity)
    run_until_done(ClientProcess(mine, party, sound, say).run(at, wait))

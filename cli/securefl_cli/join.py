"""`securefl client join`."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.errors import ConfigError
from securefl_cli.connection import (
    FILE,
    config_argument,
    identity_of,
    identity_options,
    run_until_done,
    say,
    settings_option,
)


@click.group()
def client() -> None:
    """Take part in the rounds of a server in another process.

    \b
    Example:
      securefl client join job.toml --public-key clients/public.key --server 127.0.0.1:7443 \\
        --ca ca.pem --cert client-1.pem --key client-1.key
    """  # noqa: D301


@client.command()
@config_argument
@settings_option
@identity_options
@click.option(
    "--public-key", type=FILE, metavar="FILE", help="What sums are sealed with, where they are."
)
@click.option("--index", type=click.IntRange(1), metavar="I", help="Checks that this is client-I.")
@click.option("--server", default="127.0.0.1:7443", show_default=True, metavar="HOST:PORT")
@click.option("--server-name", default="server", show_default=True, help="Whom to trust there.")
@click.option(
    "--wait",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, 10**6),
    metavar="S",
    help="Seconds to wait for the server to be there.",
)
def join(  # noqa: PLR0913, PLR0917
    config_file: Path | None,
    settings: tuple[str, ...],
    ca: Path,
    cert: Path,
    key: Path,
    key_passphrase_file: Path | None,
    public_key: Path | None,
    index: int | None,
    server: str,
    server_name: str,
    wait: float,
) -> None:
    """Train on this client's own data, and send what is sealed and signed.

    Its name is the common name of its certificate: client-3 takes the third client's part of the
    data that the settings name.

    \b
    Example:
      securefl client join job.toml --public-key clients/public.key --server 127.0.0.1:7443 \\
        --ca ca.pem --cert client-1.pem --key client-1.key
    """  # noqa: D301
    from securefl.config.load import load_config
    from securefl.net.client import ClientProcess
    from securefl.net.connect import Address
    from securefl.net.party import client_party, sealers

    config, at = load_config(config_file, settings), Address.parse(server, server_name)
    identity = identity_of(ca, cert, key, key_passphrase_file)
    name, signing = identity.name, identity.signing_key()
    if index is not None and name != f"client-{index}":
        raise ConfigError(f"--index {index}, and {cert} is of {name}: give client-{index}'s")
    if (public_key is not None) != config.exchange.seals_sums:
        raise ConfigError(
            f"exchange.encrypt = {[str(part) for part in config.exchange.encrypt]}: encrypted sums "
            "need --public-key, sums in the clear take none"
        )
    public = None
    if public_key:
        from securefl.crypto.public import PublicKey
        from securefl_keys.key_files import load

        public = load(public_key, PublicKey.from_json)
    party = client_party(config, name)
    from securefl.roles.client import Client

    role = Client(
        name,
        party.weight,
        sealers(party.common, public),
        party.equal_weight,
        _identity=signing,
    )
    key_id = public.key_id if public else ""
    run_until_done(ClientProcess(identity, party, role, key_id, say).run(at, wait))

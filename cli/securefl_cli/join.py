"""`securefl site join`."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.config.load import load_config
from securefl_cli.connection import (
    FILE,
    OWN_PASSPHRASE_FILE,
    config_argument,
    ended_by_sigterm,
    introduce,
    member_options,
    or_environment,
    run_until_done,
    seconds_option,
    server_option,
    settings_option,
)
from securefl_cli.log import log_option, say
from securefl_cli.passphrase import read_passphrase
from securefl_cli.review import review


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
) -> None:
    """Train on this site's own data, and send what is sealed and signed.

    Where the settings have a table [samples], the data are those of SITE.toml, which stay here.
    Else they are a part of the data set that the settings name, by the name in the site's
    certificate and data.names. Keys of a new epoch come from the authority by way of the
    server, signed. What it keeps between rounds lies in the folder of its identity, under runs/; a
    site that has stopped goes on with the same command.

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
    from securefl_keys.sound_bundle import SoundBundle, process_identity

    at = Address.parse(server)
    sound = SoundBundle.load(bundle, "client")
    passphrase = read_passphrase(passphrase_file, confirm=False)
    mine = process_identity(identity, passphrase, sound.ca, "client")
    introduce(mine, "client", identity)
    if require_approval and approved is None:
        approved = (data.parent if data else identity) / APPROVED
    party = client_party(config, mine, identity, data, approved)
    run_until_done(ClientProcess(mine, party, sound, say).run(at, wait))

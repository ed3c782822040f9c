"""`securefl nvflare`: a federation over NVIDIA FLARE, for those who run it already."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from securefl.errors import ConfigError, RunFolderError
from securefl.io.files import make_folder, write_whole
from securefl.settings.load import load_config
from securefl.settings.tables import Config
from securefl_cli.connection import FILE

SIDES = "securefl_cli.nvflare_job"
"""Module of the two classes that a job names: each site has it installed, and lets it run."""
SERVER = "server"
"""Name of its server in NVIDIA FLARE."""
CALLS_OF_ONE = 4
"""Number of one site's calls that the server answers at once."""
FEWEST_CALLS = 100
SYNC_S = 600
"""Seconds in which all sites begin: they read keys and data first."""
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def write_job(
    out: Path,
    config: Config,
    sites: Sequence[str],
    authority: str,
    officers: Sequence[str] = (),
) -> None:
    """Write a job's folder for NVIDIA FLARE.

    Args:
        out: a new folder.
        config: the settings, of which the job has the digest.
        sites: the clients' sites, as NVIDIA FLARE names them; `data.names` where there are none.
        authority: the authority's site, which is one of the job's where anything is encrypted.
        officers: the sites of the officers beside it, as many as the settings say.

    Raises:
        ConfigError: the settings cannot run there, or a site's name is none.
        RunFolderError: the folder is there already, or cannot be written.
    """
    from securefl.network.settings import check_scope
    from securefl.settings.digests import digests_by_setting, settings_digest

    check_scope(config)
    taking_part = _taking_part(config, sites, authority, officers)
    job = {"settings": settings_digest(config), "by_setting": digests_by_setting(config)}
    n_calls = max(FEWEST_CALLS, CALLS_OF_ONE * len(taking_part))
    calls = {"max_inbound_call_threads": n_calls, "max_outbound_call_threads": n_calls}
    controller = {"server_obj_id": "securefl", "sync_task_timeout": SYNC_S, **calls}
    executor = {"client_obj_id": "securefl", **calls}
    runtime = "nvflare.collab.runtime"
    files = {
        "meta.json": {
            "name": config.name,
            "resource_spec": {},
            "min_clients": len(taking_part),
            "mandatory_clients": taking_part,
            "deploy_map": {"app": [SERVER, *taking_part]},
        },
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [
                _component("controller", f"{runtime}.controller.CollabController", controller)
            ],
            "components": [_component("securefl", f"{SIDES}.ServerSide", job)],
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [
                {
                    "tasks": ["*"],
                    "executor": _component("", f"{runtime}.executor.CollabExecutor", executor),
                }
            ],
            "components": [_component("securefl", f"{SIDES}.SiteSide", job)],
        },
    }
    if out.exists():
        raise RunFolderError(f"{out}: is there already: name a new folder, or remove it")
    try:
        make_folder(out / "app/config")
        for path, content in files.items():
            write_whole(out / path, json.dumps(content, indent=2).encode() + b"\n")
    except OSError as error:
        raise RunFolderError(f"{out}: cannot be written ({error.strerror or error})") from error


def _component(name: str, path: str, args: dict[str, Any]) -> dict[str, Any]:
    return {**({"id": name} if name else {}), "path": path, "args": args}


def _taking_part(
    config: Config, sites: Sequence[str], authority: str, officers: Sequence[str]
) -> list[str]:
    clients = list(sites or config.data.names)
    if not clients:
        raise ConfigError(
            "the settings name no clients: name their sites with --site, or in data.names"
        )
    if config.data.names and len(clients) != len(config.data.names):
        raise ConfigError(
            f"{len(clients)} sites for {len(config.data.names)} clients: data.names has "
            f"{', '.join(config.data.names):.200}; give --site once for each"
        )
    if len(officers) != config.exchange.officers - 1:
        raise ConfigError(
            f"{len(officers)} sites of officers, and exchange.officers = "
            f"{config.exchange.officers} with the authority: give --officer once for each other one"
        )
    opening = [authority, *officers] if config.exchange.seals_anything else []
    names = [*clients, *opening]
    for name in names:
        if not _SITE.fullmatch(name) or name == SERVER or names.count(name) > 1:
            raise ConfigError(
                f"{name!r:.100}: no name of a site of its own: NVIDIA FLARE takes letters, digits, "
                f"'.', '_' and '-', calls its server {SERVER!r}, and each party has another site"
            )
    return names


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

    write_job(out, config, sites, authority, officers)
    click.echo(f"Job: {out}. Hand it over with: nvflare job submit -j {out}")

"""Parties of a federation over NVIDIA FLARE, each from the file that lies at its own site.

The file is securefl.toml in the folder `local` of the site's startup kit, or what the environment
variable SECUREFL_NVFLARE names. Paths count from its folder. Nothing of it comes with a job, and
nothing of it leaves the site.
"""

import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from securefl.errors import ConfigError
from securefl.network.client import ClientProcess
from securefl.network.connect import Destination, Entrance
from securefl.network.party import client_party
from securefl.network.server import Patience, ServerProcess, server_job
from securefl.settings.digests import Digests, differing, digests_by_setting, settings_digest
from securefl.settings.load import load_config, parse_tables, read_tables
from securefl.settings.table import Table
from securefl.settings.tables import Config
from securefl_cli.passphrase import (
    ENVIRONMENT,
    from_environment,
    no_core_dumps,
    read_passphrase_file,
)
from securefl_cli.roles import authority_process, officer_process, rounds_left
from securefl_keys import layout
from securefl_keys.authority_keys import alone
from securefl_keys.bundle import VerifiedBundle, process_identity
from securefl_keys.roster import load_roster

FILE, VARIABLE = "securefl.toml", "SECUREFL_NVFLARE"
Say = Callable[[str], None]
Seconds = Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]


class ClientFile(Table):
    """Fields of a client's site file."""

    settings: Path
    """Settings that this site takes part in, or a folder of such files."""
    bundle: Path
    """Bundle that the consortium has signed for clients."""
    identity: Path
    """Folder of the client's identity."""
    data: Path | None = None
    """Path of its site.toml, where the settings have a table [samples]."""
    passphrase_file: Path | None = None
    """File with the identity's passphrase; without, the environment has it."""
    wait_s: Seconds = 120.0
    """Seconds to wait for the server to be there."""


class AuthorityFile(Table):
    """Fields of the authority's site file."""

    settings: Path
    """Settings: see `ClientFile`."""
    keys: Path
    """Key folder."""
    passphrase_file: Path | None = None
    """File with the keys' passphrase; without, the environment has it."""


class OfficerFile(Table):
    """Fields of the site file of an officer beside the authority."""

    settings: Path
    """Settings: see `ClientFile`."""
    bundle: Path
    """Bundle that the consortium has signed for officers."""
    officer: Path
    """Folder of the officer: identity, card key and log."""
    passphrase_file: Path | None = None
    """File with the passphrase: see `ClientFile`."""


class ServerFile(Table):
    """Fields of the server's site file."""

    settings: Path
    """Settings: see `ClientFile`."""
    bundle: Path
    """Bundle that the consortium has signed for the server."""
    identity: Path
    """Folder of the server's identity."""
    passphrase_file: Path
    """File with the identity's passphrase: the server's environment is to hold no secret."""
    out: Path
    """Folder of the run; a job that has ended goes on in it with the next one."""
    model: str | None = None
    """Code of this installation that the settings' model.name may run here."""
    data: Path | None = None
    """Path of its server.toml with public samples, where sites' data and settings need them."""
    admit: tuple[str, ...] = ()
    """Sites that join the run in `out` from now on."""
    joining_s: Seconds = 120.0
    """Seconds to wait for all clients before the first round."""
    timeout_s: Seconds = 60.0
    """Seconds that a client has for its next message."""


def site_file(local: Path) -> Path:
    """Return the file of the site whose startup kit has this folder; raises ConfigError."""
    path = Path(os.environ.get(VARIABLE, local / FILE))
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file, and it names what this site has: write it, or set {VARIABLE}"
        )
    return path


@contextmanager
def party(path: Path, job: str, by_setting: Digests, say: Say) -> "Iterator[Part]":
    """Yield what a client or who opens sums does in a job, given where the server is called.

    Args:
        path: the site's file.
        job: digest of the job's settings.
        by_setting: short digests of each of them.
        say: takes lines of progress.

    Raises:
        ConfigError: the site has not these settings, or its file does not fit.
        DataError, KeyFileError: its data or its keys cannot be used.
    """
    found, at, of = read_tables(path), path.parent, (job, by_setting)
    if "keys" in found:
        with _authority(parse_tables(AuthorityFile, found, f"{path}: "), at, of, say) as part:
            yield part
    elif "officer" in found:
        with _officer(parse_tables(OfficerFile, found, f"{path}: "), at, of, say) as part:
            yield part
    else:
        yield _client(parse_tables(ClientFile, found, f"{path}: "), at, of, say)


Part = Callable[[Destination], Coroutine[Any, Any, None]]


@contextmanager
def _authority(file: AuthorityFile, at: Path, job: tuple[str, Digests], say: Say) -> Iterator[Part]:
    config, keys = _settings(at / file.settings, *job), at / file.keys
    passphrase = _passphrase(at, file.passphrase_file)
    ca = load_roster(keys).ca
    own = process_identity(keys / layout.AUTHORITY_IDENTITY.parent, passphrase, ca, "authority")
    with alone(keys):
        process = authority_process(config, keys, passphrase, say)
        yield lambda server: process.run(own, server)


@contextmanager
def _officer(file: OfficerFile, at: Path, job: tuple[str, Digests], say: Say) -> Iterator[Part]:
    config, folder = _settings(at / file.settings, *job), at / file.officer
    bundle = VerifiedBundle.load(at / file.bundle, "officer")
    passphrase = _passphrase(at, file.passphrase_file)
    own = process_identity(folder, passphrase, bundle.ca, "officer")
    with alone(folder, "officer"):
        process = officer_process(config, folder, bundle, passphrase, say)
        yield lambda server: process.run(own, server)


def _client(file: ClientFile, at: Path, job: tuple[str, Digests], say: Say) -> Part:
    config = _settings(at / file.settings, *job)
    bundle = VerifiedBundle.load(at / file.bundle, "client")
    passphrase, folder = _passphrase(at, file.passphrase_file), at / file.identity
    own = process_identity(folder, passphrase, bundle.ca, "client")
    part = client_party(config, own, folder, at / file.data if file.data else None)
    process = ClientProcess(own, part, bundle, say)
    return lambda server: process.run(server, file.wait_s)


@contextmanager
def server(
    path: Path, job: str, by_setting: Digests, say: Say
) -> Iterator[Callable[[Entrance], Coroutine[Any, Any, None]] | None]:
    """Yield what the server does in a job, given where it is called; None where no round is left.

    Raises as `party`.
    """
    if from_environment() is not None:
        raise ConfigError(
            f"{ENVIRONMENT} is set, and a server's environment is to hold no secret: unset it, and "
            "start NVIDIA FLARE's server again"
        )
    file, at = parse_tables(ServerFile, read_tables(path), f"{path}: "), path.parent
    config = _settings(at / file.settings, job, by_setting)
    bundle = VerifiedBundle.load(at / file.bundle, "server")
    patience = Patience(file.joining_s, file.timeout_s)
    own = process_identity(
        at / file.identity, _passphrase(at, file.passphrase_file), bundle.ca, "server"
    )
    served = server_job(config, file.model, at / file.data if file.data else None)
    process = ServerProcess(own, bundle, served, patience, say)
    with rounds_left(at / file.out, config, say, file.admit) as folder:
        yield (lambda entrance: process.run(entrance, folder)) if folder else None


def _settings(path: Path, job: str, by_setting: Digests) -> Config:
    """Return this site's settings, which are the job's; raises ConfigError where none are."""
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    configs = [load_config(file) for file in files]
    for config in configs:
        if settings_digest(config) == job:
            return config
    where = [differing(digests_by_setting(config), by_setting) for config in configs]
    raise ConfigError(
        f"{path}: the job has other settings than this site"
        + (f", in {where[0]:.300}" if len(where) == 1 else "")
        + ": a site takes part in settings that it has itself, and has looked at (securefl site "
        "review)"
    )


def _passphrase(at: Path, file: Path | None) -> str:
    """Return the passphrase from the file, else the environment; there is no terminal to ask at."""
    no_core_dumps()
    given = from_environment()
    if file is not None:
        return read_passphrase_file(at / file, "passphrase_file")
    if not given:
        raise ConfigError(
            f"no passphrase: name a passphrase_file in {FILE}, or set {ENVIRONMENT} where NVIDIA "
            "FLARE is started"
        )
    return given

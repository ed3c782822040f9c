"""A key folder is made, and each role loads its part of one. `layout` says what lies where."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Protocol

from securefl.crypto.match_params import LINEAR, MatchParameters
from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.crypto.match_secret import MatchSecretKey
from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.crypto.secret import KeySet, SecretKey
from securefl.errors import KeyFileError
from securefl.exchange.match_open import MatchKeys
from securefl.exchange.policy import Policy
from securefl_keys import layout
from securefl_keys.certificates import ConsortiumAuthority
from securefl_keys.consortium import new_consortium
from securefl_keys.key_files import WAY_OUT, appearing_whole, load, load_secret, write_new
from securefl_keys.policy import DEFAULT
from securefl_keys.releases import FileBudget, ReleasesFile
from securefl_keys.sealed_file import (
    open_match_secret,
    open_secret,
    seal_match_secret,
    seal_secret,
)


@dataclass(frozen=True, slots=True)
class MadeKeys:
    """The public halves of the two pairs in a new folder, and its consortium if it has one."""

    sums: PublicKey
    match: MatchPublicKey
    consortium: ConsortiumAuthority | None = None


def init_folder(
    directory: Path,
    passphrase: str,
    sums: CkksParameters = SUMS,
    match: MatchParameters = LINEAR,
    consortium: str | None = None,
    policy: Policy = DEFAULT,
) -> MadeKeys:
    """Make two CKKS key pairs, for sums and for profile matches, and the folder that holds them.

    With the name of a `consortium`, its certificate authority too, which signs the `policy`. The
    folder appears whole or not at all.

    Raises:
        ConfigError: the passphrase is empty, or the policy is looser than any may be.
        KeyFileError: `directory` exists or cannot be written, or `consortium` is no name.
    """
    if lexists(directory):
        raise KeyFileError(
            f"{directory} exists: keys are never overwritten; name another folder, or move it away"
        )
    key, match_key = SecretKey.generate(sums), MatchSecretKey.generate(match)
    new = None if consortium is None else new_consortium(consortium, passphrase, policy)
    made = MadeKeys(key.public_key, match_key.public_key(), new.ca if new else None)
    secret = {
        layout.AUTHORITY_KEY: seal_secret(key, passphrase),
        layout.MATCH_KEY: seal_match_secret(match_key, passphrase),
        layout.MATCH_RELEASES: ReleasesFile.stating(match_key.key_id, 0),
    }
    adding = key.adding_context().to_json()
    public = {
        layout.AUTHORITY_PARAMETERS: adding,
        layout.SERVER_PARAMETERS: adding,
        layout.CLIENT_KEY: made.sums.to_json(),
        layout.MATCH_PARAMETERS: match_key.scoring_context().to_json(),
        layout.MATCH_PUBLIC_KEY: made.match.to_json(),
    }
    if new:
        secret |= new.secret
        public |= new.public
    try:
        with appearing_whole(directory) as building:
            (building / "authority").mkdir(mode=0o700)
            for path, text in secret.items():
                write_new(building / path, text, mode=0o600)
            for path, text in public.items():
                (building / path).parent.mkdir(exist_ok=True)
                write_new(building / path, text, mode=0o644)
    except OSError as error:
        raise KeyFileError(
            f"{directory}: cannot make the key folder: {error.strerror or error}; "
            "nothing of it was left: name a folder on a disk that you can write"
        ) from error
    return made


def load_client(directory: Path) -> PublicKey:
    """What a client holds; raises KeyFileError."""
    return load(directory / layout.CLIENT_KEY, PublicKey.from_json)


def load_server(directory: Path) -> AddingContext:
    """What the server holds; raises KeyFileError."""
    return load(directory / layout.SERVER_PARAMETERS, AddingContext.from_json)


def load_authority(directory: Path, passphrase: str) -> SecretKey:
    """What the authority holds.

    Raises:
        WrongPassphrase: another passphrase, or the file was changed.
        KeyFileError: missing, damaged, or readable by other users.
    """
    path = directory / layout.AUTHORITY_KEY
    return load_secret(path, lambda text: open_secret(text, passphrase))


def load_all(directory: Path, passphrase: str) -> KeySet:
    """What the three roles hold for sums, checked to be of one pair.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: a file is missing or damaged, or is not of the authority's key.
    """
    public, adding = load_client(directory), load_server(directory)
    secret = load_authority(directory, passphrase)
    _require_same(directory / layout.CLIENT_KEY, public, secret.public_key)
    _require_same(directory / layout.SERVER_PARAMETERS, adding, secret.adding_context())
    return KeySet(secret, public, adding)


def load_match(directory: Path, passphrase: str) -> MatchKeys:
    """What the three roles hold for profile matches, checked to be of one pair.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: the folder has no match key, a file is missing or damaged, or is not of the
            authority's key.
    """
    if not any(lexists(directory / path) for path in layout.MATCH_FILES):
        raise KeyFileError(
            f"{directory}: has no match key, as folders of older versions have none: make new "
            "keys with: securefl keys init"
        )
    public_path = directory / layout.MATCH_PUBLIC_KEY
    scoring_path = directory / layout.MATCH_PARAMETERS
    public = load(public_path, MatchPublicKey.from_json)
    scoring = load(scoring_path, ScoringContext.from_json)
    secret = load_secret(
        directory / layout.MATCH_KEY, lambda text: open_match_secret(text, passphrase)
    )
    _require_same(public_path, public, secret.public_key())
    _require_same(scoring_path, scoring, secret.scoring_context())
    budget = FileBudget(directory / layout.MATCH_RELEASES, secret.key_id)
    return MatchKeys(secret, public, scoring, budget)


class _Public(Protocol):
    @property
    def key_id(self) -> str: ...

    def to_json(self) -> str: ...


def _require_same(path: Path, found: _Public, ours: _Public) -> None:
    if found.key_id != ours.key_id:
        raise KeyFileError(
            f"{path}: of key {found.key_id[:16]}…, but the authority holds "
            f"{ours.key_id[:16]}…; {WAY_OUT}"
        )
    if found.to_json() != ours.to_json():
        raise KeyFileError(f"{path}: changed since the keys were made; {WAY_OUT}")

"""Each role loads its part of a key folder."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn, Protocol

from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.crypto.public import AddingContext, PublicKey
from securefl.crypto.secret import SecretKey
from securefl.errors import KeyFileError, KeyWornOut
from securefl.exchange.keyset import KeySet
from securefl.exchange.match_open import MatchKeys
from securefl_keys import layout
from securefl_keys.key_files import WAY_OUT, load, load_secret
from securefl_keys.releases import FileCount
from securefl_keys.sealed_file import open_match_secret, open_secret


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
    """What the three roles hold for sums, checked to be of one pair, and the consortium's policy.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: a file is missing or damaged, or is not of the authority's key.
    """
    public, adding = load_client(directory), load_server(directory)
    secret = load_authority(directory, passphrase)
    _require_same(directory / layout.CLIENT_KEY, public, secret.public_key)
    _require_same(directory / layout.SERVER_PARAMETERS, adding, secret.adding_context())
    count = FileCount(directory / layout.releases_of(secret.key_id), "sums", secret.key_id)

    return KeySet(secret, public, adding, count, _worn_out)


def load_match(directory: Path, passphrase: str) -> MatchKeys:
    """What the three roles hold for profile matches, checked to be of one pair.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: a file is missing or damaged, or is not of the authority's key.
    """
    public_path = directory / layout.MATCH_PUBLIC_KEY
    scoring_path = directory / layout.MATCH_PARAMETERS
    public = load(public_path, MatchPublicKey.from_json)
    scoring = load(scoring_path, ScoringContext.from_json)
    secret = load_secret(
        directory / layout.MATCH_KEY, lambda text: open_match_secret(text, passphrase)
    )
    _require_same(public_path, public, secret.public_key())
    _require_same(scoring_path, scoring, secret.scoring_context())
    count = FileCount(directory / layout.releases_of(secret.key_id), "matches", secret.key_id)

    return MatchKeys(secret, public, scoring, count, _worn_out)


def _worn_out() -> NoReturn:
    raise KeyWornOut("the key has released as much as it may: make new ones: securefl keys init")


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

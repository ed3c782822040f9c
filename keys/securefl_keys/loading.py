"""Each role loads its part of a key folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from securefl.crypto.artefact import Purpose
from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.crypto.params import CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.crypto.secret import SecretKey
from securefl.errors import KeyFileError
from securefl.exchange.keyset import KeySet
from securefl.exchange.match_open import MatchKeys
from securefl.exchange.policy import Policy
from securefl_keys import layout
from securefl_keys.epochs import require_one_epoch
from securefl_keys.journal import finish_rotation
from securefl_keys.key_files import WAY_OUT, load, load_secret
from securefl_keys.policy import load_policy
from securefl_keys.reading import text_of
from securefl_keys.releases import FileCount
from securefl_keys.rotation import rotate
from securefl_keys.sealed_keys import SealedKey, SealedMatchKey, open_match_secret, open_secret
from securefl_keys.signed_file import now


def load_client(directory: Path) -> PublicKey:
    """What a client holds; raises KeyFileError."""
    return load(directory / layout.CLIENT_KEY, PublicKey.from_json)


def load_server(directory: Path) -> AddingContext:
    """What the server holds; raises KeyFileError."""
    return load(directory / layout.SERVER_PARAMETERS, AddingContext.from_json)


def load_parameters(directory: Path) -> CkksParameters:
    """Of sums, in a key folder or any role's bundle; raises KeyFileError."""
    for path in (layout.SERVER_PARAMETERS, layout.AUTHORITY_PARAMETERS):
        if (directory / path).exists():
            return load(directory / path, AddingContext.from_json).parameters
    return load_client(directory).parameters


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
    finish_rotation(directory)
    public, adding = load_client(directory), load_server(directory)
    secret = load_authority(directory, passphrase)
    _require_same(directory / layout.CLIENT_KEY, public, secret.public_key)
    _require_same(directory / layout.SERVER_PARAMETERS, adding, secret.adding_context())
    count, policy = _in_force(directory, "sums", secret.key_id)

    def successor() -> KeySet:
        _rotate_unless_done(directory, passphrase, layout.AUTHORITY_KEY, secret.key_id)
        return load_all(directory, passphrase)

    return KeySet(secret, public, adding, count, successor, policy)


def _in_force(directory: Path, purpose: Purpose, key_id: str) -> tuple[FileCount, Policy | None]:
    """What a key has released, and the consortium's policy where there is one."""
    if (directory / layout.ROSTER).exists():
        require_one_epoch(directory, now())
    signed = (directory / layout.POLICY).exists()
    policy = load_policy(directory).policy() if signed else None
    return FileCount(directory / layout.releases_of(key_id), purpose, key_id), policy


def _rotate_unless_done(directory: Path, passphrase: str, path: Path, worn: str) -> None:
    """Another process that uses the same keys may have been first."""
    text = text_of(directory / path)
    if (SealedKey if path == layout.AUTHORITY_KEY else SealedMatchKey).parse(text).key_id == worn:
        rotate(directory, passphrase)


def load_match(directory: Path, passphrase: str) -> MatchKeys:
    """What the three roles hold for profile matches, checked to be of one pair.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: a file is missing or damaged, or is not of the authority's key.
    """
    finish_rotation(directory)
    public_path = directory / layout.MATCH_PUBLIC_KEY
    scoring_path = directory / layout.MATCH_PARAMETERS
    public = load(public_path, MatchPublicKey.from_json)
    scoring = load(scoring_path, ScoringContext.from_json)
    secret = load_secret(
        directory / layout.MATCH_KEY, lambda text: open_match_secret(text, passphrase)
    )
    _require_same(public_path, public, secret.public_key())
    _require_same(scoring_path, scoring, secret.scoring_context())
    count, policy = _in_force(directory, "matches", secret.key_id)

    def successor() -> MatchKeys:
        _rotate_unless_done(directory, passphrase, layout.MATCH_KEY, secret.key_id)
        return load_match(directory, passphrase)

    return MatchKeys(secret, public, scoring, count, successor, policy)


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

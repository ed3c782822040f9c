"""Each role loads its part of a key folder."""

from __future__ import annotations

from pathlib import Path

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.cards import CardKey
from securefl.errors import KeyFileError
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.keyset import KeySet
from securefl.exchange.policy import Policy
from securefl_keys import layout
from securefl_keys.bundle import CARDS
from securefl_keys.epochs import require_one_epoch
from securefl_keys.journal import finish_rotation
from securefl_keys.key_files import WAY_OUT, load, load_secret
from securefl_keys.older import require_not_older
from securefl_keys.policy import load_policy
from securefl_keys.sealed_keys import open_secret
from securefl_keys.signed_file import now


def load_client(directory: Path) -> CardKeys:
    """What a client holds; raises KeyFileError."""
    return CardKeys((_card_key(directory, layout.CLIENT_KEY),))


def load_server(directory: Path) -> CardKeys:
    """What the server holds; raises KeyFileError."""
    return CardKeys((_card_key(directory, layout.SERVER_KEY),))


def load_authority(directory: Path, passphrase: str) -> CardSecret:
    """What the authority holds.

    Raises:
        WrongPassphrase: another passphrase, or the file was changed.
        KeyFileError: missing, damaged, or readable by other users.
    """
    path = directory / layout.AUTHORITY_KEY
    return load_secret(path, lambda text: open_secret(text, passphrase))


def load_all(directory: Path, passphrase: str) -> KeySet:
    """The key of cards, checked against each role's file, and the consortium's policy.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: a file is missing or damaged, or is not of the authority's key.
    """
    finish_rotation(directory)
    public = {path: _card_key(directory, path) for path in CARDS.values()}
    secret = load_authority(directory, passphrase)
    for path, key in public.items():
        _require_same(directory / path, key, secret.public)
    return KeySet((secret,), policy=_policy_in_force(directory))


def _card_key(directory: Path, path: Path) -> CardKey:
    require_not_older(directory, path)
    return load(directory / path, CardKey.from_json)


def _policy_in_force(directory: Path) -> Policy | None:
    """The consortium's policy, where there is one; raises KeyFileError for files of two epochs."""
    if (directory / layout.ROSTER).exists():
        require_one_epoch(directory, now())
    signed = (directory / layout.POLICY).exists()
    return load_policy(directory).policy() if signed else None


def _require_same(path: Path, found: CardKey, ours: CardKey) -> None:
    if found.key_id != ours.key_id:
        raise KeyFileError(
            f"{path}: of key {found.key_id[:16]}…, but the authority holds "
            f"{ours.key_id[:16]}…; {WAY_OUT}"
        )
    if found.to_json() != ours.to_json():
        raise KeyFileError(f"{path}: changed since the keys were made; {WAY_OUT}")

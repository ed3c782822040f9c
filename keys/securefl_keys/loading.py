"""Loading of a key folder: each role reads its own part."""

from dataclasses import dataclass, field
from pathlib import Path

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.cards import CardKey
from securefl.errors import KeyFileError
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.officer import KeySet
from securefl.exchange.policy import Policy
from securefl.io.uncopyable import Held
from securefl_keys import layout
from securefl_keys.bundle import CARDS
from securefl_keys.key_files import WAY_OUT, load_secret
from securefl_keys.policy import load_policy
from securefl_keys.roster import card_key_in, card_keys_in
from securefl_keys.sealed_keys import open_secret
from securefl_keys.signed_file import now
from securefl_keys.signer import finish_rotation, require_one_epoch


def load_client(directory: Path) -> CardKeys:
    """Load the card keys that a client holds; raises KeyFileError."""
    return card_keys_in(directory, layout.CLIENT_KEY)


def load_server(directory: Path) -> CardKeys:
    """Load the card keys that the server holds; raises KeyFileError."""
    return card_keys_in(directory, layout.SERVER_KEY)


def load_authority(directory: Path, passphrase: str) -> CardSecret:
    """Load the secret key that the authority holds.

    Raises:
        WrongPassphrase: another passphrase, or the file was changed.
        KeyFileError: missing, damaged, or readable by other users.
    """
    path = directory / layout.AUTHORITY_KEY
    return load_secret(path, lambda text: open_secret(text, passphrase))


@dataclass(frozen=True, slots=True)
class AuthorityKeys(Held):
    """Keys and policy that the authority's process goes by."""

    secret: CardSecret = field(repr=False)
    """Secret card key of the authority: of the first officer, or of the only one."""
    public: CardKeys
    """Card keys of all officers."""
    policy: Policy | None
    """Policy of the consortium; None where there is none."""


def load_all(directory: Path, passphrase: str) -> KeySet:
    """Load the key of cards, checked against each role's file, and the consortium's policy.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: a file is missing or damaged, or is not of the authority's key; or there are
            officers, of whom each keeps a secret of its own.
    """
    held = load_authority_keys(directory, passphrase)
    if held.public.quorum.officers > 1:
        raise KeyFileError(
            f"{directory / layout.OFFICERS}: {held.public.quorum.needed} of "
            f"{held.public.quorum.officers} officers open sums, each in a process of its own, and "
            "no simulation has their secrets: leave --keys out, or go back to one authority with: "
            "securefl keys officers set DIR"
        )
    return KeySet((held.secret,), policy=held.policy)


def load_authority_keys(directory: Path, passphrase: str) -> AuthorityKeys:
    """Load the authority's keys, checked against each role's file and the consortium's.

    Raises:
        WrongPassphrase: another passphrase, or the secret key's file was changed.
        KeyFileError: a file is missing or damaged, or is not of the authority's key.
    """
    finish_rotation(directory)
    public = {path: card_key_in(directory, path) for path in CARDS.values()}
    secret = load_authority(directory, passphrase)
    for path, key in public.items():
        _require_same(directory / path, key, secret.public)
    policy = _policy_in_force(directory)
    return AuthorityKeys(secret, card_keys_in(directory, layout.AUTHORITY_PUBLIC_KEY), policy)


def _policy_in_force(directory: Path) -> Policy | None:
    """Return the consortium's policy, where there is one; raises KeyFileError for two epochs."""
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

"""A key folder is made. `layout` says what lies where, `loading` reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import lexists
from pathlib import Path

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.cards import CardKey
from securefl.errors import KeyFileError
from securefl.exchange.policy import Policy
from securefl_keys import layout
from securefl_keys.certificates import ConsortiumAuthority
from securefl_keys.consortium import new_consortium
from securefl_keys.key_files import appearing_whole, write_new
from securefl_keys.policy import DEFAULT
from securefl_keys.sealed_keys import seal_secret


@dataclass(frozen=True, slots=True)
class MadeKeys:
    """The public half of the pair in a new folder, and its consortium if it has one."""

    card: CardKey
    consortium: ConsortiumAuthority | None = None


@dataclass(frozen=True, slots=True)
class NewPair:
    """The texts of a new key pair."""

    card: CardKey
    secret: dict[Path, str] = field(repr=False)
    """Sealed, but still for the authority alone."""
    public: dict[Path, str] = field(repr=False)


def new_pair(passphrase: str, epoch: int = 1) -> NewPair:
    """A fresh key pair of that epoch; raises ConfigError where the passphrase is empty."""
    key = CardSecret.generate(epoch)
    card = key.public.to_json()
    secret = {layout.AUTHORITY_KEY: seal_secret(key, passphrase)}
    public = {
        layout.AUTHORITY_PUBLIC_KEY: card,
        layout.SERVER_KEY: card,
        layout.CLIENT_KEY: card,
    }
    return NewPair(key.public, secret, public)


def write_all(directory: Path, secret: dict[Path, str], public: dict[Path, str]) -> None:
    """New files in a new folder, secrets closed to other users; raises OSError."""
    closed = directory / layout.AUTHORITY
    closed.mkdir(parents=True)
    closed.chmod(0o700)
    for path, text in secret.items():
        write_new(directory / path, text, mode=0o600)
    for path, text in public.items():
        (directory / path).parent.mkdir(exist_ok=True)
        write_new(directory / path, text, mode=0o644)


def init_folder(
    directory: Path,
    passphrase: str,
    consortium: str | None = None,
    policy: Policy = DEFAULT,
) -> MadeKeys:
    """Make a key pair for clients' cards, and the folder that holds it.

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
    new = None if consortium is None else new_consortium(consortium, passphrase, policy)
    made = new_pair(passphrase)
    secret, public = dict(made.secret), dict(made.public)
    if new:
        secret |= new.secret
        public |= new.public
    try:
        with appearing_whole(directory) as building:
            write_all(building, secret, public)
    except OSError as error:
        raise KeyFileError(
            f"{directory}: cannot make the key folder: {error.strerror or error}; "
            "nothing of it was left: name a folder on a disk that you can write"
        ) from error
    return MadeKeys(made.card, new.ca if new else None)

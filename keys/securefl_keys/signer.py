"""The opened certificate authority of a key folder: what signs for the consortium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from filelock import FileLock, Timeout

from securefl.errors import KeyFileError
from securefl.held import Held
from securefl_keys import layout
from securefl_keys.certificates import ConsortiumAuthority
from securefl_keys.epochs import require_one_epoch
from securefl_keys.key_files import load_secret, lock_of
from securefl_keys.roster import VerifiedRoster, load_roster
from securefl_keys.sealed_identity import open_ca_key

LOCK_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Signer(Held):
    """The certificate authority's key, and the roster that it has signed last."""

    roster: VerifiedRoster
    key: Ed25519PrivateKey = field(repr=False)

    @property
    def ca(self) -> ConsortiumAuthority:
        """Its certificate."""
        return self.roster.ca


def open_signer(directory: Path, passphrase: str, at: datetime) -> Signer:
    """What signs for the consortium.

    Raises:
        WrongPassphrase: another passphrase, or the key's file was changed.
        KeyFileError: no consortium, or a file is missing, damaged, or open to others.
    """
    path = directory / layout.CA_KEY
    if not path.exists():
        raise KeyFileError(
            f"{path}: missing: only the folder in which the keys were made has it; make one with: "
            "securefl keys init DIR --consortium NAME"
        )
    require_one_epoch(directory, at)
    roster = load_roster(directory, at=at)
    key = load_secret(path, lambda text: open_ca_key(text, passphrase))
    if key.public_key() != roster.ca.public_key:
        raise KeyFileError(f"{path}: not the key of {directory / layout.CA_CERTIFICATE}")
    return Signer(roster, key)


@contextmanager
def changing(directory: Path) -> Iterator[None]:
    """For one process at a time; raises KeyFileError where nothing can be changed."""
    if not (directory / layout.ROSTER).is_file():
        raise KeyFileError(
            f"{directory}: has no consortium: make one with: securefl keys init DIR --consortium "
            "NAME"
        )
    try:
        with FileLock(lock_of(directory / layout.ROSTER), timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise KeyFileError(f"{directory}: another process is changing the consortium") from None
    except OSError as error:
        raise KeyFileError(
            f"{directory}: the consortium cannot be changed: {error.strerror or error}"
        ) from error

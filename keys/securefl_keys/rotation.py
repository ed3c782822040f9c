"""The next epoch: new CKKS keys in the place of the old, whose secrets are destroyed.

All files change together. The new ones are written to a folder `.next`, which appears whole; from
then on the rotation has happened, and whoever comes next finishes what a crash has left undone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from securefl.errors import KeyFileError
from securefl_keys import layout
from securefl_keys.folder import NewPairs, new_pairs, write_all
from securefl_keys.key_files import appearing_whole, load_secret
from securefl_keys.membership import without
from securefl_keys.policy import load_policy
from securefl_keys.releases import lock_of
from securefl_keys.sealed_keys import SealedMatchKey, open_secret
from securefl_keys.signed_file import now
from securefl_keys.signer import changing, open_signer

LOCK_TIMEOUT_S = 60
_NEXT = Path(".next")


def rotate(
    directory: Path, passphrase: str, revoking: str | None = None, at: datetime | None = None
) -> NewPairs:
    """New key pairs of the same parameters; roster and policy are signed for the new epoch.

    Args:
        directory: the key folder, where the keys were made.
        passphrase: of its secrets.
        revoking: a member who is taken out of the roster in the same step.
        at: when; now where None.

    Raises:
        WrongPassphrase: of the secrets.
        UnknownClient, CertificateRevoked: nobody of the name `revoking`, or revoked before.
        KeyFileError: a file is missing or damaged, or the folder cannot be written.
    """
    at = at or now()
    with _locked(directory):
        _finish(directory)
        old = load_secret(
            directory / layout.AUTHORITY_KEY, lambda text: open_secret(text, passphrase)
        )
        match = load_secret(directory / layout.MATCH_KEY, SealedMatchKey.parse).parameters
        epoch = old.origin.epoch + 1
        made = new_pairs(passphrase, old.parameters, match, epoch)
        public = dict(made.public)
        if (directory / layout.ROSTER).exists():
            public |= _signed_anew(directory, passphrase, epoch, at, revoking)
        elif revoking is not None:
            raise KeyFileError(f"{directory}: has no consortium, so nobody can be revoked")
        try:
            with appearing_whole(directory / _NEXT) as building:
                write_all(building, made.secret, public)
        except OSError as error:
            raise KeyFileError(
                f"{directory}: cannot be written ({error.strerror or error}): the old keys are "
                "still in force"
            ) from error
        _finish(directory)
    return made


def finish_rotation(directory: Path) -> None:
    """Put in place what a rotation that was cut off has left ready; raises KeyFileError."""
    if pending(directory):
        with _locked(directory):
            _finish(directory)


@contextmanager
def settled(directory: Path) -> Iterator[None]:
    """All files are of one epoch, and nobody changes one meanwhile; raises KeyFileError."""
    with _locked(directory):
        _finish(directory)
        yield


def pending(directory: Path) -> bool:
    """Whether a rotation is under way, or was cut off."""
    return (directory / _NEXT).is_dir() or any(_unfinished(directory))


def _unfinished(directory: Path) -> Iterator[Path]:
    """What a process that was killed while it wrote has left: it was never in force."""
    return directory.glob(f".{_NEXT}.*")


def _finish(directory: Path) -> None:
    ready = directory / _NEXT
    try:
        for left in _unfinished(directory):
            shutil.rmtree(left)
        if not ready.is_dir():
            return
        for path in sorted(ready.rglob("*")):
            if path.is_file():
                path.replace(directory / path.relative_to(ready))
        shutil.rmtree(ready)
    except OSError as error:
        raise KeyFileError(
            f"{directory}: new keys are ready in {_NEXT} and cannot be put in place "
            f"({error.strerror or error}): free the folder, and run the command again"
        ) from error


def _signed_anew(
    directory: Path, passphrase: str, epoch: int, at: datetime, revoking: str | None
) -> dict[Path, str]:
    signer = open_signer(directory, passphrase, at)
    changes: dict[str, Any] = {}
    if revoking is not None:
        certificates, revoked = without(signer.roster, revoking, at)
        changes = {"certificates": certificates, "revoked": revoked}
    roster, policy = signer.roster.file, load_policy(directory, at)
    by = signer.ca, signer.key, at
    return {
        layout.ROSTER: roster.signed_anew(*by, epoch=epoch, version=roster.version + 1, **changes),
        layout.POLICY: policy.signed_anew(*by, epoch=epoch),
    }


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    path = directory / layout.AUTHORITY_KEY
    if not path.parent.is_dir():
        raise KeyFileError(f"{path}: missing: only the folder in which the keys were made has it")
    with ExitStack() as locks:
        try:
            locks.enter_context(FileLock(lock_of(path), timeout=LOCK_TIMEOUT_S))
        except Timeout:
            raise KeyFileError(f"{directory}: another process is rotating its keys") from None
        except OSError as error:
            raise KeyFileError(
                f"{directory}: cannot be locked ({error.strerror or error})"
            ) from error
        if (directory / layout.ROSTER).exists():
            locks.enter_context(changing(directory))
        yield

"""The next epoch: new keys in the place of the old, whose secrets are destroyed.

All files change together: see `journal`.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from securefl.errors import KeyFileError
from securefl_keys import layout
from securefl_keys.folder import NewPair, new_pair, write_all
from securefl_keys.journal import NEXT, finish_locked, locked
from securefl_keys.key_files import appearing_whole, load_secret
from securefl_keys.membership import without
from securefl_keys.policy import load_policy
from securefl_keys.sealed_keys import open_secret
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer


def rotate(
    directory: Path, passphrase: str, revoking: str | None = None, at: datetime | None = None
) -> NewPair:
    """A new key pair; roster and policy signed for the new epoch.

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
    with locked(directory):
        finish_locked(directory)
        old = load_secret(
            directory / layout.AUTHORITY_KEY, lambda text: open_secret(text, passphrase)
        )
        epoch = old.origin.epoch + 1
        made = new_pair(passphrase, epoch)
        public = dict(made.public)
        if (directory / layout.ROSTER).exists():
            public |= _signed_anew(directory, passphrase, epoch, at, revoking)
        elif revoking is not None:
            raise KeyFileError(f"{directory}: has no consortium, so nobody can be revoked")
        try:
            with appearing_whole(directory / NEXT) as building:
                write_all(building, made.secret, public)
        except OSError as error:
            raise KeyFileError(
                f"{directory}: cannot be written ({error.strerror or error}): the old keys are "
                "still in force"
            ) from error
        finish_locked(directory)
        _delete_unused(directory)
    return made


def _delete_unused(directory: Path) -> None:
    """Delete the files that older releases had for profile matches, a secret key among them."""
    with suppress(OSError):  # `keys show` tells of what is left
        for path in (layout.MATCH_KEY, layout.MATCH_PARAMETERS, layout.MATCH_PUBLIC_KEY):
            (directory / path).unlink(missing_ok=True)
        if (directory / layout.RELEASES).is_dir():
            shutil.rmtree(directory / layout.RELEASES)


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

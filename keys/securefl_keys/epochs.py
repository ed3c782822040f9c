"""The files of one folder are of one epoch, or one of them is older than it should be."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from securefl.errors import KeyFileError
from securefl_keys import layout
from securefl_keys.key_files import load_secret
from securefl_keys.policy import load_policy
from securefl_keys.roster import load_roster
from securefl_keys.sealed_keys import SealedKey


def require_one_epoch(directory: Path, at: datetime) -> None:
    """Raises KeyFileError where the consortium's files are not of the keys' epoch.

    Each would be genuine: a roster from before a revocation lists who was revoked.
    """
    key = load_secret(directory / layout.AUTHORITY_KEY, SealedKey.parse)
    epochs = {
        layout.AUTHORITY_KEY: key.epoch,
        layout.ROSTER: load_roster(directory, at=at).file.epoch,
        layout.POLICY: load_policy(directory, at).epoch,
    }
    newest = max(epochs.values())
    for path, epoch in epochs.items():
        if epoch != newest:
            raise KeyFileError(
                f"{directory / path}: of epoch {epoch}, and others are of {newest}: put the newest "
                "back (roster and policy are in the newest bundle)"
            )

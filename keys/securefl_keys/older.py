"""Key folders of older releases, told by files whose names have changed since."""

from __future__ import annotations

from pathlib import Path

from securefl.crypto.artefact import require_version
from securefl.crypto.cards import CARD_KEY_FORMAT, REPLACED
from securefl_keys import layout
from securefl_keys.key_files import load


def require_not_older(directory: Path, path: Path) -> None:
    """Raises KeyFileError, with the way out, where the folder has an older file in place of it."""
    older = layout.REPLACED.get(path)
    if older is None or (directory / path).exists() or not (directory / older).exists():
        return
    load(directory / older, lambda text: require_version(text, CARD_KEY_FORMAT, replaced=REPLACED))

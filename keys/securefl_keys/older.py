"""Key folders of older releases, told by files whose names have changed since."""

from __future__ import annotations

from pathlib import Path

from securefl.crypto.artefact import require_version
from securefl.crypto.cards import CARD_KEY_FORMAT, REPLACED
from securefl_keys import layout
from securefl_keys.reading import found_in, text_of


def require_not_older(directory: Path, path: Path) -> None:
    """Raises KeyFileError, with the way out, where the folder has an older file in place of it."""
    older = layout.REPLACED.get(path)
    if older is None or (directory / path).exists() or not (directory / older).exists():
        return
    text = text_of(directory / older)
    with found_in(directory / older):
        require_version(text, CARD_KEY_FORMAT, replaced=REPLACED)

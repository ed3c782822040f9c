"""Names that come from outside: shown without a terminal obeying them, and fit to name a folder."""

from __future__ import annotations

MAX_FOLDER_BYTES = 200  # file systems take 255, and words are put before and after


def printable(text: str) -> str:
    """The text with every control character and line break as an escape that can be read."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def can_name_a_folder(name: str) -> bool:
    """Whether it is printable UTF-8 of 1 to 200 bytes that stays one part of a path."""
    # Bytes that are no UTF-8 come as surrogates, which are not printable.
    if not (name and name.isprintable()) or "/" in name or name in {".", ".."}:
        return False
    return len(name.encode()) <= MAX_FOLDER_BYTES

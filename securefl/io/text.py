"""Names from outside: escaped for a terminal or Markdown, and checked before naming a folder."""

import re

MAX_FOLDER_BYTES = 200  # file systems take 255, and words are put before and after


def printable(text: str) -> str:
    """Return the text with control characters and line breaks as readable escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_MARKS = re.compile(r"[\\`*~$|<>&\[\]]|(?<![^\W_])_|_(?![^\W_])|(?<=:)/(?=/)")


def in_markdown(text: str) -> str:
    """Return the text as Markdown that shows it: no link, picture, HTML, code or cell comes of it.

    Marks become numbers of characters (`&#60;`), which all readers of Markdown show as text. Within
    a span of code they would stay numbers, so it belongs outside of one.
    """
    return _MARKS.sub(lambda mark: f"&#{ord(mark[0])};", printable(text))


def can_name_a_folder(name: str) -> bool:
    """Return whether the name is printable UTF-8 of 1 to 200 bytes, and one part of a path."""
    # Bytes that are no UTF-8 come as surrogates, which are not printable.
    if not (name and name.isprintable()) or "/" in name or name in {".", ".."}:
        return False
    return len(name.encode()) <= MAX_FOLDER_BYTES

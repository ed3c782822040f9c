"""Names of clients and consortia: fit to be read aloud, to name a folder and a certificate."""

from __future__ import annotations

import unicodedata

from securefl.errors import KeyFileError
from securefl.io.text import can_name_a_folder, printable

MAX_NAME_BYTES = 64  # RFC 5280's bound for a common name
_BETWEEN = frozenset(" -_.,'@()&+")
_TOGETHER = dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"), "CJK")
"""Scripts that are written together."""


def require_name(name: str, refusal: type[KeyFileError]) -> None:
    """Raises `refusal` unless the name is printable, in composed form, trimmed and short."""
    short = can_name_a_folder(name) and len(name.encode()) <= MAX_NAME_BYTES
    plain = name == name.strip() == unicodedata.normalize("NFC", name) and _of_one_script(name)
    if not (short and plain):
        raise refusal(
            f"{printable(name)!r:.100} cannot be a name: take 1 to {MAX_NAME_BYTES} bytes of "
            "printable text without / and without spaces around it, in the letters of one script"
        )


def _of_one_script(name: str) -> bool:
    """Whether an eye can tell what it reads: no Cyrillic letter among Latin ones, none unseen."""
    scripts = set()
    for character in name:
        kind, (script, *said) = unicodedata.category(character), _called(character)
        if kind[0] in "LM" and "FILLER" not in said:
            scripts.add(_TOGETHER.get(script, script))
        elif character not in _BETWEEN and kind != "Nd":
            return False
    return len(scripts) <= 1


def _called(character: str) -> list[str]:
    """As Unicode calls it: the script first."""
    return unicodedata.name(character, "NONE").split(" ")


def alike(name: str) -> str:
    """The same for names that an ear or an eye takes for one: 'Alice' and 'alice'."""
    return unicodedata.normalize("NFKC", name).casefold()

"""Names of clients and consortia: fit to be read aloud, to name a folder and a certificate."""

from __future__ import annotations

import unicodedata

from securefl.errors import KeyFileError
from securefl.names import can_name_a_folder, printable

MAX_NAME_BYTES = 64  # RFC 5280's bound for a common name


def require_name(name: str, refusal: type[KeyFileError]) -> None:
    """Raises `refusal` unless the name is printable, in composed form, trimmed and short."""
    fits = can_name_a_folder(name) and len(name.encode()) <= MAX_NAME_BYTES
    if not fits or name != name.strip() or name != unicodedata.normalize("NFC", name):
        raise refusal(
            f"{printable(name)!r:.100} cannot be a name: take 1 to {MAX_NAME_BYTES} bytes of "
            "printable text without / and without spaces around it"
        )


def alike(name: str) -> str:
    """The same for names that an ear or an eye takes for one: 'Alice' and 'alice'."""
    return unicodedata.normalize("NFKC", name).casefold()

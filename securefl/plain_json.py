"""JSON from outside: no key twice, and no more keys in an object than any of ours has."""

from __future__ import annotations

import json

from securefl.errors import SecureFLError

MAX_KEYS = 64
"""In one object: validators name every unknown key, which takes long where there are thousands."""


def require_plain(text: str | bytes, refusal: type[SecureFLError]) -> None:
    """Raises `refusal` for a key that is there twice, or for too many of them.

    What is no JSON at all is left to who parses it.
    """

    def checked(pairs: list[tuple[str, object]]) -> None:
        if len(pairs) > MAX_KEYS:
            raise refusal(f"an object of {len(pairs)} fields, more than any has")
        if len({key for key, _ in pairs}) < len(pairs):
            raise refusal("a field is there twice")

    try:
        json.loads(text, object_pairs_hook=checked)
    except RecursionError:
        raise refusal("nested deeper than any file or message") from None
    except ValueError:
        return

"""Base64 in its one canonical form, so that no text can be changed and still mean the same."""

from __future__ import annotations

import base64
import binascii

from securefl.errors import KeyFileError


def encoded(data: bytes) -> str:
    """Standard alphabet, with padding."""
    return base64.b64encode(data).decode()


def decoded(text: str, n_bytes: int | None = None) -> bytes:
    """The bytes of a key file's field; raises KeyFileError, also for another length."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise KeyFileError(f"damaged key file: {error}") from error
    # Base64 has spare bits at its end: two texts for the same bytes, of which one was changed.
    if encoded(data) != text or n_bytes not in {None, len(data)}:
        raise KeyFileError("damaged key file: base64 of another length or form")
    return data

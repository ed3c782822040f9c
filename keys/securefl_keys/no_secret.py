"""Public files hold no secret: looked for by content, whatever the file is called."""

from __future__ import annotations

import re

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_private_key

from securefl.errors import SecretFound

_MARKS = re.compile(rb"securefl-[a-z-]{0,32}secret-key/|PRIVATE KEY-----")
_WORDS = (b"secret-key/", b"PRIVATE KEY-----")
"""Each mark has one; a search for marks is slow, and most files have none."""


def require_no_secret(content: bytes) -> None:
    """Raises SecretFound for a sealed or open private key, in SecureFL's forms, PEM or DER."""
    if _is_marked(content) or _is_der_private_key(content):
        raise SecretFound(
            "a secret key: only who made it may hold it; delete it here, and if others were given "
            "it, make new keys"
        )


def _is_marked(content: bytes) -> bool:
    return any(word in content for word in _WORDS) and bool(_MARKS.search(content))


def _is_der_private_key(content: bytes) -> bool:
    try:
        load_der_private_key(content, password=None)
    except TypeError:  # one that is encrypted
        return True
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True

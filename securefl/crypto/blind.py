"""Totals sealed for clients: one ciphertext for all of them, and its key wrapped for each.

    d   = SHA-256(32 random bytes, total, message, about)
    K, salt = HKDF-SHA256(d)                     fresh, the content key of one total, and a salt
    c   = AES-256-GCM(K; total; about)           the same for all clients
    w_i = AES-256-GCM(HKDF-SHA256(k_i; salt, message); K; SHA-256(salt, about, c))    for client i

k_i is the secret on the client's card. A machine that was copied, with the same random bytes, has
other keys for another total. A wrap names the ciphertext that it is for, since a
ciphertext of AES-GCM alone may open under several keys.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securefl.errors import BlindTotalRefused
from securefl.io.uncopyable import Held, SecretBytes

SALT_BYTES = 16
TAG_BYTES = 16
WRAP_BYTES = 32 + TAG_BYTES
"""Length of a content key that is wrapped for one client."""
_KEY_BYTES = 32
_LABEL = b"SecureFL blind total 1\0"
_FRESH = b"SecureFL blind total key 1\0"
_NONCE = bytes(12)  # each key encrypts once: a content key is fresh, a wrapping key has a salt


@dataclass(frozen=True, slots=True)
class BlindText:
    """Ciphertext of one total, with all that it is bound to; nothing of it is secret."""

    message: bytes
    """Digest of session, round, name and size."""
    about: bytes
    """List of clients, bound beside it."""
    salt: bytes
    ciphertext: bytes

    def digest(self) -> bytes:
        """Return the SHA-256 of all parts."""
        return _digest(_LABEL, (self.message, self.about, self.salt, self.ciphertext))

    @property
    def bound(self) -> bytes:
        """Bytes that the ciphertext is bound to."""
        return self.message + self.about


@final
class ContentKey(Held):
    """Key of one total. Its maker wraps it for clients, and has no other use for it."""

    def __init__(self, key: bytes, text: BlindText) -> None:
        """Use `sealing` or `unwrapped`."""
        self._key = key
        self.text = text

    @classmethod
    def sealing(cls, content: bytes, message: bytes, about: bytes) -> "ContentKey":
        """Return a fresh key, with the ciphertext of this content under it.

        It follows from random bytes and from all that is sealed (compare `sums.fresh_nonce`).
        """
        parts = SecretBytes(os.urandom(_KEY_BYTES)), content, message, about
        seed = SecretBytes(_digest(_FRESH, parts))
        derived = HKDF(SHA256(), _KEY_BYTES + SALT_BYTES, salt=None, info=_FRESH)
        both = SecretBytes(derived.derive(seed))
        key, salt = both[:_KEY_BYTES], bytes(both[_KEY_BYTES:])
        ciphertext = AESGCM(key).encrypt(_NONCE, content, message + about)
        return cls(key, BlindText(message, about, salt, ciphertext))

    def wrapped(self, secret: bytes) -> bytes:
        """Return this key for the client of this secret alone, `WRAP_BYTES` long."""
        return _wrapping(secret, self.text).encrypt(_NONCE, self._key, self.text.digest())

    @classmethod
    def unwrapped(cls, wrap: bytes, secret: bytes, text: BlindText) -> "ContentKey":
        """Return the key in a wrap.

        Raises:
            BlindTotalRefused: made for another client, message or ciphertext, or changed.
        """
        try:
            key = _wrapping(secret, text).decrypt(_NONCE, wrap, text.digest())
            return cls(SecretBytes(key), text)
        except (InvalidTag, ValueError):
            raise BlindTotalRefused("does not open: it is for another client, or changed") from None

    def content(self) -> bytes:
        """Return what was sealed.

        Raises:
            BlindTotalRefused: the ciphertext is of another key, message or list.
        """
        try:
            return AESGCM(self._key).decrypt(_NONCE, self.text.ciphertext, self.text.bound)
        except (InvalidTag, ValueError):
            raise BlindTotalRefused("does not open under the key that came with it") from None

    def __repr__(self) -> str:
        return "ContentKey()"


def _digest(label: bytes, parts: Iterable[bytes]) -> bytes:
    """Return the SHA-256 of parts, each with its length before it."""
    found = hashlib.sha256(label)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def _wrapping(secret: bytes, text: BlindText) -> AESGCM:
    info = _LABEL + text.message
    return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt=text.salt, info=info).derive(secret))

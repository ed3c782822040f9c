"""Fingerprints: what two people compare aloud."""

from __future__ import annotations

import re

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from securefl.crypto.artefact import digest
from securefl.errors import ConfigError


def key_id_of(key: Ed25519PublicKey) -> str:
    """SHA-256 of the SubjectPublicKeyInfo, as other tools print it too."""
    return digest(key_info(key))


def key_info(key: Ed25519PublicKey | EllipticCurvePublicKey) -> bytes:
    """Return the SubjectPublicKeyInfo in DER."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def fingerprint_of(identity: Ed25519PublicKey, transport: EllipticCurvePublicKey | None) -> str:
    """Return the SHA-256 of both SubjectPublicKeyInfo, one after the other, or of the only one."""
    # Each has one length, 44 and 91 bytes, so no other pair of keys gives the same bytes.
    return digest(key_info(identity), b"" if transport is None else key_info(transport))


def readable(fingerprint: str) -> str:
    """In groups of four, to be read aloud."""
    return " ".join(fingerprint[i : i + 4] for i in range(0, len(fingerprint), 4))


def typed(text: str) -> str:
    """A whole fingerprint as somebody typed it, with spaces or colons; raises ConfigError."""
    fingerprint = re.sub(r"[\s:]", "", text).lower()
    if not re.fullmatch(r"[0-9a-f]{64}", fingerprint):
        raise ConfigError(
            f"{text!r:.100} is no fingerprint: give all 64 hexadecimal digits, as they were read"
        )
    return fingerprint

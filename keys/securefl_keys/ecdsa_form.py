"""The one form of an ECDSA signature: DER, and of s and -s the smaller.

Without the key nobody makes a second signature of the same text. Its owner makes as many as it
likes, each with another nonce.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from securefl_keys.transport import ORDER

_ECDSA_WITH_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")


def is_low(signature: bytes) -> bool:
    """Whether s is not above half of the order; raises ValueError for what is no signature."""
    _, s = decode_dss_signature(signature)
    return s <= ORDER // 2


def require_one_ecdsa_form(der: bytes, signed: bytes, signature: bytes) -> None:
    """Raises ValueError unless signed part, ECDSA's name and signature are the whole."""
    one = encode_dss_signature(*decode_dss_signature(signature))
    bits = b"\x03" + bytes([len(one) + 1]) + b"\x00" + one
    if not (is_low(signature) and der.endswith(signed + _ECDSA_WITH_SHA256 + bits)):
        raise ValueError("not in its one form")

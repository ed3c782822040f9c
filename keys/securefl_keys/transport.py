"""The key of a party for TLS: P-256, derived from its Ed25519 identity key.

BoringSSL, which gRPC brings, takes no Ed25519 key at either end of a connection. A derived key
needs no file, no passphrase and no backup of its own, and goes when the identity goes.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securefl.errors import CertificateRefused
from securefl_keys.certificate_text import UNREADABLE

INFO = b"SecureFL transport key 1"
SEED_BYTES = 48
"""128 bits more than the curve's order has, so that the reduction favours no key."""
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Number of points of P-256."""


def transport_key(identity: Ed25519PrivateKey) -> ec.EllipticCurvePrivateKey:
    """Derive the P-256 key: HKDF-SHA256 of the raw private key, then FIPS 186-5, A.2.1."""
    hkdf = HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=INFO)
    seed = int.from_bytes(hkdf.derive(identity.private_bytes_raw()), "big")
    return ec.derive_private_key(seed % (ORDER - 1) + 1, ec.SECP256R1())


def is_p256(key: object) -> bool:
    """Whether it is a public key on P-256."""
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)


def transport_public_key_of(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """Return the key in a transport certificate; raises CertificateRefused for another kind."""
    try:
        key = certificate.public_key()
    except UNREADABLE:  # of an algorithm that `cryptography` does not know
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not is_p256(key):
        raise CertificateRefused("its key is not P-256, as all transport keys are")
    return key

"""Handshake over a way that shows neither end to the other, and lets others read and write.

caller → listener     an X25519 key that is used once, its transport certificate
listener → caller     another such key, a signature, the certificate of its identity (`Challenge`)
caller → listener     a signature by the key of its certificate (`CounterChallenge`)

Both signatures are of both keys and of who shows what to whom. What comes after is sealed by keys
that the two agree on so: who passes chunks on, or keeps them, can neither read nor change them.
"""

from __future__ import annotations

from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding

from securefl.errors import PeerError
from securefl.network.identity import Identity
from securefl.network.proof import NONCE_BYTES, Challenge, CounterChallenge
from securefl.network.trust import Role, Trust
from securefl.nvflare.stream import SealedStream

INFO = b"SecureFL chunks 1\0"
_KEY_BYTES = 32


async def introduced(
    identity: Identity, trust: Trust, role: Role, end: SealedStream
) -> tuple[str, x509.Certificate]:
    """Agree with a listener of that role as a caller; return its name and certificate.

    Raises:
        PeerError: it is nobody who has that role now, or it is gone.
    """
    own, shown = X25519PrivateKey.generate(), identity.transport_certificate
    number = own.public_key().public_bytes_raw()
    await end.write(number + shown.public_bytes(Encoding.DER))
    theirs, proof = _apart(await end.read())
    name, certificate = Challenge(shown, number + theirs).check(proof, trust, role)
    back = CounterChallenge(shown, certificate, number + theirs)
    await end.write(back.answer(cast("EllipticCurvePrivateKey", identity.transport_key)))
    sending, receiving = _keys(own, theirs, back)
    end.seal(sending, receiving)
    return name, certificate


async def greeted(identity: Identity, end: SealedStream) -> x509.Certificate:
    """Agree with a caller as the listener; return its transport certificate, whose key it has.

    Raises:
        PeerError: it has not, or is gone. Whom the certificate makes it, the roster says.
    """
    theirs, shown = _apart(await end.read())
    try:
        certificate = x509.load_der_x509_certificate(shown)
    except ValueError:
        raise PeerError("a peer that shows no certificate") from None
    own = X25519PrivateKey.generate()
    number = own.public_key().public_bytes_raw()
    proof = Challenge(certificate, theirs + number).answer(identity.certificate, identity.key)
    await end.write(number + proof)
    back = CounterChallenge(certificate, identity.certificate, theirs + number)
    back.check(await end.read())
    receiving, sending = _keys(own, theirs, back)
    end.seal(sending, receiving)
    return certificate


def _apart(chunk: bytes) -> tuple[bytes, bytes]:
    if len(chunk) <= NONCE_BYTES:
        raise PeerError("a peer that does not begin with a number of its own")
    return chunk[:NONCE_BYTES], chunk[NONCE_BYTES:]


def _keys(own: X25519PrivateKey, theirs: bytes, about: CounterChallenge) -> tuple[bytes, bytes]:
    """Return the key of what the caller sends, and that of what it receives."""
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:  # one of the few points that make it the same for everybody
        raise PeerError("a peer whose number is no key") from None
    info = INFO + about.transcript
    keys = HKDF(SHA256(), 2 * _KEY_BYTES, salt=None, info=info).derive(shared)
    return keys[:_KEY_BYTES], keys[_KEY_BYTES:]

"""Proofs of identity, where the connection itself shows none.

A caller of gRPC's is not shown the certificate that answers.

TLS itself shows the caller that the consortium's CA has certified the listener for its role. The
roster is asked about its identity: the caller sends a number that is used once, and the listener's
Ed25519 key signs it with the certificate by which the caller was let in. So whoever passes the
proof on has no use for it at another caller.

Where no TLS of ours carries the connection, the caller proves itself too: it signs both parties'
numbers, with both certificates, by the key of its transport certificate.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from securefl.errors import KeyFileError, PeerError
from securefl.network.trust import Role, Trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

NONCE_BYTES = 32
SIGNED_AS = b"SecureFL listener 1\0"
"""Prefix of what is signed here; nothing else that an identity signs has it."""
CALLER_SIGNED_AS = b"SecureFL caller 1\0"
"""The same of what a caller signs."""
_SIGNATURE_BYTES = 64
_ECDSA = ec.ECDSA(SHA256())


@dataclass(frozen=True, slots=True)
class Challenge:
    """A caller's question to whoever answers."""

    caller: x509.Certificate
    """Its transport certificate."""
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))

    def answer(self, certificate: x509.Certificate, key: Ed25519PrivateKey) -> bytes:
        """Return the listener's proof: a signature, and the certificate of its identity."""
        return key.sign(self._signed()) + certificate.public_bytes(Encoding.DER)

    def check(self, proof: bytes, trust: Trust, role: Role) -> tuple[str, x509.Certificate]:
        """Return the listener's name and certificate.

        Raises:
            PeerError: it is nobody who has that role now.
        """
        try:
            certificate = x509.load_der_x509_certificate(proof[_SIGNATURE_BYTES:])
        except ValueError:
            raise PeerError("the peer shows no certificate of its identity") from None
        name, key = name_of(trust.holder, certificate, role), certificate.public_key()
        try:
            cast("Ed25519PublicKey", key).verify(proof[:_SIGNATURE_BYTES], self._signed())
        except InvalidSignature:
            raise PeerError("the peer has not the key of the identity that it shows") from None
        return name, certificate

    def _signed(self) -> bytes:
        return SIGNED_AS + self.nonce + self.caller.fingerprint(SHA256())


@dataclass(frozen=True, slots=True)
class CounterChallenge:
    """A listener's question to a caller that no TLS of ours has let in."""

    caller: x509.Certificate
    """Its transport certificate, as it says."""
    listener: x509.Certificate
    """Certificate of the listener's identity: the proof is worth nothing to another."""
    nonce: bytes
    """Numbers of both, the listener's own among them."""

    def answer(self, key: ec.EllipticCurvePrivateKey) -> bytes:
        """Return the caller's proof, by the key of its transport certificate."""
        return key.sign(self._signed(), _ECDSA)

    def check(self, proof: bytes) -> None:
        """Raise PeerError unless the caller has the key; whose it is, the roster says."""
        try:
            key = self.caller.public_key()
            if isinstance(key, ec.EllipticCurvePublicKey):
                return key.verify(proof, self._signed(), _ECDSA)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
            pass
        raise PeerError("the peer has not the key of the certificate that it shows")

    @property
    def transcript(self) -> bytes:
        """Numbers and certificates of both."""
        fingerprints = (c.fingerprint(SHA256()) for c in (self.caller, self.listener))
        return self.nonce + b"".join(fingerprints)

    def _signed(self) -> bytes:
        return CALLER_SIGNED_AS + self.transcript


def name_of(
    holder: Callable[[x509.Certificate, Role], str], certificate: x509.Certificate, role: Role
) -> str:
    """Return the name of the peer with this certificate, by `Trust.holder` or `transport_holder`.

    Raises:
        PeerError: it is nobody who has that role now.
    """
    try:
        return holder(certificate, role)
    except KeyFileError as error:
        raise PeerError(f"the peer is no {role} of this consortium: {error}") from error

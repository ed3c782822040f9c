"""Identity of a process: certificate and keys, its name for TLS, and a listener's proof.

A client signs its contributions with its identity. In TLS as gRPC speaks it, which takes no Ed25519
key, the transport certificate and its P-256 key, bound to the identity, stand for it.

TLS itself shows the caller that the consortium's CA has certified the listener for its role. The
roster is asked about its identity: the caller sends a number that is used once, and the listener's
Ed25519 key signs it with the certificate by which the caller was let in. So whoever passes the
proof on has no use for it at another caller.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from securefl.errors import KeyFileError, PeerError
from securefl.io.uncopyable import Held
from securefl.network.trust import Role, Trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from securefl.network.trust import Role


def host_of(role: Role) -> str:
    """Return the DNS name in the transport certificate of whoever has this role."""
    return f"{role}.securefl"


@dataclass(frozen=True, slots=True)
class ProcessIdentity(Held):
    """Identity of one party."""

    name: str
    certificate: x509.Certificate
    ca: x509.Certificate
    """Certificate of the consortium's CA, which vouches for all peers."""
    key: Ed25519PrivateKey = field(repr=False)
    transport: x509.Certificate | None = None
    """Certificate for TLS with a P-256 key; None in a folder of an older release."""
    transport_key: EllipticCurvePrivateKey | None = field(default=None, repr=False)
    """Key of `transport`."""

    @property
    def ca_pem(self) -> bytes:
        """Certificate that vouches for all peers, in PEM."""
        return _pem(self.ca)

    @property
    def transport_certificate(self) -> x509.Certificate:
        """Transport certificate; raises KeyFileError where there is none."""
        return self._transport()[0]

    @property
    def transport_pem(self) -> bytes:
        """Transport certificate in PEM; raises KeyFileError where there is none."""
        return _pem(self._transport()[0])

    def transport_key_pem(self) -> bytes:
        """Return the transport key in PEM, unencrypted: to be handed on, and kept nowhere.

        Raises KeyFileError where there is none.
        """
        key = self._transport()[1]
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def encrypted_transport_key_pem(self, password: bytes) -> bytes:
        """Return the transport key in PEM; raises KeyFileError where there is none."""
        key = self._transport()[1]
        encryption = BestAvailableEncryption(password)
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)

    def _transport(self) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        if self.transport is None or self.transport_key is None:
            raise KeyFileError(
                f"{self.name}: its identity.crt has no certificate for TLS, as those of older "
                "releases: a client or a server renews it, with: securefl keys renew request; with "
                "the next approval (securefl keys join approve) the authority gets its own"
            )
        return self.transport, self.transport_key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


NONCE_BYTES = 32
SIGNED_AS = b"SecureFL listener 1\0"
"""Prefix of what is signed here; nothing else that an identity signs has it."""
_SIGNATURE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Challenge:
    """Question of a caller to whoever answers."""

    caller: x509.Certificate
    """Transport certificate of the caller."""
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

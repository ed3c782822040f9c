"""Identity of a process: certificate, Ed25519 key, and the certificate of the consortium's CA.

A client signs its contributions with its identity. In TLS as gRPC speaks it, which takes no Ed25519
key, the transport certificate and its P-256 key, bound to the identity, stand for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from securefl.errors import KeyFileError


@dataclass(frozen=True, slots=True)
class Identity:
    """One party's."""

    name: str
    certificate: x509.Certificate
    ca: x509.Certificate
    """The consortium's, which vouches for all peers."""
    key: Ed25519PrivateKey = field(repr=False)
    transport: x509.Certificate | None = None
    """For TLS with a P-256 key; None in a folder of an older release."""
    transport_key: EllipticCurvePrivateKey | None = field(default=None, repr=False)
    """The key of `transport`."""

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

"""Identity of a process: certificate, Ed25519 key, and the certificate of the consortium's CA.

One identity does both: it opens the connection (TLS 1.3, certificates on both sides), and a client
signs its contributions with it. Where TLS takes no Ed25519 key, the transport certificate and its
P-256 key, which are bound to the identity, stand for it.
"""

from __future__ import annotations

import secrets
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from securefl.errors import KeyFileError, PeerError
from securefl.network.trust import Role, Trust


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
    def transport_pem(self) -> bytes:
        """Transport certificate in PEM; raises KeyFileError where there is none."""
        return _pem(self._transport()[0])

    def transport_key_pem(self) -> bytes:
        """Return the transport key in PEM, unencrypted: to be handed on, and kept nowhere.

        Raises KeyFileError where there is none.
        """
        key = self._transport()[1]
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def _transport(self) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        if self.transport is None or self.transport_key is None:
            raise KeyFileError(
                f"{self.name}: its identity.crt has no certificate for TLS, as those of older "
                "releases: a client or a server is revoked and joins again, with: securefl keys "
                "join request; with the next approval (securefl keys join approve) the authority "
                "gets its own"
            )
        return self.transport, self.transport_key

    def serving(self) -> ssl.SSLContext:
        """For whoever listens."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def joining(self) -> ssl.SSLContext:
        """For whoever connects; who answers is to be checked with `peer_name`."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # names are roles' and members', not hosts'
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            self._load_into(context)
            context.load_verify_locations(cadata=_pem(self.ca).decode())
        except (ssl.SSLError, OSError) as error:
            raise KeyFileError(
                f"{self.name}: no certificate with its key ({error.strerror or error})"
            ) from error
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        # OpenSSL reads keys from files alone: this one is encrypted, and only this call knows how.
        password = secrets.token_hex(32)
        sealing = BestAvailableEncryption(password.encode())
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealing)
        with tempfile.TemporaryDirectory(prefix="securefl-") as folder:
            path = Path(folder) / "identity.pem"
            path.touch(mode=0o600)
            path.write_bytes(_pem(self.certificate) + key)
            context.load_cert_chain(path, password=lambda: password)


def peer_name(tls: ssl.SSLObject, trust: Trust, role: Role) -> str:
    """Return the name of the peer at the other end of a finished handshake.

    Raises:
        PeerError: it is nobody who has that role now.
    """
    der = tls.getpeercert(binary_form=True)
    if der is None:
        raise PeerError("a peer without a certificate")
    try:
        return trust.holder(x509.load_der_x509_certificate(der), role)
    except (KeyFileError, ValueError) as error:
        raise PeerError(f"the peer is no {role} of this consortium: {error}") from error


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)

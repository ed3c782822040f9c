"""Certificates of one party in one file: of its identity, and of its transport key for TLS."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from securefl.errors import KeyFileError
from securefl_keys.certificate_text import pem_blocks, pem_of, read_pem
from securefl_keys.certificates import ConsortiumAuthority, holder_certificate, issue
from securefl_keys.holders import Holder
from securefl_keys.transport_certificates import issue_transport


@dataclass(frozen=True, slots=True)
class CertificateFile:
    """The certificates in an identity.crt, one PEM block each; nothing has vouched for them yet."""

    identity: x509.Certificate = field(repr=False)
    transport: x509.Certificate | None = field(repr=False)
    """None in a file of an older release."""

    @classmethod
    def parse(cls, text: str) -> CertificateFile:
        """Raises KeyFileError where a block is no certificate in its one form, or one too many."""
        blocks = pem_blocks(text)
        if len(blocks) > 2:
            raise KeyFileError(f"it holds {len(blocks)} certificates, and a party has two")
        identity, *more = map(read_pem, blocks)
        return cls(identity, more[0] if more else None)

    @property
    def text(self) -> str:
        """PEM, the identity first."""
        return pem_of(self.identity) + (pem_of(self.transport) if self.transport else "")


def issue_file(
    ca: ConsortiumAuthority,
    key: Ed25519PrivateKey,
    holder: Holder,
    keys: tuple[Ed25519PublicKey, EllipticCurvePublicKey | None],
    at: datetime,
) -> CertificateFile:
    """Issue the certificates of a holder's identity key and transport key, if it has one."""
    public_key, transport = keys
    return with_transport(ca, key, issue(ca, key, holder, public_key, at), transport)


def with_transport(
    ca: ConsortiumAuthority,
    key: Ed25519PrivateKey,
    identity: x509.Certificate,
    transport: EllipticCurvePublicKey | None,
) -> CertificateFile:
    """Issue the transport certificate that goes with an identity certificate of this authority."""
    if transport is None:
        return CertificateFile(identity, None)
    holder = holder_certificate(identity, ca)
    return CertificateFile(identity, issue_transport(ca, key, holder, transport))

"""Transport certificates: of P-256 keys, for TLS, each bound to one Ed25519 identity.

The certificate authority issues one beside each identity certificate, with the same dates. No
roster lists it: who revokes the identity revokes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from securefl.errors import CertificateRefused
from securefl.network.hosts import host_of
from securefl_keys.certificate_parts import (
    Extensions,
    has,
    leaf_extensions,
    name_of,
    require_current,
    require_issued,
    unissued,
)
from securefl_keys.certificate_text import UNREADABLE
from securefl_keys.certificates import (
    ConsortiumAuthority,
    HolderCertificate,
    require_role,
    way_out,
)
from securefl_keys.holders import ROLES, Holder, Role, holder_uri
from securefl_keys.transport import transport_public_key_of

_USES: dict[Role, list[x509.ObjectIdentifier]] = {
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "server": [ExtendedKeyUsageOID.SERVER_AUTH],
    # They call out to the server, as clients do.
    "authority": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "officer": [ExtendedKeyUsageOID.CLIENT_AUTH],
}
_IDENTITY = "urn:securefl:identity:"
_KEPT = 1024
"""Certificates whose holders are kept: a server asks for each caller's role several times."""


@dataclass(frozen=True, slots=True)
class TransportCertificate(Holder):
    """A certificate found to be this consortium's for TLS; `require_current` checks its dates."""

    identity: str
    """Key id of the Ed25519 identity key that it is bound to."""
    public_key: EllipticCurvePublicKey = field(repr=False)
    certificate: x509.Certificate = field(repr=False)

    def require_current(self, at: datetime) -> None:
        """Raises CertificateExpired where it is not valid at this time."""
        require_current(self.certificate, at, f"{self.name}'s certificate for TLS", way_out(self))

    def require_role(self, role: Role) -> None:
        """Raises CertificateRefused where it is of another role."""
        require_role(self, role)

    def require_identity(self, identity: HolderCertificate) -> None:
        """Raises CertificateRefused where it is not bound to this identity."""
        bound = (self.name, self.role, self.identity)
        if bound != (identity.name, identity.role, identity.key_id):
            raise CertificateRefused(
                f"its certificate for TLS is of {self.role} {self.name} with key "
                f"{self.identity[:16]}…, and its identity is {identity.role} {identity.name} with "
                f"key {identity.key_id[:16]}…"
            )


def issue_transport(
    ca: ConsortiumAuthority,
    key: Ed25519PrivateKey,
    identity: HolderCertificate,
    public_key: EllipticCurvePublicKey,
) -> x509.Certificate:
    """Issue the transport certificate of an identity, with the dates of its certificate."""
    dates = identity.certificate.not_valid_before_utc, identity.certificate.not_valid_after_utc
    extensions = _extensions(identity, identity.key_id, public_key, ca)
    builder = unissued(identity.name, public_key, extensions, dates)
    return builder.issuer_name(ca.certificate.subject).sign(key, algorithm=None)


@lru_cache(_KEPT)  # keeps what was found alone: what this raises is found anew each time
def transport_holder(
    certificate: x509.Certificate, ca: ConsortiumAuthority
) -> TransportCertificate:
    """Return the holder of a certificate for TLS, found to be issued by this authority.

    Dates are not looked at.

    Raises:
        ForeignAuthority: not issued by it.
        CertificateRefused: no certificate for TLS of any role.
    """
    require_issued(certificate, ca.certificate, ca.name)
    try:
        name, key = name_of(certificate), transport_public_key_of(certificate)
        identity = _identity_in(certificate)
        as_issued = (Holder(name, role) for role in ROLES)
        holder = next(
            (h for h in as_issued if has(certificate, _extensions(h, identity, key, ca))), None
        )
    except (x509.ExtensionNotFound, *UNREADABLE) as error:
        raise CertificateRefused(f"no certificate for TLS: {error}") from None
    if holder is None:
        raise CertificateRefused(f"{name}'s certificate for TLS is for no role of a consortium")
    return TransportCertificate(name, holder.role, identity, key, certificate)


def _extensions(
    holder: Holder, identity: str, key: EllipticCurvePublicKey, ca: ConsortiumAuthority
) -> Extensions:
    names = x509.SubjectAlternativeName(
        [
            x509.DNSName(host_of(holder.role)),
            x509.UniformResourceIdentifier(holder_uri(holder)),
            x509.UniformResourceIdentifier(_IDENTITY + identity),
        ]
    )
    return leaf_extensions(_USES[holder.role], names, key, ca.public_key)


def _identity_in(certificate: x509.Certificate) -> str:
    """Return the key id in the last of the alternative names."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = re.fullmatch(rf"{_IDENTITY}([0-9a-f]{{64}})", str(list(names)[-1].value))
    if found is None:
        raise ValueError("it is bound to no identity")
    return found.group(1)

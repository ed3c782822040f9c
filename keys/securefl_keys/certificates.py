"""Certificate authority of the consortium, and its certificates, each for one role.

X.509 v3 with Ed25519 (RFC 8410). A chain is one link long and each certificate has exactly the
extensions written here, so that checking one means comparing. `cryptography.x509.verification`
follows the web's profile, which refuses Ed25519 keys; the signature is checked by
`Certificate.verify_directly_issued_by`.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from securefl.crypto.artefact import digest
from securefl.errors import (
    CertificateRefused,
    FileSignatureRefused,
    ForeignAuthority,
    KeyFileError,
)
from securefl_keys.certificate_form import (
    AUTHORITY,
    ROLES,
    UNREADABLE,
    Extensions,
    Holder,
    Role,
    alternative_name,
    der_of,
    extension,
    has,
    is_current,
    key_id_of,
    key_usage,
    lasting,
    leaf_extensions,
    name_of,
    public_key_of,
    read_pem,
    require_current,
    require_issued,
    require_name,
    subject,
    unissued,
)

AUTHORITY_LIFETIME = timedelta(days=3650)
MEMBER_LIFETIME = timedelta(days=398)
_RENEW = "renew it: securefl keys renew request, then securefl keys renew approve at the authority"
_MAKE_NEW = "make new keys"

_EXTENDED_USES: dict[Role, list[x509.ObjectIdentifier]] = {
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "officer": [ExtendedKeyUsageOID.CLIENT_AUTH],
    # It is the authority's client.
    "server": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    "authority": [ExtendedKeyUsageOID.SERVER_AUTH],
}


@dataclass(frozen=True, slots=True)
class ConsortiumAuthority:
    """A certificate authority, known by its certificate."""

    name: str
    """Name of the consortium."""
    certificate: x509.Certificate = field(repr=False)
    fingerprint: str
    """SHA-256 of the certificate, in hex, which people compare aloud."""
    public_key: Ed25519PublicKey = field(repr=False, hash=False)

    def require_fingerprint(self, fingerprint: str | None) -> None:
        """Raises ForeignAuthority where a fingerprint is given and is not this authority's."""
        if fingerprint not in {None, self.fingerprint}:
            raise ForeignAuthority(
                f"of authority {self.fingerprint[:16]}…, not of {str(fingerprint)[:16]}… as you "
                "expected: ask the consortium for its bundle, over a channel that you trust"
            )


@dataclass(frozen=True, slots=True)
class HolderCertificate(Holder):
    """A certificate found to be of this consortium; `require_current` checks its dates."""

    key_id: str
    public_key: Ed25519PublicKey = field(repr=False)
    certificate: x509.Certificate = field(repr=False)

    def is_current(self, at: datetime) -> bool:
        """Return whether the certificate is valid at this time."""
        return is_current(self.certificate, at)

    def require_current(self, at: datetime) -> None:
        """Raises CertificateExpired where the certificate is not valid at this time."""
        require_current(self.certificate, at, f"{self.name}'s certificate", way_out(self))

    def require_role(self, role: Role) -> None:
        """Raises CertificateRefused where the certificate is of another role."""
        require_role(self, role)


def way_out(holder: Holder) -> str:
    """Return the cure of an expired certificate: the authority's lasts as long as its CA's."""
    return _MAKE_NEW if holder.role == AUTHORITY.role else _RENEW


def require_role(holder: Holder, role: Role) -> None:
    """Raises CertificateRefused where a certificate's holder has another role."""
    if holder.role != role:
        raise CertificateRefused(
            f"{holder.name}'s certificate is for the role {holder.role}, not for {role} as needed"
        )


def make_authority(name: str, key: Ed25519PrivateKey, at: datetime) -> x509.Certificate:
    """Make a self-signed certificate authority; raises KeyFileError for an impossible name."""
    require_name(name, KeyFileError)
    extensions = _authority_extensions(key.public_key())
    builder = unissued(name, key.public_key(), extensions, lasting(at, AUTHORITY_LIFETIME))
    return builder.issuer_name(subject(name)).sign(key, algorithm=None)


def issue(
    ca: ConsortiumAuthority,
    key: Ed25519PrivateKey,
    holder: Holder,
    public_key: Ed25519PublicKey,
    at: datetime,
) -> x509.Certificate:
    """Issue a certificate for one role, never valid for longer than the CA's own."""
    # The authority's identity lies beside the key that would renew it.
    usual = AUTHORITY_LIFETIME if holder == AUTHORITY else MEMBER_LIFETIME
    lifetime = min(usual, ca.certificate.not_valid_after_utc - at)
    extensions = _holder_extensions(holder, public_key, ca.public_key)
    builder = unissued(holder.name, public_key, extensions, lasting(at, lifetime))
    return builder.issuer_name(ca.certificate.subject).sign(key, algorithm=None)


def read_authority(text: str, at: datetime) -> ConsortiumAuthority:
    """Read the certificate authority in a file; its fingerprint tells whether it is the right one.

    Raises:
        KeyFileError: no such certificate.
        FileSignatureRefused: changed.
        CertificateExpired: at this time.
    """
    certificate = read_pem(text)
    try:
        name, key = name_of(certificate), public_key_of(certificate)
        if certificate.subject != certificate.issuer or not has(
            certificate, _authority_extensions(key)
        ):
            raise KeyFileError("no certificate authority of a SecureFL consortium")
        certificate.verify_directly_issued_by(certificate)
    except InvalidSignature:
        raise FileSignatureRefused("the certificate was changed: its signature is wrong") from None
    except UNREADABLE as error:
        raise KeyFileError(f"no certificate of a consortium: {error}") from None
    require_current(certificate, at, "the consortium's certificate", _MAKE_NEW)
    return ConsortiumAuthority(name, certificate, digest(der_of(certificate)), key)


def holder_certificate(certificate: x509.Certificate, ca: ConsortiumAuthority) -> HolderCertificate:
    """Return the holder of a certificate that this authority has issued for a role.

    Dates are not looked at.

    Raises:
        ForeignAuthority: not issued by it.
        CertificateRefused: for none of the roles.
    """
    require_issued(certificate, ca.certificate, ca.name)
    try:
        name, key = name_of(certificate), public_key_of(certificate)
        as_issued = (Holder(name, role) for role in ROLES)
        holder = next(
            (h for h in as_issued if has(certificate, _holder_extensions(h, key, ca.public_key))),
            None,
        )
    except UNREADABLE as error:
        raise CertificateRefused(f"no certificate of a member: {error}") from None
    if holder is None:
        raise CertificateRefused(f"{name}'s certificate is for no role of a consortium")
    return HolderCertificate(name, holder.role, key_id_of(key), key, certificate)


def _authority_extensions(key: Ed25519PublicKey) -> Extensions:
    return [
        extension(x509.BasicConstraints(ca=True, path_length=0), critical=True),
        extension(key_usage("key_cert_sign", "crl_sign"), critical=True),
        extension(x509.SubjectKeyIdentifier.from_public_key(key)),
    ]


def _holder_extensions(
    holder: Holder, key: Ed25519PublicKey, issuer: Ed25519PublicKey
) -> Extensions:
    return leaf_extensions(_EXTENDED_USES[holder.role], alternative_name(holder), key, issuer)

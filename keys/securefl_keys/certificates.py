"""Certificate authority of the consortium, and its certificates, each for one role.

X.509 v3 with Ed25519 (RFC 8410). A chain is one link long and each certificate has exactly the
extensions written here, so that checking one means comparing. `cryptography.x509.verification`
follows the web's profile, which refuses Ed25519 keys; the signature is checked by
`Certificate.verify_directly_issued_by`.

Each party has two in one file: of its identity, and of its P-256 key for TLS. BoringSSL, which gRPC
brings, takes no Ed25519 key at either end of a connection. A derived key needs no file, no
passphrase and no backup of its own, and goes when the identity goes. The certificate authority
issues one beside each identity certificate, with the same dates. No roster lists it: who revokes
the identity revokes it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID

from securefl.crypto.artefact import digest
from securefl.errors import (
    CertificateRefused,
    FileSignatureRefused,
    ForeignAuthority,
    KeyFileError,
)
from securefl.network.identity import host_of
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
    holder_uri,
    is_current,
    key_id_of,
    key_usage,
    lasting,
    leaf_extensions,
    name_of,
    pem_blocks,
    pem_of,
    public_key_of,
    read_pem,
    require_current,
    require_issued,
    require_name,
    subject,
    transport_public_key_of,
    unissued,
)

AUTHORITY_LIFETIME = timedelta(days=3650)
MEMBER_LIFETIME = timedelta(days=398)
_RENEW = "renew it: securefl keys renew request, then securefl keys renew approve at the authority"
_MAKE_NEW = "make new keys"

_IDENTITY_USES: dict[Role, list[x509.ObjectIdentifier]] = {
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
    extensions = _identity_extensions(holder, public_key, ca.public_key)
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
        holder = _issued_to(
            name, certificate, lambda h: _identity_extensions(h, key, ca.public_key)
        )
    except UNREADABLE as error:
        raise CertificateRefused(f"no certificate of a member: {error}") from None
    if holder is None:
        raise CertificateRefused(f"{name}'s certificate is for no role of a consortium")
    return HolderCertificate(name, holder.role, key_id_of(key), key, certificate)


def _issued_to(
    name: str, certificate: x509.Certificate, extensions: Callable[[Holder], Extensions]
) -> Holder | None:
    """Return the holder of whose role the certificate's extensions are; None for no role's."""
    as_issued = (Holder(name, role) for role in ROLES)
    return next((holder for holder in as_issued if has(certificate, extensions(holder))), None)


def _authority_extensions(key: Ed25519PublicKey) -> Extensions:
    return [
        extension(x509.BasicConstraints(ca=True, path_length=0), critical=True),
        extension(key_usage("key_cert_sign", "crl_sign"), critical=True),
        extension(x509.SubjectKeyIdentifier.from_public_key(key)),
    ]


def _identity_extensions(
    holder: Holder, key: Ed25519PublicKey, issuer: Ed25519PublicKey
) -> Extensions:
    return leaf_extensions(_IDENTITY_USES[holder.role], alternative_name(holder), key, issuer)


INFO = b"SecureFL transport key 1"
SEED_BYTES = 48
"""Number of bytes of the seed: 128 bits over the curve's order, so that no key is favoured."""
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Number of points of P-256."""


def transport_key(identity: Ed25519PrivateKey) -> ec.EllipticCurvePrivateKey:
    """Derive the P-256 key: HKDF-SHA256 of the raw private key, then FIPS 186-5, A.2.1."""
    hkdf = HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=INFO)
    seed = int.from_bytes(hkdf.derive(identity.private_bytes_raw()), "big")
    return ec.derive_private_key(seed % (ORDER - 1) + 1, ec.SECP256R1())


_TRANSPORT_USES: dict[Role, list[x509.ObjectIdentifier]] = {
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "server": [ExtendedKeyUsageOID.SERVER_AUTH],
    # They call out to the server, as clients do.
    "authority": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "officer": [ExtendedKeyUsageOID.CLIENT_AUTH],
}
_IDENTITY = "urn:securefl:identity:"
_KEPT = 1024
"""Number of certificates whose holders are kept: a server asks for each caller's role often."""


@dataclass(frozen=True, slots=True)
class TransportCertificate(Holder):
    """A certificate found to be this consortium's for TLS; `require_current` checks its dates."""

    identity: str
    """Key id of the Ed25519 identity key that it is bound to."""
    public_key: EllipticCurvePublicKey = field(repr=False)
    certificate: x509.Certificate = field(repr=False)

    def require_current(self, at: datetime) -> None:
        """Raises CertificateExpired where the certificate is not valid at this time."""
        require_current(self.certificate, at, f"{self.name}'s certificate for TLS", way_out(self))

    def require_role(self, role: Role) -> None:
        """Raises CertificateRefused where the certificate is of another role."""
        require_role(self, role)

    def require_identity(self, identity: HolderCertificate) -> None:
        """Raises CertificateRefused where the certificate is not bound to this identity."""
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
    extensions = _transport_extensions(identity, identity.key_id, public_key, ca)
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
        holder = _issued_to(
            name, certificate, lambda h: _transport_extensions(h, identity, key, ca)
        )
    except (x509.ExtensionNotFound, *UNREADABLE) as error:
        raise CertificateRefused(f"no certificate for TLS: {error}") from None
    if holder is None:
        raise CertificateRefused(f"{name}'s certificate for TLS is for no role of a consortium")
    return TransportCertificate(name, holder.role, identity, key, certificate)


def _transport_extensions(
    holder: Holder, identity: str, key: EllipticCurvePublicKey, ca: ConsortiumAuthority
) -> Extensions:
    names = x509.SubjectAlternativeName(
        [
            x509.DNSName(host_of(holder.role)),
            x509.UniformResourceIdentifier(holder_uri(holder)),
            x509.UniformResourceIdentifier(_IDENTITY + identity),
        ]
    )
    return leaf_extensions(_TRANSPORT_USES[holder.role], names, key, ca.public_key)


def _identity_in(certificate: x509.Certificate) -> str:
    """Return the key id in the last of the alternative names."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = re.fullmatch(rf"{_IDENTITY}([0-9a-f]{{64}})", str(list(names)[-1].value))
    if found is None:
        raise ValueError("it is bound to no identity")
    return found.group(1)


@dataclass(frozen=True, slots=True)
class CertificateFile:
    """The certificates in an identity.crt, one PEM block each; nothing has vouched for them yet."""

    identity: x509.Certificate = field(repr=False)
    transport: x509.Certificate | None = field(repr=False)
    """Certificate for TLS; None in a file of an older release."""

    @classmethod
    def parse(cls, text: str) -> "CertificateFile":
        """Parse the PEM blocks; raises KeyFileError for a block not in its one form or too many."""
        blocks = pem_blocks(text)
        if len(blocks) > 2:
            raise KeyFileError(f"it holds {len(blocks)} certificates, and a party has two")
        identity, *more = map(read_pem, blocks)
        return cls(identity, more[0] if more else None)

    @property
    def text(self) -> str:
        """PEM text, the identity first."""
        return pem_of(self.identity) + (pem_of(self.transport) if self.transport else "")


def authority_certificate(text: str, ca: ConsortiumAuthority) -> HolderCertificate:
    """Return the certificate of the authority's identity in its file.

    Dates are not looked at.

    Raises:
        ForeignAuthority: one of the file's certificates was not issued by this authority.
        CertificateRefused: another role's, or one for TLS that is not bound to the identity.
        KeyFileError: no such file.
    """
    file = CertificateFile.parse(text)
    found = holder_certificate(file.identity, ca)
    found.require_role(AUTHORITY.role)
    if file.transport:
        transport_holder(file.transport, ca).require_identity(found)
    return found


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

"""Parts that all certificates of a consortium are made of and compared with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import NameOID

from securefl.errors import CertificateExpired, CertificateRefused, ForeignAuthority
from securefl.io.text import printable
from securefl_keys.certificate_text import UNREADABLE, strictly
from securefl_keys.holders import subject
from securefl_keys.member_names import require_name

CLOCK_SKEW = timedelta(hours=1)
"""A certificate begins so much earlier, for machines whose clock is behind."""
PublicKey: TypeAlias = Ed25519PublicKey | EllipticCurvePublicKey
Extensions: TypeAlias = list[x509.Extension[x509.ExtensionType]]
_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def lasting(at: datetime, lifetime: timedelta) -> tuple[datetime, datetime]:
    """Return the first and the last second of a certificate that is made at this time."""
    at = at.astimezone(UTC).replace(microsecond=0)
    return at - CLOCK_SKEW, at + lifetime


def unissued(
    name: str, key: PublicKey, extensions: Extensions, dates: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    """Build a certificate without its issuer."""
    first, last = dates
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(first)
        .not_valid_after(last)
    )
    for part in extensions:
        builder = builder.add_extension(part.value, part.critical)
    return builder


def leaf_extensions(
    uses: list[x509.ObjectIdentifier],
    names: x509.SubjectAlternativeName,
    key: PublicKey,
    issuer: Ed25519PublicKey,
) -> Extensions:
    """Return the extensions of a holder's certificate: all of them, in their order."""
    return [
        extension(x509.BasicConstraints(ca=False, path_length=None), critical=True),
        extension(key_usage("digital_signature"), critical=True),
        extension(x509.ExtendedKeyUsage(uses)),
        extension(names),
        extension(x509.SubjectKeyIdentifier.from_public_key(key)),
        extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer)),
    ]


def key_usage(*uses: str) -> x509.KeyUsage:
    """Return the extension that allows these uses alone."""
    return x509.KeyUsage(**{use: use in uses for use in _USES})


def extension(
    value: x509.ExtensionType, *, critical: bool = False
) -> x509.Extension[x509.ExtensionType]:
    """Return the extension with its identifier."""
    return x509.Extension(value.oid, critical, value)


def has(certificate: x509.Certificate, extensions: Extensions) -> bool:
    """Whether a certificate has these extensions, in this order, and no other."""
    return list(certificate.extensions) == extensions


def name_of(certificate: x509.Certificate) -> str:
    """Return the name that is the whole subject.

    Raises:
        ValueError: the subject holds something else.
        CertificateRefused: nobody may have that name.
    """
    with strictly():
        attributes = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(attributes[0].value) if attributes else ""
    if certificate.subject != subject(name or "?"):
        raise ValueError(f"its subject is {printable(certificate.subject.rfc4514_string())!r:.80}")
    require_name(name, CertificateRefused)
    return name


def require_issued(certificate: x509.Certificate, ca: x509.Certificate, consortium: str) -> None:
    """Raises ForeignAuthority where this certificate authority has not signed it."""
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, *UNREADABLE):
        raise ForeignAuthority(
            f"a certificate that consortium {consortium!r} has not issued, or that was changed"
        ) from None


def is_current(certificate: x509.Certificate, at: datetime) -> bool:
    """Whether it is valid at this time."""
    return certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc


def require_current(certificate: x509.Certificate, at: datetime, what: str, way_out: str) -> None:
    """Raises CertificateExpired where it is not valid at this time."""
    if not is_current(certificate, at):
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        raise CertificateExpired(
            f"{what} is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, and it is "
            f"{at.astimezone(UTC):%Y-%m-%d %H:%M}: {way_out}, or set this machine's clock"
        )

"""Certificates in their one form: subjects, PEM and DER, and the parts that all of them have."""

import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias, get_args
from urllib.parse import quote

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from securefl.crypto.artefact import digest
from securefl.errors import (
    CertificateExpired,
    CertificateRefused,
    ConfigError,
    ForeignAuthority,
    KeyFileError,
)
from securefl.io.text import can_name_a_folder, printable

Role = Literal["client", "server", "authority", "officer"]
ROLES: tuple[Role, ...] = get_args(Role)
MEMBER_ROLES: tuple[Role, ...] = ("client", "server", "officer")
"""Roles that join, and are listed in the roster."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Owner of a key: role and name."""

    name: str
    role: Role


AUTHORITY = Holder("authority", "authority")
"""Owner made with the consortium. No member may have its name."""


def subject(name: str) -> x509.Name:
    """Return the name as a certificate has it."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def alternative_name(holder: Holder) -> x509.SubjectAlternativeName:
    """Return role and name as a URI: a name need not be a host's, and any text can be a URI."""
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(holder_uri(holder))])


def holder_uri(holder: Holder) -> str:
    """Return role and name as a URN."""
    return f"urn:securefl:{holder.role}:{quote(holder.name, safe='')}"


MAX_NAME_BYTES = 64  # RFC 5280's bound for a common name
_BETWEEN = frozenset(" -_.,'@()&+")
_TOGETHER = dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"), "CJK")
"""Scripts that are written together, under the name that stands for all."""


def require_name(name: str, refusal: type[KeyFileError]) -> None:
    """Raises `refusal` unless the name is printable, in composed form, trimmed and short."""
    short = can_name_a_folder(name) and len(name.encode()) <= MAX_NAME_BYTES
    plain = name == name.strip() == unicodedata.normalize("NFC", name) and _of_one_script(name)
    if not (short and plain):
        raise refusal(
            f"{printable(name)!r:.100} cannot be a name: take 1 to {MAX_NAME_BYTES} bytes of "
            "printable text without / and without spaces around it, in the letters of one script"
        )


def _of_one_script(name: str) -> bool:
    """Return whether an eye can tell what it reads: one script, and no unseen letter."""
    scripts = set()
    for character in name:
        kind, (script, *said) = unicodedata.category(character), _called(character)
        if kind[0] in "LM" and "FILLER" not in said:
            scripts.add(_TOGETHER.get(script, script))
        elif character not in _BETWEEN and kind != "Nd":
            return False
    return len(scripts) <= 1


def _called(character: str) -> list[str]:
    """Return the words of the character's Unicode name: the script first."""
    return unicodedata.name(character, "NONE").split(" ")


def alike(name: str) -> str:
    """Return one key for names that an ear or an eye takes for one: 'Alice' and 'alice'."""
    return unicodedata.normalize("NFKC", name).casefold()


def key_id_of(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of the SubjectPublicKeyInfo, as other tools print it too."""
    return digest(key_info(key))


def key_info(key: Ed25519PublicKey | EllipticCurvePublicKey) -> bytes:
    """Return the SubjectPublicKeyInfo in DER."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def fingerprint_of(identity: Ed25519PublicKey, transport: EllipticCurvePublicKey | None) -> str:
    """Return the SHA-256 of both SubjectPublicKeyInfo, one after the other, or of the only one."""
    # Each has one length, 44 and 91 bytes, so no other pair of keys gives the same bytes.
    return digest(key_info(identity), b"" if transport is None else key_info(transport))


def readable(fingerprint: str) -> str:
    """Return a fingerprint in groups of four, to be read aloud."""
    return " ".join(fingerprint[i : i + 4] for i in range(0, len(fingerprint), 4))


def typed(text: str) -> str:
    """Parse a whole fingerprint as typed, with spaces or colons; raises ConfigError."""
    fingerprint = re.sub(r"[\s:]", "", text).lower()
    if not re.fullmatch(r"[0-9a-f]{64}", fingerprint):
        raise ConfigError(
            f"{text!r:.100} is no fingerprint: give all 64 hexadecimal digits, as they were read"
        )
    return fingerprint


UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    UserWarning,
)
"""Errors of `cryptography` for X.509 that it does not read, or reads for the last time."""

_ED25519 = bytes.fromhex("300506032b6570")
_BIT_STRING = bytes.fromhex("034100")


@contextmanager
def strictly() -> Iterator[None]:
    """Turn `cryptography`'s warnings, such as of serial numbers below one, into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def require_one_form(der: bytes, signed: bytes, signature: bytes) -> None:
    """Raises ValueError unless signed part, Ed25519's name and signature are the whole.

    A parser may take the bits around a signature in more forms than one.
    """
    if not der.endswith(signed + _ED25519 + _BIT_STRING + signature):
        raise ValueError("not in its one form")


def pem_blocks(text: str) -> list[str]:
    """Split a text before each block that follows another; nothing is checked."""
    return re.split(r"(?<=-----\n)(?=-----BEGIN )", text)


def read_pem(text: str) -> x509.Certificate:
    """Return a certificate read from its one text form; raises KeyFileError."""
    certificate = _read(x509.load_pem_x509_certificate, text.encode())
    if pem_of(certificate) != text:
        raise KeyFileError("not a certificate in its one form: it was changed")
    return certificate


def read_der(data: bytes) -> x509.Certificate:
    """Return a certificate read from its DER bytes; raises KeyFileError."""
    return _read(x509.load_der_x509_certificate, data)


def _read(load: Callable[[bytes], x509.Certificate], data: bytes) -> x509.Certificate:
    try:
        with strictly():
            certificate = load(data)
        signed, signature = certificate.tbs_certificate_bytes, certificate.signature
        require_one_form(der_of(certificate), signed, signature)
    except UNREADABLE:
        raise KeyFileError("no certificate, or a damaged one") from None
    return certificate


def public_key_of(certificate: x509.Certificate) -> Ed25519PublicKey:
    """Return the certified key; raises CertificateRefused for another algorithm than Ed25519."""
    try:
        key = certificate.public_key()
    except UNREADABLE:  # of an algorithm that `cryptography` does not know
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise CertificateRefused("its key is not Ed25519, as all of a consortium are")
    return key


def is_p256(key: object) -> bool:
    """Return whether it is a public key on P-256."""
    return isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)


def transport_public_key_of(certificate: x509.Certificate) -> EllipticCurvePublicKey:
    """Return the key in a transport certificate; raises CertificateRefused for another kind."""
    try:
        key = certificate.public_key()
    except UNREADABLE:  # of an algorithm that `cryptography` does not know
        key = None
    if not isinstance(key, EllipticCurvePublicKey) or not is_p256(key):
        raise CertificateRefused("its key is not P-256, as all transport keys are")
    return key


def der_of(certificate: x509.Certificate) -> bytes:
    """Return a certificate's DER bytes."""
    return certificate.public_bytes(Encoding.DER)


def pem_of(certificate: x509.Certificate) -> str:
    """Return a certificate's PEM text."""
    return certificate.public_bytes(Encoding.PEM).decode()


CLOCK_SKEW = timedelta(hours=1)
"""Time by which a certificate begins early, for machines whose clock is behind."""
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
    """Return whether a certificate has these extensions, in this order, and no other."""
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
    """Return whether a certificate is valid at this time."""
    return certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc


def require_current(certificate: x509.Certificate, at: datetime, what: str, way_out: str) -> None:
    """Raises CertificateExpired where the certificate is not valid at this time."""
    if not is_current(certificate, at):
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        raise CertificateExpired(
            f"{what} is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, and it is "
            f"{at.astimezone(UTC):%Y-%m-%d %H:%M}: {way_out}, or set this machine's clock"
        )

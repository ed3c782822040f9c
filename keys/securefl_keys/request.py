"""Signing requests: a name, a role and the public keys for them, signed with those keys.

Two PEM blocks say the same: the first of the Ed25519 identity key, the second of the P-256 key for
TLS. Who compares the fingerprint compares both keys.

An ECDSA signature has one form: DER, and of s and -s the smaller. Without the key nobody makes a
second signature of the same text. Its owner makes as many as it likes, each with another nonce.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from securefl.errors import RequestRefused
from securefl_keys.certificate_form import (
    MEMBER_ROLES,
    UNREADABLE,
    Holder,
    Role,
    alternative_name,
    fingerprint_of,
    is_p256,
    key_info,
    pem_blocks,
    require_name,
    require_one_form,
    strictly,
    subject,
)
from securefl_keys.certificates import ORDER, transport_key

_ECDSA_WITH_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")


def is_low(signature: bytes) -> bool:
    """Return whether s is at most half of the order; raises ValueError for no signature."""
    _, s = decode_dss_signature(signature)
    return s <= ORDER // 2


def require_one_ecdsa_form(der: bytes, signed: bytes, signature: bytes) -> None:
    """Raises ValueError unless signed part, ECDSA's name and signature are the whole."""
    one = encode_dss_signature(*decode_dss_signature(signature))
    bits = b"\x03" + bytes([len(one) + 1]) + b"\x00" + one
    if not (is_low(signature) and der.endswith(signed + _ECDSA_WITH_SHA256 + bits)):
        raise ValueError("not in its one form")


_DAMAGED = "no signing request in PEM, or a damaged one"


@dataclass(frozen=True, slots=True)
class JoinRequest(Holder):
    """A request to join; comparing the fingerprint tells whether it is its sender's."""

    public_key: Ed25519PublicKey = field(repr=False)
    transport_key: EllipticCurvePublicKey | None = field(repr=False)
    """Key for TLS; None in a request of an older release."""
    fingerprint: str
    """SHA-256 of the public keys. Each block's signature binds name and role to its key."""


def make_request(holder: Holder, key: Ed25519PrivateKey) -> str:
    """Make the request as PEM; raises RequestRefused for a name or a role that cannot join."""
    require_name(holder.name, RequestRefused)
    if holder.role not in MEMBER_ROLES:
        raise RequestRefused(f"nobody joins as {holder.role}: it is made with the consortium")
    builder = x509.CertificateSigningRequestBuilder(subject_name=subject(holder.name))
    builder = builder.add_extension(alternative_name(holder), critical=False)
    return _pem_of(builder.sign(key, algorithm=None)) + _pem_of(
        _signed_in_one_form(builder, transport_key(key))
    )


def _signed_in_one_form(
    builder: x509.CertificateSigningRequestBuilder, key: EllipticCurvePrivateKey
) -> x509.CertificateSigningRequest:
    # Anyone can turn (r, s) into (r, -s), and both verify: one half of all s is taken.
    while True:
        request = builder.sign(key, SHA256())
        if is_low(request.signature):
            return request


def read_request(text: str) -> JoinRequest:
    """Read the request in a file, signed by the keys that it is for; raises RequestRefused."""
    text = text.replace("\r\n", "\n")  # as mail programs leave it
    first, *more = pem_blocks(text)
    request, key = _identity_block(first)
    attributes = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(attributes[0].value) if attributes else ""
    require_name(name, RequestRefused)
    if request.subject != subject(name):
        raise RequestRefused(f"{name}: it asks for more than a name")
    holder = Holder(name, _role_in(list(request.extensions), name))
    if len(more) > 1:
        raise RequestRefused(f"{name}: it has {1 + len(more)} blocks, and a request has two")
    transport = _transport_key_in(more[0], holder) if more else None
    return JoinRequest(name, holder.role, key, transport, fingerprint_of(key, transport))


def _identity_block(text: str) -> tuple[x509.CertificateSigningRequest, Ed25519PublicKey]:
    request, key = _loaded(text)
    if not isinstance(key, Ed25519PublicKey):
        raise RequestRefused(
            "its key is not Ed25519: make it with: securefl keys join request NAME"
        )
    _require_signed(request, text, require_one_form)
    return request, key


def _transport_key_in(text: str, holder: Holder) -> EllipticCurvePublicKey:
    """Return the key of the second block, which must ask for what the first one asks for."""
    with _second_of(holder):
        request, key = _loaded(text)
        if not isinstance(key, EllipticCurvePublicKey) or not is_p256(key):
            raise RequestRefused(
                "its key is not P-256: make it with: securefl keys join request NAME"
            )
        _require_signed(request, text, require_one_ecdsa_form)
        if key_info(key) not in request.tbs_certrequest_bytes:
            raise RequestRefused("its key is not in its one form")
        asked = alternative_name(holder)
        extensions = [x509.Extension(asked.oid, critical=False, value=asked)]
        if request.subject != subject(holder.name) or list(request.extensions) != extensions:
            raise RequestRefused(f"it asks for something else than the {holder.role} of this name")
    return key


@contextmanager
def _second_of(holder: Holder) -> Iterator[None]:
    try:
        yield
    except RequestRefused as error:
        raise RequestRefused(f"{holder.name}: the second block, for TLS: {error}") from None


def _loaded(text: str) -> tuple[x509.CertificateSigningRequest, object]:
    try:
        with strictly():
            request = x509.load_pem_x509_csr(text.encode())
            key = request.public_key()
            list(request.extensions)
            request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except UNREADABLE:
        raise RequestRefused(_DAMAGED) from None
    return request, key


def _require_signed(
    request: x509.CertificateSigningRequest,
    text: str,
    require_form: Callable[[bytes, bytes, bytes], None],
) -> None:
    try:
        signed = request.is_signature_valid
        der = request.public_bytes(Encoding.DER)
        require_form(der, request.tbs_certrequest_bytes, request.signature)
    except UNREADABLE:
        raise RequestRefused(_DAMAGED) from None
    if not signed:
        raise RequestRefused("not signed by the key that it is for: it was changed under way")
    if _pem_of(request) != text:
        raise RequestRefused("not in its one form: it was changed under way")


def _pem_of(request: x509.CertificateSigningRequest) -> str:
    return request.public_bytes(Encoding.PEM).decode()


def _role_in(extensions: list[x509.Extension[x509.ExtensionType]], name: str) -> Role:
    if not extensions:
        raise RequestRefused(
            f"{name}: it names no role, as those of older versions: make it anew with: securefl "
            "keys join request NAME"
        )
    for role in MEMBER_ROLES:
        asked = alternative_name(Holder(name, role))
        if extensions == [x509.Extension(asked.oid, critical=False, value=asked)]:
            return role
    raise RequestRefused(
        f"{name}: it asks for something else than to be the client, server or officer of this name"
    )

"""A signing request: a name, a role and a public identity key, signed with that key."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from securefl.errors import RequestRefused
from securefl_keys.certificate_text import UNREADABLE, require_one_form, strictly
from securefl_keys.fingerprints import key_id_of
from securefl_keys.holders import MEMBER_ROLES, Holder, Role, alternative_name, subject
from securefl_keys.member_names import require_name


@dataclass(frozen=True, slots=True)
class JoinRequest(Holder):
    """What somebody asks for; whether it is them, comparing the fingerprint tells."""

    public_key: Ed25519PublicKey = field(repr=False)
    fingerprint: str
    """SHA-256 of the public key. The request's signature binds name and role to it."""


def make_request(holder: Holder, key: Ed25519PrivateKey) -> str:
    """The request as PEM; raises RequestRefused for a name or a role that cannot join."""
    require_name(holder.name, RequestRefused)
    if holder.role not in MEMBER_ROLES:
        raise RequestRefused(f"nobody joins as {holder.role}: it is made with the consortium")
    request = x509.CertificateSigningRequestBuilder(subject_name=subject(holder.name))
    request = request.add_extension(alternative_name(holder), critical=False)
    return request.sign(key, algorithm=None).public_bytes(Encoding.PEM).decode()


def read_request(text: str) -> JoinRequest:
    """The request in a file, signed by the key that it is for; raises RequestRefused."""
    text = text.replace("\r\n", "\n")  # as mail programs leave it
    try:
        with strictly():
            request = x509.load_pem_x509_csr(text.encode())
            key, extensions = request.public_key(), list(request.extensions)
            attributes = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if not isinstance(key, Ed25519PublicKey):
            raise RequestRefused(
                "its key is not Ed25519: make it with: securefl keys join request NAME"
            )
        signed = request.is_signature_valid
        der = request.public_bytes(Encoding.DER)
        require_one_form(der, request.tbs_certrequest_bytes, request.signature)
    except UNREADABLE:
        raise RequestRefused("no signing request in PEM, or a damaged one") from None
    if not signed:
        raise RequestRefused("not signed by the key that it is for: it was changed under way")
    if request.public_bytes(Encoding.PEM).decode() != text:
        raise RequestRefused("not in its one form: it was changed under way")
    name = str(attributes[0].value) if attributes else ""
    require_name(name, RequestRefused)
    if request.subject != subject(name):
        raise RequestRefused(f"{name}: it asks for more than a name")
    return JoinRequest(name, _role_in(extensions, name), key, key_id_of(key))


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
        f"{name}: it asks for something else than to be the client or the server of this name"
    )

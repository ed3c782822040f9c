"""Subjects of certificates: names, roles, and fingerprints that two people compare aloud."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from securefl.crypto.artefact import digest
from securefl.errors import ConfigError, KeyFileError
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

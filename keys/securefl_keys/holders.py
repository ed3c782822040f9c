"""Who somebody is in a consortium: a name and a role, which a certificate binds to a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import quote

from cryptography import x509
from cryptography.x509.oid import NameOID

Role = Literal["client", "server", "authority", "officer"]
ROLES: tuple[Role, ...] = get_args(Role)
MEMBER_ROLES: tuple[Role, ...] = ("client", "server", "officer")
"""Who joins, and is listed in the roster."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose key it is."""

    name: str
    role: Role


AUTHORITY = Holder("authority", "authority")
"""Made with the consortium. No member may have its name."""


def subject(name: str) -> x509.Name:
    """The name as a certificate has it."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def alternative_name(holder: Holder) -> x509.SubjectAlternativeName:
    """Role and name as a URI: a name need not be a host's, and as a URI any text can be one."""
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(holder_uri(holder))])


def holder_uri(holder: Holder) -> str:
    """Return role and name as a URN."""
    return f"urn:securefl:{holder.role}:{quote(holder.name, safe='')}"

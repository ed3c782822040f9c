"""Names of hosts in certificates for TLS: a role has one, wherever its process runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from securefl.network.trust import Role


def host_of(role: Role) -> str:
    """Return the DNS name in the transport certificate of whoever has this role."""
    return f"{role}.securefl"

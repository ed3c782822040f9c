"""Terms on which a client takes part in a round, which its signature binds.

A server may run a round twice, in two sessions. Where clients draw nothing, one that counted twice
or went on from another state in the second would show its values as the difference of two totals.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """One client's terms in one round."""

    times: int = 1
    """Number of times that the client counts."""
    since: int = 0
    """Last round in which it counted; it goes on from the state that it kept then."""

    def bind(self, digest: str) -> str:
        """Return the SHA-256, in hex, of the digest of what all were sent and of these terms.

        Empty for an empty digest: numbers and profiles are not summed.
        """
        if not digest:
            return ""
        text = f"SecureFL terms 1\0{digest} {self.times} {self.since}"
        return hashlib.sha256(text.encode()).hexdigest()

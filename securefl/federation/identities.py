"""The clients of a consortium, as a simulation plays them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.errors import ConfigError
from securefl.federation.message import Roster


@dataclass(frozen=True, slots=True)
class Identities:
    """Clients' own keys, and the roster that lists them. Only a simulation holds several keys."""

    keys: Mapping[str, Ed25519PrivateKey] = field(repr=False)
    roster: Roster

    @classmethod
    def ephemeral(cls, names: Collection[str]) -> Identities:
        """Fresh keys that live in memory and end with the process."""
        keys = {name: Ed25519PrivateKey.generate() for name in names}
        return cls(keys, Roster({name: key.public_key() for name, key in keys.items()}))

    def require(self, names: Collection[str]) -> None:
        """Raises ConfigError where these are not the clients whose keys they are."""
        if set(self.keys) != set(names):
            raise ConfigError(
                f"the identities are of {', '.join(sorted(self.keys)):.200}, and the clients "
                f"{', '.join(sorted(names)):.200}: name them alike, with data.names"
            )

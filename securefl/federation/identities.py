"""Identity keys of simulated clients, and their roster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.errors import ConfigError
from securefl.federation.message import Roster
from securefl.held import Held


@dataclass(frozen=True, slots=True)
class Identities(Held):
    """Secret keys of all clients and the roster that lists them; only a simulation has several."""

    keys: Mapping[str, Ed25519PrivateKey] = field(repr=False)
    roster: Roster

    @classmethod
    def ephemeral(cls, names: Collection[str]) -> Identities:
        """Generate keys that stay in memory and end with the process."""
        keys = {name: Ed25519PrivateKey.generate() for name in names}
        return cls(keys, Roster({name: key.public_key() for name, key in keys.items()}))

    def require(self, names: Collection[str]) -> None:
        """Raise ConfigError unless the keys are those of just these clients."""
        if set(self.keys) != set(names):
            raise ConfigError(
                f"the identities are of {', '.join(sorted(self.keys)):.200}, and the clients "
                f"{', '.join(sorted(names)):.200}: name them alike, with data.names"
            )

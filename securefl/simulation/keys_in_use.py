"""The key that sums travel under: changed between two rounds, before it wears out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from securefl.exchange.base import Adder, OpenedSum, Sealer
from securefl.exchange.ckks import CkksAdder, CkksSealer
from securefl.exchange.keyset import OpeningKeys, for_round
from securefl.exchange.policy import Policy
from securefl.federation.authority import Authority
from securefl.federation.server import SumRequest
from securefl.types import Kind, MessageSpec


@dataclass(slots=True)
class KeysInUse:
    """The parts of the key in use that clients, server and authority hold, and the authority."""

    kinds: frozenset[Kind]
    """The kinds that travel sealed."""
    sealers: dict[Kind, Sealer]
    """Sealers of all clients."""
    adders: dict[Kind, Adder]
    """Adders of the server."""
    authority: Authority
    policy: Policy
    max_clients: int
    keys: OpeningKeys

    def __post_init__(self) -> None:
        self.take(self.keys)

    def take(self, keys: OpeningKeys) -> None:
        """Make all use this key from now on."""
        self.keys = keys
        self.sealers |= dict.fromkeys(self.kinds, CkksSealer(keys.public))
        self.adders |= dict.fromkeys(self.kinds, CkksAdder(keys.adding))
        self.authority.opener = keys.opener(self.policy.flooding, self.max_clients)

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """Take the next key where this one could not open all of a round's sums.

        Raises:
            KeyWornOut: not even a fresh key could.
        """
        del round_number
        parameters = self.keys.public.parameters
        needed = sum(parameters.n_released(s.n_values) for s in specs if s.kind in self.kinds)
        keys = for_round(self.keys, needed, self.policy.flooding)
        if keys is not self.keys:
            self.take(keys)

    def open(self, request: SumRequest) -> OpenedSum:
        """See `Authority.open`."""
        return self.authority.open(request)

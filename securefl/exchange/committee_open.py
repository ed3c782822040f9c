"""The committee's side of the encrypted sum: every officer adds its share, then the total shows.

Clients seal and the server adds as ever, under the collective key. The combiner sees the total and
the shares; whoever opens alone would need all officers' keys.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from securefl.crypto.committee import OfficerKey
from securefl.crypto.committee_flood import Flood
from securefl.crypto.committee_public import Combiner
from securefl.crypto.decoding import Slots
from securefl.errors import ConfigError, Crafted, MessageRefused
from securefl.exchange.base import OpenedSum
from securefl.exchange.ckks import FORM
from securefl.exchange.decode_total import TotalDecoder, require_real
from securefl.exchange.releases import ReleaseCount, use_up


@dataclass(frozen=True, slots=True)
class Officer:
    """One member of the committee: gives its share of openings while its noise lasts."""

    key: OfficerKey = field(repr=False)
    flood: Flood
    count: ReleaseCount
    """The key's own, over its whole life."""
    rng: random.Random = field(default_factory=random.SystemRandom, repr=False)

    def shares(self, ciphertexts: Sequence[bytes]) -> list[bytes]:
        """One for each ciphertext of a total. All count as released, even if one is refused.

        Raises:
            KeyWornOut: more than this key may still open; nothing is released.
            MessageRefused: one is no ciphertext; nothing is released.
        """
        slots = self.key.parameters.poly_degree // 2
        self.count.spend(len(ciphertexts) * slots, self.flood.releases)
        return [self.key.opening_share(c, self.flood, self.rng) for c in ciphertexts]

    def stop(self) -> None:
        """Give no share under this key any more."""
        use_up(self.count, self.flood.releases)


@dataclass(frozen=True, slots=True)
class CommitteeOpener:
    """Opens totals with all officers of a committee, here in one process.

    The values err by the officers' noise, `flood.opened_deviation` in the weighted sum before it is
    divided by its weight.

    Raises:
        ConfigError: not as many officers as the noise is sized for.
    """

    officers: tuple[Officer, ...]
    combiner: Combiner
    flood: Flood
    key_id: str
    """Of the collective key."""
    epoch: int

    def __post_init__(self) -> None:
        counts = {len(self.officers), self.combiner.n_officers, self.flood.n_officers}
        if len(counts) > 1:
            raise ConfigError(f"officers, combiner and noise are for {sorted(counts)} officers")

    @property
    def form(self) -> str:
        """The only encoding that it opens."""
        return FORM

    def open(self, total: bytes, n_values: int, precision_bits: int) -> OpenedSum:
        """Σ p_i x_i with the weight and the count that the ciphertexts themselves carry.

        Raises:
            KeyWornOut: an officer's noise is used up.
            Crafted: its slots are not real, by more than the officers' noise, or a share is wrong;
                no officer opens anything more under this key.
            MessageRefused: wrong length, or no honest sum (`TotalDecoder.decode`): an officer's
                share may be wrong, too.
        """
        slots, flood = self._combined(total, n_values), self.flood
        try:
            require_real(slots, flood.opened_deviation)
        except Crafted as error:
            for officer in self.officers:
                officer.stop()
            raise Crafted(f"{error}; or an officer's share is wrong") from error
        decoder = TotalDecoder(self.combiner.parameters, flood.max_clients, flood.opened_deviation)
        try:
            return decoder.decode(slots.real, n_values, precision_bits)
        except MessageRefused as error:
            raise MessageRefused(f"{error}; or an officer's share is wrong") from error

    def _combined(self, total: bytes, n_values: int) -> Slots:
        """Shape (ciphertexts, N/2), with all officers' noise."""
        frame, count = self.combiner.frame, self.combiner.parameters.n_ciphertexts(n_values)
        ciphertexts = frame.chunks(total, count)
        shares = [officer.shares(ciphertexts) for officer in self.officers]
        return np.stack(
            [self.combiner.slots(c, of_c) for c, *of_c in zip(ciphertexts, *shares, strict=True)]
        )

"""The committee's side of the encrypted sum: every officer adds its share, then the total shows.

Clients seal and the server adds as ever, under the collective key. The combiner sees the total and
the shares; whoever opens alone would need all officers' keys.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from securefl.crypto.committee import OfficerKey
from securefl.crypto.committee_flood import Flood
from securefl.crypto.committee_public import (
    CONTRIBUTION_BYTES,
    CollectiveKey,
    Combiner,
    commitment,
    common_polynomial,
)
from securefl.crypto.params import BOOKKEEPING_SLOTS
from securefl.crypto.ring import split_payload
from securefl.errors import ConfigError, MessageRefused
from securefl.exchange.base import OpenedSum, Values
from securefl.exchange.ckks import FORM
from securefl.exchange.ckks_open import rounded
from securefl.exchange.releases import MemoryCount, ReleaseCount


@dataclass(frozen=True, slots=True)
class Officer:
    """One member of the committee: gives its share of openings while its noise lasts."""

    key: OfficerKey = field(repr=False)
    flood: Flood
    count: ReleaseCount
    """The key's own, of `flood.max_releases` ciphertexts over its whole life."""
    rng: random.Random = field(default_factory=random.SystemRandom, repr=False)

    def shares(self, ciphertexts: Sequence[bytes]) -> list[bytes]:
        """One for each ciphertext of a total. All count as released, even if one is refused.

        Raises:
            KeyWornOut: more than this key may still open; nothing is released.
            MessageRefused: one is no ciphertext; nothing is released.
        """
        self.count.spend(len(ciphertexts), self.flood.max_releases)
        return [self.key.opening_share(c, self.flood, self.rng) for c in ciphertexts]


@dataclass(frozen=True, slots=True)
class CommitteeOpener:
    """Opens totals with all officers of a committee, here in one process.

    The values err by the officers' noise, `flood.opened_deviation` in the weighted sum before it is
    divided by its weight, and the weight errs by as much.

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
            MessageRefused: wrong length, a count that is no whole number (an officer's share is
                wrong, another key, or rubbish), or more clients than the noise is sized for.
        """
        parameters = self.combiner.parameters
        count = parameters.n_ciphertexts(n_values)
        ciphertexts = split_payload(total, parameters.ciphertext_bytes, count)
        shares = [officer.shares(ciphertexts) for officer in self.officers]
        slots = np.stack(
            [self.combiner.slots(c, of_c) for c, *of_c in zip(ciphertexts, *shares, strict=True)]
        )
        return self._read(slots, n_values, precision_bits)

    def _read(self, slots: Values, n_values: int, precision_bits: int) -> OpenedSum:
        weights, ones = slots[:, -BOOKKEEPING_SLOTS], slots[:, -1]
        tolerance = self.flood.tolerance
        n_clients = int(np.rint(ones[0])) if np.isfinite(slots).all() else 0
        if not 1 <= n_clients <= self.flood.max_clients or any(abs(ones - n_clients) > tolerance):
            raise MessageRefused(
                "the total does not count its clients: an officer's share is wrong, it is sealed "
                f"under another key, a client sent rubbish, or they are more than "
                f"{self.flood.max_clients}"
            )
        weight = float(rounded(weights.mean(), precision_bits))
        if not tolerance < weight <= 1 + tolerance or np.ptp(weights) > 2 * tolerance:
            raise MessageRefused(
                f"the total's weights are not in ({tolerance:.2g}, 1]: a client sent rubbish, or "
                "too few came for the noise"
            )
        weight = min(weight, 1.0)
        sums = slots[:, :-BOOKKEEPING_SLOTS].ravel()[:n_values]
        values = rounded(sums / weight, precision_bits)
        largest = self.combiner.parameters.max_value
        if np.abs(values).max() > (largest + tolerance) * (1 + tolerance / weight):
            raise MessageRefused("the total is larger than any mean can be: a client sent rubbish")
        return OpenedSum(values, weight, n_clients)


@dataclass(frozen=True, slots=True)
class Committee:
    """All parts of a committee's key. Only a simulation holds them together."""

    officers: tuple[Officer, ...] = field(repr=False)
    collective: CollectiveKey
    flood: Flood

    @classmethod
    def ephemeral(cls, flood: Flood) -> Committee:
        """The whole ceremony in one process: contributions, then commitments, then shares."""
        keys = [OfficerKey.generate(flood.parameters) for _ in range(flood.n_officers)]
        contributions = [os.urandom(CONTRIBUTION_BYTES) for _ in keys]
        common = common_polynomial(contributions, flood.parameters)
        shares = [key.public_share(common) for key in keys]
        commitments = [commitment(share) for share in shares]
        collective = CollectiveKey.assembled(common, commitments, shares, flood.parameters)
        officers = tuple(Officer(key, flood, MemoryCount()) for key in keys)
        return cls(officers, collective, flood)

    def opener(self) -> CommitteeOpener:
        """All officers at one table."""
        combiner = Combiner(self.flood.n_officers, self.flood.parameters)
        public = self.collective.public
        return CommitteeOpener(self.officers, combiner, self.flood, public.key_id, public.epoch)

"""A committee's key of sums, all parts of it together, as only a simulation has them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from securefl.crypto.committee import OfficerKey
from securefl.crypto.committee_flood import Flood
from securefl.crypto.committee_public import (
    CONTRIBUTION_BYTES,
    CollectiveKey,
    Combiner,
    commitment,
    common_polynomial,
)
from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.errors import ConfigError
from securefl.exchange.committee_open import CommitteeOpener, Officer
from securefl.exchange.policy import Flooding, Policy
from securefl.exchange.releases import MemoryCount, ReleaseCount, require_ephemeral


@dataclass(frozen=True, slots=True)
class Committee:
    """In a `KeySet`'s place: the officers' keys, each with its count, and the collective key."""

    members: tuple[tuple[OfficerKey, ReleaseCount], ...] = field(repr=False)
    public: PublicKey
    adding: AddingContext
    successor: Callable[[], Committee]
    """Makes the key of the next epoch, once this one has released what its noise hides."""
    policy: Policy | None = None
    """Of the consortium whose key it is; None where there is none."""
    seed: int | None = None
    """Of the officers' noise, in a simulation alone; None: nobody can repeat it."""

    def __post_init__(self) -> None:
        for _, count in self.members:
            require_ephemeral(count, self.seed)

    @property
    def n_released(self) -> int:
        """Values that the officer who has opened most has helped to release."""
        return max(count.n_released for _, count in self.members)

    def opener(self, flooding: Flooding | None, max_clients: int) -> CommitteeOpener:
        """All officers at one table; their noise is sized for so many clients.

        Raises:
            ConfigError: no flooding, without which one share is its officer's key, or one that
                leaves no room to count clients.
        """
        if flooding is None:
            raise ConfigError("a committee needs a policy with flooding: a bare share is a key")
        parameters, n_officers = self.public.parameters, len(self.members)
        bits, releases = flooding.statistical_bits, flooding.releases
        flood = Flood(parameters, n_officers, max_clients, bits, releases)
        officers = tuple(
            Officer(key, flood, count, self._rng(number))
            for number, (key, count) in enumerate(self.members)
        )
        combiner = Combiner(n_officers, parameters)
        return CommitteeOpener(officers, combiner, flood, self.public.key_id, self.public.epoch)

    def _rng(self, officer: int) -> random.Random:
        if self.seed is None:
            return random.SystemRandom()
        return random.Random(f"{self.seed}/{self.public.epoch}/{officer}")  # noqa: S311  (by name)

    @classmethod
    def ephemeral(
        cls,
        n_officers: int,
        parameters: CkksParameters = SUMS,
        epoch: int = 1,
        seed: int | None = None,
    ) -> Committee:
        """The whole ceremony in one process: contributions, then commitments, then shares.

        The keys live in memory and end with the process. Raises ConfigError for a committee of one.
        """
        keys = [OfficerKey.generate(parameters) for _ in range(n_officers)]
        contributions = [os.urandom(CONTRIBUTION_BYTES) for _ in keys]
        common = common_polynomial(contributions, parameters)
        shares = [key.public_share(common) for key in keys]
        commitments = [commitment(share) for share in shares]
        made = CollectiveKey.assembled(common, commitments, shares, parameters, epoch)
        return cls(
            tuple((key, MemoryCount()) for key in keys),
            made.public,
            made.adding,
            lambda: cls.ephemeral(n_officers, parameters, epoch + 1, seed),
            seed=seed,
        )

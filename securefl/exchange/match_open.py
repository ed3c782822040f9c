"""The authority's side of the encrypted match: decrypt, flood, round."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ldexp

from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.crypto.match_secret import MatchSecretKey
from securefl.errors import MessageRefused
from securefl.exchange.match_ckks import EXPONENT, form_name
from securefl.exchange.match_flood import flood_deviation, grid_bits
from securefl.exchange.match_forms import MatchForm
from securefl.exchange.releases import MemoryBudget, ReleaseBudget


@dataclass(frozen=True, slots=True)
class CkksScoreOpener:
    """Opens scores while the budget lasts."""

    match_form: MatchForm
    secret_key: MatchSecretKey
    budget: ReleaseBudget
    rng: random.Random = field(default_factory=random.SystemRandom, repr=False)

    @property
    def form(self) -> str:
        """The only encoding that it opens."""
        return form_name(self.match_form)

    @property
    def key_id(self) -> str:
        """The key that it opens with."""
        return self.secret_key.key_id

    def open(self, scores: Sequence[bytes]) -> list[float | None]:
        """TEMP"""
        self.budget.spend(len(scores))
        return [self._released(score) for score in scores]

    def _released(self, score: bytes) -> float | None:
        if len(score) < EXPONENT.size:
            return None
        (exponent,) = EXPONENT.unpack_from(score)
        try:
            normalised = self.secret_key.score(score[EXPONENT.size :])
        except MessageRefused:
            return None
        parameters = self.secret_key.parameters
        bits = grid_bits(parameters)
        flooded = normalised + self.rng.gauss(0, flood_deviation(parameters))
        return ldexp(round(ldexp(flooded, bits)), exponent - bits)


@dataclass(frozen=True, slots=True)
class MatchKeys:
    """TEMP"""

    secret: MatchSecretKey = field(repr=False)
    public: MatchPublicKey
    scoring: ScoringContext
    budget: ReleaseBudget

    @classmethod
    def ephemeral(cls, form: MatchForm) -> MatchKeys:
        secret = MatchSecretKey.generate(form.parameters)
        return cls(secret, secret.public_key(), secret.scoring_context(), MemoryBudget())

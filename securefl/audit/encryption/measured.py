"""What encryption is worth: security by the standard's table, precision as measured, the flooding.

Values are sealed, added and opened through the channels that runs use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from securefl.audit.tracing.seen_layers import Array
from securefl.build.training import equal_weight
from securefl.crypto.committee_flood import Flood
from securefl.crypto.match_params import MatchParameters
from securefl.crypto.params import MAX_MODULUS_BITS, SUMS, CkksParameters
from securefl.exchange.ckks import CkksAdder, CkksSealer
from securefl.exchange.committee import Committee
from securefl.exchange.keyset import KeySet, OpeningKeys
from securefl.exchange.match_ckks import EXPONENT, CkksMatcher, CkksProfileSealer
from securefl.exchange.match_flood import MAX_RELEASES, STATISTICAL_BITS, flood_deviation
from securefl.exchange.match_forms import MatchForm
from securefl.exchange.match_open import CkksScoreOpener, MatchKeys
from securefl.exchange.policy import Flooding, Policy
from securefl.exchange.profile import Profile, divergence

UNROUNDED_BITS = 52
"""Bits after the point beyond which doubles around one have none."""
PROFILE_ELEMENTS, N_PROFILES = 64, 8


@final
@dataclass(frozen=True, slots=True)
class Security:
    """A parameter set's row in the Homomorphic Encryption Standard's table."""

    what: str
    poly_degree: int
    """N."""
    modulus_bits: tuple[int, ...]

    @property
    def total_bits(self) -> int:
        """log₂ q, the special prime included."""
        return sum(self.modulus_bits)

    @property
    def limits(self) -> tuple[int, ...]:
        """The largest log₂ q of this N at each level."""
        return tuple(by_degree[self.poly_degree] for by_degree in MAX_MODULUS_BITS.values())

    @property
    def bits(self) -> int:
        """The highest level that the table grants; 0 where it grants none.

        Albrecht et al., Homomorphic Encryption Standard, 2018, Table 1: ternary secret, classical
        attacker.
        """
        granted = (
            level
            for level, by_degree in MAX_MODULUS_BITS.items()
            if self.total_bits <= by_degree.get(self.poly_degree, 0)
        )
        return max(granted, default=0)


@final
@dataclass(frozen=True, slots=True)
class Precision:
    """Below which 99 of 100 errors of opened values within ±1 stay; NaN where none was measured."""

    unflooded: float
    flooded: float
    released: float
    """Flooded and rounded, as the policy says."""
    bare: bool = False
    """Whether `unflooded` is of one authority's key, as a committee opens nothing unflooded."""


def precision_bits(error: float) -> int:
    """Whole bits after the point that are right."""
    return math.floor(-math.log2(error))


def sum_precision(
    policy: Policy,
    n_clients: int,
    committee: int,
    rng: np.random.Generator,
    n_ciphertexts: int = 2,
) -> Precision:
    """Of the mean of random values of n clients that weigh alike, under fresh keys."""
    keys: KeySet | Committee = Committee.ephemeral(committee) if committee else KeySet.ephemeral()
    bits = min(rule.precision_bits for rule in policy.rules)
    flooding, slots = policy.flooding, SUMS.poly_degree // 2
    if flooding:
        # What a key may release bounds what can be measured with it.
        n_ciphertexts = max(1, min(n_ciphertexts, flooding.releases // slots))
    values_KV = rng.uniform(-1, 1, (n_clients, n_ciphertexts * SUMS.values_per_ciphertext))
    return Precision(
        unflooded=_error(KeySet.ephemeral(), None, values_KV, UNROUNDED_BITS),
        flooded=_error(keys, flooding, values_KV, UNROUNDED_BITS) if flooding else math.nan,
        released=_error(keys.successor(), flooding, values_KV, bits),
        bare=bool(committee),
    )


def _error(keys: OpeningKeys, flooding: Flooding | None, values_KV: Array, bits: int) -> float:
    """Sealed, added and opened."""
    sealer, running = CkksSealer(keys.public), CkksAdder(keys.adding).start(values_KV.shape[1])
    weight = equal_weight(len(values_KV))
    for values in values_KV:
        running = running.plus(sealer.seal(values, weight))
    opener = keys.opener(flooding, len(values_KV))
    opened = opener.open(running.total(), values_KV.shape[1], bits)
    return _most(opened.values - values_KV.mean(axis=0))


def _most(errors: Array) -> float:
    """What 99 of 100 errors stay below: the largest would be another one in each audit."""
    return float(np.quantile(np.abs(errors), 0.99))


def score_precision(form: MatchForm, rng: np.random.Generator) -> Precision:
    """Of the divergence of random profiles of unit size from a baseline, under a fresh key."""
    keys = MatchKeys.ephemeral(form)
    sealer, matcher = CkksProfileSealer(form, keys.public), CkksMatcher(form, keys.scoring)
    opener = CkksScoreOpener(form, keys.secret, keys.count)
    baseline, *profiles = (_profile(rng) for _ in range(N_PROFILES + 1))
    scores = [matcher.match(sealer.seal(profile), baseline) for profile in profiles]
    truth = np.array([divergence(profile, baseline) for profile in profiles])
    bare = [
        math.ldexp(keys.secret.score(score[EXPONENT.size :]), *EXPONENT.unpack_from(score))
        for score in scores
    ]
    released = [math.nan if score is None else score for score in opener.open(scores)]
    unflooded, flooded = (_most(found - truth) for found in (bare, released))
    return Precision(unflooded, math.nan, flooded)


def _profile(rng: np.random.Generator) -> Profile:
    mean_Q, variance_Q = rng.normal(size=PROFILE_ELEMENTS), rng.uniform(0.5, 2, PROFILE_ELEMENTS)
    return Profile(torch.from_numpy(mean_Q), torch.from_numpy(variance_Q), 0)


@final
@dataclass(frozen=True, slots=True)
class Margin:
    """The flooding, and what it drowns."""

    what: str
    noise: float
    """t, that an opened value errs by before it."""
    deviation: float
    """σ, of the noise that hides t: for a committee, each officer's."""
    statistical_bits: int
    """s, that σ is made for."""
    releases: int
    """τ, values that one key may release."""
    of_scores: bool = False
    """Whether it hides a key of profile matches."""

    @property
    def ratio_bits(self) -> float:
        """log₂(σ / t)."""
        return math.log2(self.deviation / self.noise)

    def statistical_bits_after(self, released: int) -> float:
        """What s is after so many releases: σ = √(12 τ) 2^(s/2) t, solved for s."""
        return 2 * math.log2(self.deviation / (self.noise * math.sqrt(12 * max(released, 1))))


def sum_margin(flooding: Flooding, n_clients: int, committee: int) -> Margin:
    """For totals of at most so many clients."""
    bits, releases = flooding.statistical_bits, flooding.releases
    if committee:
        flood = Flood(SUMS, committee, n_clients, bits, releases)
        what = f"sums, each of {committee} officers"
        return Margin(what, flood.noise, flood.slot_deviation, bits, releases)
    noise = SUMS.noise(n_clients)
    return Margin("sums", noise, flooding.deviation(noise), bits, releases)


def score_margin(form: MatchForm) -> Margin:
    """For scores before their power of two."""
    noise, deviation = form.parameters.noise, flood_deviation(form.parameters)
    return Margin("scores of profiles", noise, deviation, STATISTICAL_BITS, MAX_RELEASES, True)


def security_of(what: str, parameters: CkksParameters | MatchParameters) -> Security:
    """Of a parameter set."""
    return Security(what, parameters.poly_degree, parameters.modulus_bits)

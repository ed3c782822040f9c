"""What encryption is worth: security by table and estimate, precision as measured, the flooding.

Values are sealed, added and opened through the channels that runs use.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from securefl.audit.tracing.seen_layers import Array
from securefl.build.training import equal_weight
from securefl.crypto.derived import SEED_BYTES
from securefl.crypto.match_params import MatchParameters
from securefl.crypto.params import MAX_MODULUS_BITS, SUMS, SumParameters
from securefl.exchange.base import MessageId, Sender
from securefl.exchange.decode_total import UNROUNDED_BITS
from securefl.exchange.keyset import KeySet
from securefl.exchange.match_ckks import EXPONENT, CkksMatcher, CkksProfileSealer
from securefl.exchange.match_flood import MAX_RELEASES, STATISTICAL_BITS, flood_deviation
from securefl.exchange.match_forms import MatchForm
from securefl.exchange.match_open import CkksScoreOpener, MatchKeys
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.policy import Policy
from securefl.exchange.profile import Profile, divergence
from securefl.exchange.quorum import Quorum

PROFILE_ELEMENTS, N_PROFILES = 64, 8
_RUN = "0" * 64
_OF_NORMAL = 2.576
"""Standard deviations that 99 of 100 draws of a normal distribution stay within."""


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """Bits of security of one-time keys by lattice-estimator, attacks as by MATZOV (2022).

    Of `SUMS`: N = 2048, 52 bits, keys and errors of standard deviation 3.24.
    """

    sums_known: float = 134.0
    """The sums of keys and of errors are known: plain RLWE of standard deviation 2.29, by our own
    hybrid argument, which nobody has reviewed."""
    by_theorem: float = 131.5
    """The same by Hint-LWE's theorem for Gaussian keys, whose constant is σ/2."""
    no_hint: float = 137.0
    """No sum is known."""


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
    """Below which 99 of 100 errors of opened values within ±1 stay."""

    exact: float
    """Error before rounding, and of scores before the flooding."""
    released: float
    """Error of what is released: rounded as the policy says, and of scores flooded."""


def precision_bits(error: float) -> int:
    """Whole bits after the point that are right."""
    return math.floor(-math.log2(error))


def sum_precision(
    policy: Policy,
    n_clients: int,
    quorum: Quorum,
    rng: np.random.Generator,
    n_ciphertexts: int = 2,
) -> Precision:
    """Of the mean of random values of n clients that weigh alike, under fresh keys."""
    bits = min(rule.precision_bits for rule in policy.rules)
    values_KV = rng.uniform(-1, 1, (n_clients, n_ciphertexts * SUMS.values_per_ciphertext))
    exact, released = (
        _error(KeySet.ephemeral(quorum), values_KV, b) for b in (UNROUNDED_BITS, bits)
    )
    return Precision(exact, released)


def sum_noise(n_clients: int) -> float:
    """Return the same of that mean before rounding, as the parameters have it: 2.6 σ / Σ w."""
    return _OF_NORMAL * SUMS.noise(n_clients) / (n_clients * equal_weight(n_clients))


def _error(keys: KeySet, values_KV: Array, bits: int) -> float:
    """Sealed, added and opened."""
    about = MessageId(_RUN, 1, "precision", values_KV.shape[1])
    sealer, opener = OneTimeSealer(keys.public), keys.opener()
    running, nonces = OneTimeAdder(keys.public).start(about.n_values), dict[str, str]()
    weight = equal_weight(len(values_KV))
    for number, values in enumerate(values_KV):
        sender = Sender(f"client-{number + 1}", os.urandom(SEED_BYTES))
        opener.take_cards(_RUN, sender.name, keys.public.cards(_RUN, sender))
        payload, nonces[sender.name] = sealer.seal(values, weight, about, sender)
        running = running.plus(payload)
    opened = opener.open(running.total(), about, nonces, bits)
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
    return Precision(unflooded, flooded)


def _profile(rng: np.random.Generator) -> Profile:
    mean_Q, variance_Q = rng.normal(size=PROFILE_ELEMENTS), rng.uniform(0.5, 2, PROFILE_ELEMENTS)
    return Profile(torch.from_numpy(mean_Q), torch.from_numpy(variance_Q), 0)


@final
@dataclass(frozen=True, slots=True)
class Margin:
    """The flooding of scores, and what it drowns."""

    noise: float
    """t, that an opened value errs by before it."""
    deviation: float
    """σ, of the noise that hides t."""
    statistical_bits: int
    """s, that σ is made for."""
    releases: int
    """τ, values that one key may release."""

    @property
    def ratio_bits(self) -> float:
        """log₂(σ / t)."""
        return math.log2(self.deviation / self.noise)

    def statistical_bits_after(self, released: int) -> float:
        """What s is after so many releases: σ = √(12 τ) 2^(s/2) t, solved for s."""
        return 2 * math.log2(self.deviation / (self.noise * math.sqrt(12 * max(released, 1))))


def score_margin(form: MatchForm) -> Margin:
    """For scores before their power of two."""
    noise, deviation = form.parameters.noise, flood_deviation(form.parameters)
    return Margin(noise, deviation, STATISTICAL_BITS, MAX_RELEASES)


def security_of(what: str, parameters: SumParameters | MatchParameters) -> Security:
    """Of a parameter set."""
    bits = parameters.modulus_bits
    return Security(what, parameters.poly_degree, (bits,) if isinstance(bits, int) else bits)

"""Security of encryption by table and estimate, and its precision as measured.

Values are sealed, added or matched, and opened through the channels that runs use.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from securefl.audit.thresholds import LEAST_ERROR
from securefl.build.training import equal_weight
from securefl.crypto.derived import SEED_BYTES
from securefl.crypto.params import MATCHES, MAX_MODULUS_BITS, SUMS, RingParameters
from securefl.exchange.card_keys import Quorum
from securefl.exchange.decode_total import UNROUNDED_BITS
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.one_time_match import (
    MOMENT_UNIT,
    OneTimeMatcher,
    OneTimeProfileSealer,
)
from securefl.exchange.policy import Policy
from securefl.exchange.profile_match import Profile, divergence
from securefl.exchange.sums import MessageId, Sender, Values
from securefl.types import PROFILE

PROFILE_ELEMENTS = 64
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
    """Bits where sums of keys and errors are known: plain RLWE of deviation 2.29, by our own
    hybrid argument, which nobody has reviewed."""
    by_theorem: float = 131.5
    """Bits in the same case by Hint-LWE's theorem for Gaussian keys, whose constant is σ/2."""
    no_hint: float = 137.0
    """Bits where no sum is known."""


@final
@dataclass(frozen=True, slots=True)
class Security:
    """Row of a parameter set in the Homomorphic Encryption Standard's table."""

    what: str
    poly_degree: int
    """Ring degree N."""
    modulus_bits: int
    """Size of the modulus, log₂ q."""

    @property
    def limits(self) -> tuple[int, ...]:
        """Largest log₂ q of this N at each level."""
        return tuple(by_degree[self.poly_degree] for by_degree in MAX_MODULUS_BITS.values())

    @property
    def bits(self) -> int:
        """Highest level that the table grants; 0 where it grants none.

        Albrecht et al., Homomorphic Encryption Standard, 2018, Table 1: ternary secret, classical
        attacker.
        """
        granted = (
            level
            for level, by_degree in MAX_MODULUS_BITS.items()
            if self.modulus_bits <= by_degree.get(self.poly_degree, 0)
        )
        return max(granted, default=0)


@final
@dataclass(frozen=True, slots=True)
class Precision:
    """Bounds that 99 of 100 errors of opened values within ±1 stay below."""

    exact: float
    """Error before rounding."""
    released: float
    """Error of what is released: rounded as the policy says."""
    encryption: float
    """Error that encryption alone makes."""
    due: float
    """Error of encryption that the parameters promise."""

    @property
    def without_error(self) -> bool:
        """True where opened values are too exact for the error that hides keys."""
        return self.encryption < LEAST_ERROR * self.due


def precision_bits(error: float) -> int:
    """Return how many whole bits after the point are right."""
    return math.floor(-math.log2(error))


def sum_precision(
    policy: Policy,
    n_clients: int,
    quorum: Quorum,
    rng: np.random.Generator,
    n_ciphertexts: int = 2,
) -> Precision:
    """Return the precision of means over n clients that weigh alike, under fresh keys."""
    bits = min(rule.precision_bits for rule in policy.rules)
    values_KV = rng.uniform(-1, 1, (n_clients, n_ciphertexts * SUMS.values_per_ciphertext))
    exact, released = (
        _error(KeySet.ephemeral(quorum), values_KV, b) for b in (UNROUNDED_BITS, bits)
    )
    return Precision(exact, released, exact, sum_noise(n_clients))


def sum_noise(n_clients: int) -> float:
    """Return the error of that mean before rounding that the parameters promise: 2.6 σ / Σ w."""
    return _OF_NORMAL * SUMS.noise(n_clients) / (n_clients * equal_weight(n_clients))


def _error(keys: KeySet, values_KV: Values, bits: int) -> float:
    """Return the error of values that were sealed, added and opened."""
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


def _most(errors: Values) -> float:
    """Return what 99 of 100 errors stay below: the largest would be another one in each audit."""
    return float(np.quantile(np.abs(errors), 0.99))


def score_precision(
    policy: Policy, quorum: Quorum, rng: np.random.Generator, n_profiles: int = 16
) -> Precision:
    """Return the precision of scores of random profiles of unit size, under fresh keys.

    Encryption alone shows where a client's profile is the baseline itself: no weight's rounding is
    in its score.
    """
    bits = min(rule.precision_bits for rule in policy.rules)
    baseline, *profiles = (_profile(rng) for _ in range(n_profiles + 1))
    found, own = (
        _scores(KeySet.ephemeral(quorum), of, baseline)
        for of in (profiles, [baseline] * n_profiles)
    )
    truth = np.array([divergence(profile, baseline) for profile in profiles])
    released = np.ldexp(np.rint(np.ldexp(found, bits)), -bits)
    exact, rounded, encryption = map(_most, (found - truth, released - truth, own))
    return Precision(exact, rounded, encryption, score_noise(baseline))


def score_noise(baseline: Profile) -> float:
    """Return what encryption alone leaves of a score's precision, as the parameters have it.

    A score weighs 2q + 1 values, and of each all copies, whose slots err by themselves.
    """
    mean_Q, variance_Q, q = baseline.mean_Q.numpy(), baseline.variance_Q.numpy(), len(baseline)
    of_moments, of_means = MOMENT_UNIT / (2 * q * variance_Q), mean_Q / (q * variance_Q)
    weight = math.sqrt((of_moments**2).sum() + (of_means**2).sum() + 0.25)
    copies = max(1, MATCHES.poly_degree // (2 * q + 1))
    return _OF_NORMAL * MATCHES.noise * math.sqrt(MATCHES.poly_degree / 2 / copies) * weight


def _scores(keys: KeySet, profiles: Sequence[Profile], baseline: Profile) -> Values:
    """Return scores of profiles that one client seals in as many rounds, shape (profiles,)."""
    sealer, matcher = OneTimeProfileSealer(keys.public), OneTimeMatcher(keys.public)
    opener, sender = keys.opener(), Sender("client-1", os.urandom(SEED_BYTES))
    opener.take_cards(_RUN, sender.name, keys.public.cards(_RUN, sender))
    found = np.full(len(profiles), math.nan)
    for i, profile in enumerate(profiles):
        about = MessageId(_RUN, i + 1, PROFILE, 2 * len(profile))
        payload, nonce = sealer.seal(profile, about, sender)
        score = opener.score(matcher.match(payload, baseline), about, sender.name, nonce)
        found[i] = math.nan if score is None else score
    return found


def _profile(rng: np.random.Generator) -> Profile:
    mean_Q, variance_Q = rng.normal(size=PROFILE_ELEMENTS), rng.uniform(0.5, 2, PROFILE_ELEMENTS)
    return Profile(torch.from_numpy(mean_Q), torch.from_numpy(variance_Q), 0)


def security_of(what: str, parameters: RingParameters) -> Security:
    """Return a parameter set's row."""
    return Security(what, parameters.poly_degree, parameters.modulus_bits)

"""Clients, matcher and officers of a profile match, without a run around them."""

from __future__ import annotations

from itertools import count

import numpy as np
import torch
from ring_by_hand import untransformed

from securefl.crypto.one_time import OneTimeKey
from securefl.crypto.params import MATCHES
from securefl.exchange.officer import KeySet, OneTimeOpener
from securefl.exchange.one_time_match import OneTimeMatcher, OneTimeProfileSealer
from securefl.exchange.profile_match import Profile
from securefl.exchange.sums import MessageId, Sender
from securefl.types import PROFILE

RUN = "ab" * 32
N, PRIMES = MATCHES.poly_degree, (70368743587841, 70368743669761)
MODULUS = PRIMES[0] * PRIMES[1]
PRIME_COLUMN = np.array(PRIMES, np.uint64)[:, None]


def random_profile(q, rng, spread="uniform", version=0):
    """Draw means in ±3, variances in 1e-3..50, uniform or by order of magnitude."""
    draw = {
        "uniform": lambda: rng.uniform(1e-3, 50, q),
        "logarithmic": lambda: np.exp(rng.uniform(np.log(1e-3), np.log(50), q)),
    }
    mean_Q, variance_Q = rng.uniform(-3, 3, q), draw[spread]()
    return Profile(torch.from_numpy(mean_Q), torch.from_numpy(variance_Q), version)


def near(profile, rng, distance):
    """Draw a profile whose elements differ by about so many standard deviations."""
    mean_Q, variance_Q = profile.mean_Q.numpy(), profile.variance_Q.numpy()
    noise = rng.normal(scale=distance, size=(2, len(mean_Q)))
    moved = (
        np.clip(mean_Q + noise[0] * variance_Q**0.5, -3, 3),
        np.clip(variance_Q * np.exp(noise[1]), 1e-3, 50),
    )
    return Profile(*(torch.from_numpy(np.asarray(part)) for part in moved), profile.version)


def random_words(rng, *shape):
    """Draw words of polynomials: residues of each prime, shape (..., 2, N)."""
    return rng.integers(0, PRIME_COLUMN, (*shape, 2, N), np.uint64)


def numbers_of(words):
    """Return the numbers modulo both primes that residues of shape (2, ...) stand for."""
    first, second = (row.astype(object) for row in words)
    inverse = pow(PRIMES[0], -1, PRIMES[1])
    return first + PRIMES[0] * ((second - first) * inverse % PRIMES[1])


def words_of(numbers):
    """Return the residues of whole numbers, shape (2, ...)."""
    return np.stack([(numbers % prime).astype(np.uint64) for prime in PRIMES])


def coefficients_of(words):
    """Return a polynomial's coefficients modulo both primes, from its transform's words."""
    rows = [untransformed(row, prime) for row, prime in zip(words, PRIMES, strict=True)]
    return numbers_of(np.stack(rows))


def embedded(polynomial):
    """Return what a polynomial of small whole numbers is at SEAL's slots, as `Rows` have them."""
    around_zero = np.where(2 * polynomial > MODULUS, polynomial - MODULUS, polynomial)
    powers, place = [], 1
    for _ in range(N // 2):
        powers.append(place)
        place = place * 3 % (2 * N)
    roots = np.exp(1j * np.pi * np.outer(powers, np.arange(N)) / N)
    slots = roots @ around_zero.astype(float)
    return np.concatenate([slots.real, slots.imag])


class Parties:
    """Clients that have given their cards, the server's matcher, and the officers."""

    def __init__(self, quorum=None, names=("alice", "bob", "carol"), run=RUN):
        self.keys = KeySet.ephemeral(quorum)
        self.said = []
        self.opener = self.keys.opener(self.said.append)
        self.senders = {name: Sender(name, name.encode().ljust(32)) for name in names}
        for name, sender in self.senders.items():
            self.opener.take_cards(run, name, self.keys.public.cards(run, sender))
        self.sealer = OneTimeProfileSealer(self.keys.public)
        self.matcher = OneTimeMatcher(self.keys.public)
        self._rounds = count(1)

    def about(self, q, round_number=None):
        """Return a message of a round of its own: officers answer once."""
        return MessageId(RUN, round_number or next(self._rounds), PROFILE, 2 * q)

    def scores(self, profiles, baseline, name="alice"):
        """Return the scores of these profiles, each in a round of its own."""
        return np.array([self.score(profile, baseline, name) for profile in profiles])

    def score(self, profile, baseline, name="alice"):
        """Go all the way from one profile to its score."""
        about = self.about(len(profile))
        sealed = self.sealer.seal(profile, about, self.senders[name])
        score = self.matcher.match(sealed.payload, baseline)
        return self.opener.score(score, about, name, sealed.nonce)

    def key(self, sealed, about, name="alice"):
        """Return the key of a profile, as its client makes it."""
        secrets, nonce = self.keys.public.secrets(self.senders[name]), bytes.fromhex(sealed.nonce)
        return OneTimeKey.of(secrets, about.digest("profile"), name, nonce, MATCHES)

    def with_officer(self, number, instead):
        """Return the opener with another officer in the place of one."""
        officers = list(self.opener.officers)
        officers[number] = instead(officers[number])
        return self.with_officers(*officers)

    def with_officers(self, *officers):
        """Return the opener with these officers."""
        return OneTimeOpener(self.opener.keys, self.opener.combiner, officers)

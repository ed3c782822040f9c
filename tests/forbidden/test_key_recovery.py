"""Two openings and linear algebra give a key away, if both are under one key: so none are.

The attack of Li and Micciancio: an opening is C + a S, and whoever knows C, a and what it opens to
solves for S. The attacker is a client that crafts its ciphertexts, has everybody else's, and is
shown the slots of two totals as they are decrypted, unrounded, those that count and weigh as well.

Under the shared key that SecureFL had before, its algebra gave the secret key of all sums. Each
attack is run under one key, too, where it gives every coefficient.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from ring_by_hand import untransformed

from securefl.crypto.ciphertext_codec import packed, unpacked
from securefl.crypto.one_time import CipherSum, KeySum, OneTimeKey, ring
from securefl.crypto.params import BOOKKEEPING_SLOTS, SUMS
from securefl.exchange.sums import MessageId

N = SUMS.poly_degree
HALF, N_VALUES = N // 2, N - BOOKKEEPING_SLOTS
HONEST, ATTACKER = ("alice", "bob", "carol"), "mallory"
ABOUTS = [MessageId("ab" * 32, number, "update/mean", N_VALUES).digest() for number in (1, 2)]
"""Of the two totals: one of each round."""


class Attacker:
    """What takes no key. Polynomials are words modulo q, in the transform's order."""

    def __init__(self):
        self.ring = ring()
        (self.q,) = self.ring.primes

    def common(self, about):
        return self.ring.common_words(about, 0)[0].astype(object)

    def encoded(self, reals, scale_bits=SUMS.scale_bits):
        """The polynomial with these slots: real parts, then imaginary ones."""
        plain = self.ring._encoded(reals, 2.0**scale_bits)
        return np.array([plain[i] for i in range(N)], object)

    def transformed(self, key):
        zero_and_key = self.ring.key(key.coefficients)
        return np.array([zero_and_key[N + i] for i in range(N)], object)

    def coefficients(self, words):
        """Out of the transform, between -q/2 and q/2."""
        of = untransformed(words, self.q)
        return np.where(of > self.q // 2, of - self.q, of)

    def words(self, total):
        return unpacked(total, (1, 1, N), [self.q], "total")[0, 0].astype(object)

    def payload(self, words):
        return packed((words % self.q).astype(np.uint64).reshape(1, 1, N), [self.q])

    def inverse(self, words):
        return np.array([pow(int(word), -1, self.q) for word in words], object)

    def of_one(self, about, total, slots):
        """The key of a total, if these are its exact slots: (m - C) / a."""
        opened = self.encoded(slots)
        return self.coefficients(
            (opened - self.words(total)) * self.inverse(self.common(about)) % self.q
        )

    def of_two(self, abouts, totals, slots):
        """The key of two totals, if these are the exact real parts of their slots.

        With ¯ for X -> 1/X, which turns the order of the transform round, twice the real part is
        C + ¯C + a S + ¯a ¯S: two equations in S and ¯S at each pair of conjugate roots of unity.
        """
        rows = []
        for about, total, opened in zip(abouts, totals, slots, strict=True):
            sent, common = self.words(total), self.common(about)
            real = np.concatenate([opened[:HALF], np.zeros(HALF)])
            known = self.encoded(real, SUMS.scale_bits + 1) - sent - sent[::-1]
            rows.append([of[:HALF] for of in (common, common[::-1], known)])
        (a, b, u), (c, d, v) = rows
        inverse = self.inverse((a * d - b * c) % self.q)
        key, conjugate = (u * d - v * b) * inverse, (a * v - c * u) * inverse
        return self.coefficients(np.concatenate([key, conjugate[::-1]]) % self.q)


class Rounds:
    """Two totals of the same clients, and what nobody is told: their keys."""

    def __init__(self, *, one_key):
        rng = np.random.default_rng(4)
        self.attacker = Attacker()
        of_keys = [ABOUTS[0]] * 2 if one_key else ABOUTS
        self.keys = [
            {
                name: OneTimeKey.of([name.encode().ljust(32)], about, name, bytes([number] * 16))
                for name in (*HONEST, ATTACKER)
            }
            for about, number in zip(of_keys, (1, 1) if one_key else (1, 2), strict=True)
        ]
        self.sums = [KeySum.of(keys.values()) for keys in self.keys]
        self.sent = [
            {name: key.seal(rng.normal(0, 0.1, size=(1, N)), about) for name, key in keys.items()}
            for keys, about in zip(self.keys, ABOUTS, strict=True)
        ]
        self.totals = [self.total(number) for number in (0, 1)]

    def total(self, number, crafted=None):
        """The sum of a round, in which the attacker's message may be a crafted one."""
        total = CipherSum(1)
        for name, message in self.sent[number].items():
            total = total.plus(crafted if crafted and name == ATTACKER else message)
        return total.total()

    def opened(self, number, total):
        """All slots of a total, as the sum of its round's keys decrypts it."""
        return self.sums[number].open(total, ABOUTS[number], 1)[0]

    def honest_keys(self):
        """All that could be found: keys of the honest clients, and sums that have theirs."""
        keys = [key.coefficients for of in self.keys for name, key in of.items() if name in HONEST]
        whole = [of.coefficients for of in self.sums]
        own = [of[ATTACKER].coefficients for of in self.keys]
        return [*keys, *whole, *(s - k for s, k in zip(whole, own, strict=True))]

    def n_recovered(self, found):
        """Coefficients, of 2048, of the key that most are found of."""
        return max(int((found == key).sum()) for key in self.honest_keys())


def test_two_openings_under_one_key_show_all_of_it():
    """So it would be if a round's keys did not follow from what is sealed and from a nonce."""
    rounds = Rounds(one_key=True)
    opened = [rounds.opened(number, rounds.totals[number]) for number in (0, 1)]
    found = rounds.attacker.of_two(ABOUTS, rounds.totals, opened)
    assert np.array_equal(found, rounds.sums[0].coefficients)
    assert rounds.n_recovered(found) == N


def test_two_openings_show_no_coefficient_of_any_key():
    """The same algebra: two equations, but in four unknown polynomials."""
    rounds = Rounds(one_key=False)
    opened = [rounds.opened(number, rounds.totals[number]) for number in (0, 1)]
    found = rounds.attacker.of_two(ABOUTS, rounds.totals, opened)
    assert rounds.n_recovered(found) == 0


def test_an_exact_opening_shows_the_sum_of_its_keys_and_that_opens_no_other_total():
    """Imaginary parts hold values, too: one opening is enough for its own sum, which is used up."""
    rounds = Rounds(one_key=False)
    opened = rounds.opened(0, rounds.totals[0])
    found = rounds.attacker.of_one(ABOUTS[0], rounds.totals[0], opened)
    assert np.array_equal(found, rounds.sums[0].coefficients)
    whole = KeySum(found, SUMS)
    np.testing.assert_array_equal(whole.open(rounds.totals[0], ABOUTS[0], 1)[0], opened)
    other = whole.open(rounds.totals[1], ABOUTS[1], 1)[0]
    assert np.abs(other).max() > 100 * np.abs(rounds.opened(1, rounds.totals[1])).max()
    for name in HONEST:
        alone = whole.open(rounds.sent[0][name], ABOUTS[0], 1)[0]
        assert np.abs(alone).max() > 100 * np.abs(opened).max()


def directions():
    """P = 1/4 and i/4 in each slot."""
    quarters = np.full(HALF, 0.25)
    for real, imaginary in ((quarters, 0 * quarters), (0 * quarters, quarters)):
        yield np.concatenate([real, imaginary])


def solved(attacker, told):
    """4 (told of P = 1/4 - i told of P = i/4), by real parts: the polynomial that P was times."""
    real, imaginary = (opened[:HALF] for opened in told)
    encoded = attacker.encoded(np.concatenate([4 * real, -4 * imaginary]), 30)
    return np.rint(attacker.coefficients(encoded).astype(float) / 2**30)


def crafting(rounds, make):
    """What two rounds tell of totals in which the attacker has crafted its message by P."""
    told = []
    for number, reals in enumerate(directions()):
        total = rounds.total(number, make(number, rounds.attacker.encoded(reals)))
        told.append(rounds.opened(number, total))
    return solved(rounds.attacker, told)


def test_a_client_that_chose_its_second_polynomial_would_learn_the_key_of_two_openings():
    """Adding P to a ciphertext's own polynomial a makes C + a S one with P S in it, as before."""
    rounds = Rounds(one_key=True)
    attacker = rounds.attacker

    def make(number, added):
        """What the opener would add where it took a + P from the client."""
        of_all = attacker.transformed(rounds.sums[number])
        return attacker.payload(attacker.words(rounds.sent[number][ATTACKER]) + added * of_all)

    found = crafting(rounds, make)
    assert (found == rounds.sums[0].coefficients).sum() > 0.99 * N


@pytest.mark.parametrize("one_key", [False, True])
def test_a_client_that_crafts_its_one_polynomial_learns_nothing(one_key):
    """What it finds is its own P, under whichever keys: none of it is times a key."""
    rounds = Rounds(one_key=one_key)
    attacker = rounds.attacker

    def make(number, added):
        return attacker.payload(attacker.words(rounds.sent[number][ATTACKER]) + added)

    found = crafting(rounds, make)
    nothing = solved(attacker, directions())
    assert np.abs(found - nothing).max() <= 1  # of others' values
    by_chance = [int((nothing == key).sum()) for key in rounds.honest_keys()]
    assert rounds.n_recovered(found) <= max(by_chance) + N // 100


@pytest.mark.parametrize(("first", "second"), [*product(("P", "P s", "8000 P"), repeat=2)])
def test_crafting_leaves_the_algebra_as_blind_as_before(first, second):
    """Nor with P times the attacker's own key, or as large as opens: no coefficient is found."""
    rounds = Rounds(one_key=False)
    attacker, opened, totals = rounds.attacker, [], []
    for number, (how, reals) in enumerate(zip((first, second), directions(), strict=True)):
        own = attacker.transformed(rounds.keys[number][ATTACKER])
        factor = {"P": 1, "P s": own, "8000 P": 8000}[how]
        message = attacker.words(rounds.sent[number][ATTACKER])
        crafted = attacker.payload(message + attacker.encoded(reals) * factor)
        totals.append(rounds.total(number, crafted))
        opened.append(rounds.opened(number, totals[-1]))
        alone = attacker.of_one(ABOUTS[number], totals[-1], opened[-1])
        assert np.array_equal(alone, rounds.sums[number].coefficients)  # what opened it, as before
    assert rounds.n_recovered(attacker.of_two(ABOUTS, totals, opened)) == 0

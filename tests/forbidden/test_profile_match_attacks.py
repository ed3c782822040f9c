"""What is no score is not opened, and what is opened shows one number and no profile."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tenseal as ts
import torch
from match_parties import (
    MODULUS,
    PRIME_COLUMN,
    PRIMES,
    RUN,
    N,
    Parties,
    coefficients_of,
    embedded,
    near,
    random_profile,
    random_words,
)
from matching_runs import any_words, sealed_values
from reachability import reachable
from scipy import stats

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.ciphertext_codec import packed, unpacked
from securefl.crypto.derived import SEED_BYTES, group_secret
from securefl.crypto.one_time import (
    KeySum,
    OneTimeKey,
    polynomial_bytes,
    polynomial_in,
    ring,
    score_of,
)
from securefl.crypto.params import MATCHES, SUMS
from securefl.errors import MessageRefused, OpeningRefused, PeerError
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import Officer, OneTimeOpener
from securefl.exchange.one_time_match import (
    SCORE_BYTES,
    OneTimeMatcher,
    OneTimeProfileSealer,
    _rows,
    _values,
    _weights,
    split_score,
)
from securefl.exchange.profile_match import HEADER_BYTES, PlainMatch, Profile, divergence
from securefl.exchange.sums import Sender

Q = 64
FIRST = HEADER_BYTES + SEED_BYTES
"""Where a profile's ciphertexts begin."""


@pytest.fixture
def parties():
    return Parties()


def profiles(seed=0, q=Q):
    """One that is not far from the other, so that a score of it is not any number."""
    rng = np.random.default_rng(seed)
    baseline = random_profile(q, rng, version=3)
    return near(baseline, rng, 0.3), baseline


class Matched:
    """A profile sealed by a client, and the score that the server made of it."""

    def __init__(self, parties, profile, baseline, name="alice", round_number=None):
        self.parties, self.name = parties, name
        self.about = parties.about(len(profile), round_number)
        self.sealed = parties.sealer.seal(profile, self.about, parties.senders[name])
        self.score = parties.matcher.match(self.sealed.payload, baseline)
        self.exponent, self.constant, self.polynomial = split_score(self.score)

    def opened(self, opener=None, score=None, **changes):
        """What the officers open, of this score or of another in its place."""
        asked = {"about": self.about, "sender": self.name, "nonce": self.sealed.nonce} | changes
        return (opener or self.parties.opener).score(score or self.score, **asked)

    def words_by(self, key):
        """The constant that a key opens, modulo the prime: near zero where it fits."""
        return (self.constant + key.applied(polynomial_in(self.polynomial))) % MODULUS

    @property
    def key(self):
        return self.parties.key(self.sealed, self.about, self.name)


def is_uniform(numbers):
    """By Kolmogorov and Smirnov; an honest sample fails once in 10^6 runs.

    Of whole numbers modulo both primes, or of words, whose rows have a prime each.
    """
    found = np.asarray(numbers)
    if found.dtype == np.uint64:
        return all(map(_is_even, found / PRIME_COLUMN))
    return _is_even(found.astype(float) / MODULUS)


def _is_even(shares):
    return stats.kstest(shares, "uniform").pvalue > 1e-6


def replaced(payload, start, content):
    return payload[:start] + content + payload[start + len(content) :]


def with_words(parties, matched, change, baseline):
    """The score of the same payload with other ring elements."""
    payload = matched.sealed.payload
    words = unpacked(payload[FIRST:], (1, 2, N), PRIMES, "payload")
    changed = packed(change(words) % PRIME_COLUMN, PRIMES)
    return parties.matcher.match(payload[:FIRST] + changed, baseline)


# Whoever opens learns nothing of the server's weights.


def test_the_polynomial_of_a_score_is_uniform_to_whoever_opens_it(parties):
    """Of one baseline again and again: all of it, and what two scores have in common."""
    profile, baseline = profiles()
    several = [polynomial_in(Matched(parties, profile, baseline).polynomial) for _ in range(3)]
    assert all(is_uniform(one) for one in several)
    for one, other in pairwise(several):
        assert is_uniform((one + PRIME_COLUMN - other) % PRIME_COLUMN)


def weights_shown(matched, drawn):
    """The quotient of w a by the polynomial that follows from some bytes."""
    words = in_transforms_order(polynomial_in(matched.polynomial))
    quotients = [
        [int(w) * pow(int(a), -1, prime) % prime for w, a in zip(*rows, strict=True)]
        for *rows, prime in zip(words, ring(MATCHES).common_words(drawn, 0), PRIMES, strict=True)
    ]
    return coefficients_of(np.array(quotients, np.uint64))


def in_transforms_order(polynomial):
    of = ring(MATCHES)
    twice = of._ciphertext(np.stack([polynomial, polynomial]), transformed=False)
    of._evaluator.transform_to_ntt_inplace(twice)
    return np.array([twice[i] for i in range(2 * N)], np.uint64).reshape(2, N)


def test_without_the_clients_bytes_the_weights_are_hidden_and_with_them_they_are_not(parties):
    """The client sends them to the server alone; the header's fields are no substitute."""
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    drawn = matched.sealed.payload[HEADER_BYTES:FIRST]
    weights, _ = _weights(baseline)
    for seed in (matched.about.digest("profile"), bytes.fromhex(matched.sealed.nonce) * 2):
        assert is_uniform(weights_shown(matched, seed))
    shown = embedded(weights_shown(matched, drawn)) / 2.0**MATCHES.weight_bits
    shown[N // 2 :] *= -1
    np.testing.assert_allclose(shown, weights[0], rtol=0, atol=1e-4)


def test_nobody_but_the_server_is_sent_a_clients_bytes(parties):
    """Neither the score nor the header, which go on to the authority, holds them."""
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    drawn = matched.sealed.payload[HEADER_BYTES:FIRST]
    assert drawn in matched.sealed.payload
    assert drawn not in matched.score
    assert matched.sealed.nonce not in drawn.hex()


def test_bytes_and_nonces_are_drawn_anew_for_each_message(parties, monkeypatch):
    """They come from the operating system, whatever has been seeded.

    A copied machine with the same random bytes still uses no key for two profiles.
    """
    (profile, baseline), payloads = profiles(), []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 -- what a run might do
        torch.manual_seed(0)
        payloads.append(Matched(parties, profile, baseline, round_number=1).sealed)
    one, other = payloads
    assert one.payload[HEADER_BYTES:FIRST] != other.payload[HEADER_BYTES:FIRST]
    assert one.nonce != other.nonce
    monkeypatch.setattr(os, "urandom", lambda n: b"r" * n)
    one, other = (Matched(parties, of, baseline, round_number=1) for of in (profile, baseline))
    assert one.sealed.nonce != other.sealed.nonce
    assert (one.key.coefficients != other.key.coefficients).mean() > 0.5


# The server learns one number a client and round.


def test_a_profile_is_uniform_without_its_key(parties):
    """Its words, and what the key of another client, round or message makes of them."""
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    words = unpacked(matched.sealed.payload[FIRST:], (1, 2, N), PRIMES, "payload")[0]
    assert is_uniform(words)
    assert is_uniform(coefficients_of(words))
    again = Matched(parties, profile, baseline)
    others = unpacked(again.sealed.payload[FIRST:], (1, 2, N), PRIMES, "payload")[0]
    assert is_uniform((words + PRIME_COLUMN - others) % PRIME_COLUMN)


def test_an_officers_part_is_a_uniform_number():
    """For a polynomial of the server's weights, over keys of many messages."""
    polynomial = random_words(np.random.default_rng(0))
    keys = (
        OneTimeKey.of([b"k" * 32], n.to_bytes(32, "big"), "alice", b"n" * 16, MATCHES)
        for n in range(500)
    )
    assert is_uniform([key.applied(polynomial) for key in keys])


@pytest.mark.parametrize(
    "change",
    ["sender", "nonce", "round", "run", "name", "n_values"],
)
def test_a_score_opens_for_its_own_client_and_message_alone(parties, change):
    """Whatever is said of it instead, another key is applied, and a uniform number comes out."""
    profile, baseline = profiles()
    found, honest = [], []
    for _ in range(100):
        matched = Matched(parties, profile, baseline)
        about, name, nonce = matched.about, "alice", bytes.fromhex(matched.sealed.nonce)
        if change == "sender":
            name = "bob"
        elif change == "nonce":
            nonce = os.urandom(16)
        else:
            other = {"round": about.round + 1, "run": "cd" * 32, "name": "prof", "n_values": 2}
            about = replace(about, **{change: other[change]})
        secrets = parties.keys.public.secrets(parties.senders[name])
        key = OneTimeKey.of(secrets, about.digest("profile"), name, nonce, MATCHES)
        found.append(matched.words_by(key))
        honest.append(matched.words_by(matched.key))
    assert is_uniform(found)
    assert not is_uniform(honest)


@pytest.mark.parametrize(
    "said",
    [{"sender": "bob"}, {"nonce": "ab" * 16}, {"about": "another round"}],
    ids=["another client", "another nonce", "another round"],
)
def test_what_officers_open_of_a_mislabelled_score_is_no_score_of_it(parties, said):
    """None 255 times in 256, else a number that is not the profile's."""
    (profile, baseline), opened, n = profiles(), [], 60
    for _ in range(n):
        matched = Matched(parties, profile, baseline)
        about = {"about": parties.about(Q)} if "about" in said else {}
        opened.append(matched.opened(**said | about))
    exact = divergence(profile, baseline)
    nones = sum(score is None for score in opened)
    assert nones >= stats.binom(n, 255 / 256).ppf(1e-6)
    assert not any(score == pytest.approx(exact, abs=1e-4) for score in opened if score is not None)


def test_a_server_that_sends_a_polynomial_of_its_own_learns_one_number(parties):
    """The first coefficient of the key, here; any other question of that client is refused.

    It stands above the bits that are rounded away. With it the profile is as hidden as without.
    """
    profile, baseline = profiles()
    matched, rounded = Matched(parties, profile, baseline), 2**MATCHES.weight_bits
    assert rounded < min(PRIMES)
    one = np.zeros((2, N), np.uint64)
    one[:, 0] = rounded
    exponent = MATCHES.score_scale_bits
    asked = exponent.to_bytes(1) + bytes(12) + polynomial_bytes(one)
    assert len(asked) == SCORE_BYTES
    assert round(matched.opened(score=asked) / rounded) == matched.key.coefficients[0]
    second = np.roll(one, 1, axis=1)
    for score in (matched.score, asked[:13] + polynomial_bytes(second)):
        with pytest.raises(OpeningRefused, match="has answered for the profile of alice already"):
            matched.opened(score=score)
    guessed = np.zeros(N, np.int64)
    guessed[0] = matched.key.coefficients[0]
    assert is_uniform(decrypted(matched, guessed))
    assert not is_uniform(decrypted(matched, matched.key.coefficients))


def decrypted(matched, coefficients):
    """Coefficients of c + a s by a key: small where it is the client's, else uniform."""
    of, payload = ring(MATCHES), matched.sealed.payload
    words = unpacked(payload[FIRST:], (1, 2, N), PRIMES, "payload")[0]
    both = of._ciphertext(np.stack([words, np.zeros_like(words)]))
    if coefficients.any():  # SEAL transforms no zero
        of._evaluator.add_inplace(both, of.key(coefficients))
    plain = of._decrypted(of.common(payload[HEADER_BYTES:FIRST], 0), both)
    return coefficients_of(np.array([plain[i] for i in range(2 * N)], np.uint64).reshape(2, N))


def test_a_second_polynomial_or_nonce_is_not_answered(parties):
    """The same question again is, and a client's next round; of another client nothing is lost."""
    profile, baseline = profiles()
    first = Matched(parties, profile, baseline, round_number=5)
    once = first.opened()
    assert once == first.opened() == pytest.approx(divergence(profile, baseline), rel=1e-3)
    second = Matched(parties, profile, baseline, round_number=5)
    officer = parties.opener.officers[0]
    for polynomial, nonce in (
        (second.polynomial, first.sealed.nonce),
        (second.polynomial, second.sealed.nonce),
        (first.polynomial, second.sealed.nonce),
    ):
        with pytest.raises(PeerError, match="has answered for the profile of alice already"):
            officer.score_parts(first.about, "alice", nonce, polynomial)
    with pytest.raises(OpeningRefused, match="0 of 1 officers answer"):
        second.opened()
    assert Matched(parties, profile, baseline, "bob", 5).opened() == pytest.approx(once, abs=1e-4)
    assert Matched(parties, profile, baseline, "alice", 6).opened() is not None


def test_asking_for_a_profile_as_a_sum_opens_nothing(parties):
    """Keys of sums are of another domain: none is a part of a profile's key, or like it.

    The server names its sum as the profile, of the same round, size and nonce.
    """
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    (answer,) = (
        parties.opener.officers[0].key_sums(matched.about, {"alice": matched.sealed.nonce}).values()
    )
    of_sum, own = answer.coefficients, matched.key.coefficients
    assert len(of_sum) == SUMS.poly_degree == N // 2
    for start in range(0, N // 2 + 1, 128):
        part = own[start : start + N // 2]
        assert abs(np.corrcoef(of_sum, part)[0, 1]) < 6 / (N // 2) ** 0.5
    for guessed in (np.tile(of_sum, 2), np.repeat(of_sum, 2), np.append(of_sum, 0 * of_sum)):
        assert is_uniform(decrypted(matched, guessed))
    assert matched.about.digest() != matched.about.digest("profile")


def test_a_total_is_no_score_and_a_score_no_total(parties):
    """Officers' answers of one kind are of another length and modulus than the other's."""
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    nonces = {"alice": matched.sealed.nonce}
    with pytest.raises(MessageRefused, match="expected exactly"):
        parties.opener.open(matched.score, matched.about, nonces, 24)
    with pytest.raises(MessageRefused, match="expected 49165"):
        matched.opened(score=bytes(SUMS.ciphertext_bytes))
    assert matched.opened() == pytest.approx(divergence(profile, baseline), rel=1e-3)


def test_a_client_without_a_card_has_no_score(parties):
    """Nor has one of another session: cards are of one."""
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    for changes in ({"sender": "mallory"}, {"about": replace(matched.about, run="cd" * 32)}):
        with pytest.raises(OpeningRefused, match="has no card of"):
            matched.opened(**changes)
    assert matched.opened() is not None


# Officers.


class Wrapped:
    """An officer's answers, changed."""

    def __init__(self, officer):
        self.officer = officer

    def __getattr__(self, name):
        return getattr(self.officer, name)


class Liar(Wrapped):
    """Adds one to one of its parts."""

    def score_parts(self, *asked):
        answer = dict(self.officer.score_parts(*asked))
        group = next(iter(answer))
        return answer | {group: (answer[group] + 1) % MODULUS}


class LiarTo(Wrapped):
    """Adds a score of seven to the part of one group."""

    def __init__(self, officer, group):
        super().__init__(officer)
        self.group = group

    def score_parts(self, *asked):
        answer = self.officer.score_parts(*asked)
        return answer | {self.group: (answer[self.group] + 7 * 2**78) % MODULUS}


class LiarToAll(Wrapped):
    """Adds one to all of its parts, and so contradicts each of the others."""

    def score_parts(self, *asked):
        answer = self.officer.score_parts(*asked)
        return {group: (part + 1) % MODULUS for group, part in answer.items()}


class Away(Wrapped):
    def score_parts(self, *_):
        raise PeerError("does not answer")


class Shy(Wrapped):
    def score_parts(self, *_):
        return {}


QUORUMS = {"2 of 3": Quorum(2, 3), "3 of 5": Quorum(3, 5)}


ABSENT = {
    "away": (Away, "does not answer"),
    "other groups": (Shy, "has answered for other groups than its own"),
}
LYING = {"lies": (LiarToAll, "gave a wrong part of the score of alice")}


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(
    ("quorum", "instead", "said"),
    [
        *((QUORUMS["2 of 3"], *of) for of in ABSENT.values()),
        *((QUORUMS["3 of 5"], *of) for of in (ABSENT | LYING).values()),
    ],
)
def test_an_officer_that_lies_or_is_away_is_named_and_the_score_opens(
    quorum, instead, said, number
):
    """The others' parts are all there are, and agree."""
    parties = Parties(quorum)
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    whole = matched.opened()
    assert matched.opened(parties.with_officer(number, instead)) == whole
    assert whole == pytest.approx(divergence(profile, baseline), rel=1e-3)
    assert parties.said == [f"officer {number + 1}: {said}"]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_of_two_officers_that_contradict_each_other_neither_is_believed(number):
    """2 of 3: a group has two members, and nothing in a score says which of them lies.

    A total would: it counts its clients. Were one of them believed, it could choose the score.
    """
    parties = Parties(Quorum(2, 3))
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    with pytest.raises(OpeningRefused, match="parts of the score of alice do not agree"):
        matched.opened(parties.with_officer(number, Liar))
    assert parties.said == []
    assert matched.opened() == pytest.approx(divergence(profile, baseline), rel=1e-3)


@pytest.mark.parametrize("liars", [(0,), (1,), (0, 1), (0, 2), (3,)])
def test_officers_that_lie_alike_neither_choose_a_score_nor_have_another_named(liars):
    """3 of 5: three know a group's part, and two may be left out, be it the two or the one.

    Where the two were believed, an honest officer was named in their place.
    """
    parties = Parties(QUORUMS["3 of 5"])
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    shared = QUORUMS["3 of 5"].groups.index((1, 2, 3) if 3 in liars else (0, 1, 2))
    officers = [
        LiarTo(officer, shared) if number in liars else officer
        for number, officer in enumerate(parties.opener.officers)
    ]
    with pytest.raises(OpeningRefused, match=r"nothing tells who of officer ., officer ., officer"):
        matched.opened(parties.with_officers(*officers))
    assert parties.said == []


def test_without_enough_officers_no_score_is_opened():
    """Two of three that are away, or contradict each other where the third is away."""
    parties = Parties(Quorum(2, 3))
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    first, second, third = parties.opener.officers
    with pytest.raises(OpeningRefused, match="1 of 3 officers answer, and 2 are needed"):
        matched.opened(parties.with_officers(Away(first), second, Away(third)))
    with pytest.raises(OpeningRefused, match="do not agree"):
        matched.opened(parties.with_officers(Liar(first), Away(second), Liar(third)))


@pytest.mark.parametrize("quorum", QUORUMS.values(), ids=QUORUMS)
def test_k_less_one_officers_parts_tell_nothing_of_a_score(quorum):
    """With the server's constant their sum is uniform; with the one part more it is the score."""
    parties = Parties(quorum)
    profile, baseline = profiles()
    known = {group for officer in range(quorum.needed - 1) for group in quorum.groups_of[officer]}
    assert len(known) < len(quorum.groups)
    few, all_of_them = [], []
    for _ in range(150):
        matched = Matched(parties, profile, baseline)
        secret, nonce = parties.senders["alice"].secret, bytes.fromhex(matched.sealed.nonce)
        parts = {
            group: OneTimeKey.of(
                [group_secret(secret, group)],
                matched.about.digest("profile"),
                "alice",
                nonce,
                MATCHES,
            ).applied(polynomial_in(matched.polynomial))
            for group in range(len(quorum.groups))
        }
        few.append((matched.constant + sum(parts[group] for group in known)) % MODULUS)
        all_of_them.append(score_of([matched.constant, *parts.values()]) * 2.0**matched.exponent)
    assert is_uniform(few)
    assert all_of_them == pytest.approx([divergence(profile, baseline)] * 150, abs=1e-4)


def test_a_server_with_a_lying_officer_has_two_numbers_where_two_quorums_share_no_other():
    """2 of 3: each honest officer is shown another polynomial, and the liar has their other parts.

    So fewer than 2k - n officers may lie, for scores as for sums.
    """
    parties = Parties(Quorum(2, 3))
    profile, baseline = profiles()
    first = Matched(parties, profile, baseline)
    other = random_profile(Q, np.random.default_rng(8), version=3)
    second = split_score(parties.matcher.match(first.sealed.payload, other))
    liar, honest, victim = parties.opener.officers
    scores = []
    for officer, (exponent, constant, polynomial) in (
        (honest, split_score(first.score)),
        (victim, second),
    ):
        asked = first.about, "alice", first.sealed.nonce, polynomial
        parts = dict(officer.score_parts(*asked))
        liar._answered.clear()  # it answers what it likes
        parts |= liar.score_parts(*asked)
        assert len(parts) == 3
        scores.append(score_of([constant, *parts.values()]) * 2.0**exponent)
    wanted = [divergence(profile, baseline), divergence(profile, other)]
    assert scores == pytest.approx(wanted, rel=1e-3)


def polynomial_of_two(matched, places, shifts):
    """D and u of a server that asks for two coefficients, one so many bits above the other."""
    payload = matched.sealed.payload
    words = unpacked(payload[FIRST:], (1, 2, N), PRIMES, "message")[0]
    common = ring(MATCHES).common_words(payload[HEADER_BYTES:FIRST], 0)
    sums = [
        sum(
            np.concatenate([of[at:], -of[:at]]) * 2**shift
            for at, shift in zip(places, shifts, strict=True)
        )
        for of in map(coefficients_of, (words, common))
    ]
    return int(sums[0][0]), np.array([[c % p for c in sums[1]] for p in PRIMES], np.uint64)


def read_two(number, shifts):
    """The two coefficients in a number, both around zero."""
    number %= MODULUS
    number = number if number < MODULUS // 2 else number - MODULUS
    half = 2 ** (shifts[1] - 1)
    lower = (number + half) % (2 * half) - half
    return lower / 2 ** shifts[0], (number - lower) // (2 * half)


@pytest.mark.parametrize("quorum", [Quorum(), Quorum(2, 3)], ids=["authority", "officers"])
@pytest.mark.parametrize(("shifts", "n_told"), [((0, 46), 4), ((8, 50), 12)])
def test_an_answer_tells_one_coefficient_and_twelve_bits_of_another(quorum, shifts, n_told):
    """It has 54 bits. Of 92 there were two of 42 bits side by side, both to the last one."""
    parties = Parties(quorum)
    matched = Matched(parties, *profiles())
    constant, polynomial = polynomial_of_two(matched, (7, 1234), shifts)
    low, high = read_two(constant + matched.key.applied(polynomial), shifts)
    assert 2**36 < max(abs(low), abs(high)) < 2**42
    asked = matched.about, matched.name, matched.sealed.nonce, polynomial_bytes(polynomial)
    parts = {}
    for officer in parties.opener.officers:
        parts |= officer.score_parts(*asked)
    step = 2**MATCHES.weight_bits
    assert all(part % step == 0 or (part + MODULUS) % step == 0 for part in parts.values())
    found = read_two(constant + sum(parts.values()), shifts)
    assert abs(found[1] - high) <= 1
    assert abs(found[0] - low) <= len(parts) * 2.0 ** (42 - n_told) / 2
    if n_told == 4:
        assert found[0] != low


# Rubbish.


def test_rubbish_of_a_client_opens_as_none_but_one_time_in_256(parties):
    """It opens to a uniform number, of which those within ±32 are scores, in units of weights."""
    (_, baseline), opened, numbers, n = profiles(), [], [], 200
    for _ in range(n):
        matched = Matched(parties, baseline, baseline)
        payload = matched.sealed.payload
        rubbish = payload[:FIRST] + any_words(payload[FIRST:])
        score = parties.matcher.match(rubbish, baseline)
        _, constant, polynomial = split_score(score)
        numbers.append((constant + matched.key.applied(polynomial_in(polynomial))) % MODULUS)
        opened.append(matched.opened(score=score))
    assert is_uniform(numbers)
    assert sum(score is None for score in opened) >= stats.binom(n, 255 / 256).ppf(1e-6)
    assert MODULUS / 2**MATCHES.score_scale_bits == pytest.approx(256 * 64)


def test_a_card_with_another_secret_seals_rubbish(parties):
    """As do other drawn bytes than were sealed with, and one that swaps nonces."""
    (profile, baseline), found = profiles(), []
    for _ in range(60):
        about = parties.about(Q)
        sealed = parties.sealer.seal(profile, about, Sender("alice", b"other".ljust(32)))
        score = split_score(parties.matcher.match(sealed.payload, baseline))
        key = parties.key(sealed, about)
        found.append((score[1] + key.applied(polynomial_in(score[2]))) % MODULUS)
        matched = Matched(parties, profile, baseline)
        other = replaced(matched.sealed.payload, HEADER_BYTES, os.urandom(SEED_BYTES))
        _, constant, polynomial = split_score(parties.matcher.match(other, baseline))
        found.append((constant + matched.key.applied(polynomial_in(polynomial))) % MODULUS)
    assert is_uniform(found)


def test_a_client_can_choose_its_score_and_shift_nobody_elses(parties):
    """What it seals in the place of x is linear in its score; this is so of any profile."""
    _, baseline = profiles()
    about, alice = parties.about(Q), parties.senders["alice"]
    x = _rows(_values(baseline))[0]
    x[np.arange(len(x)) % (2 * Q + 1) == 2 * Q] += 4.0  # the logarithms' mean in every copy
    x[31 * (2 * Q + 1) :] = 0
    sealed = sealed_values(parties.keys.public, alice, about, baseline, x)
    score = parties.matcher.match(sealed.payload, baseline)
    opened = parties.opener.score(score, about, "alice", sealed.nonce)
    assert opened == pytest.approx(-2.0, abs=1e-4)
    assert parties.score(baseline, baseline, "bob") == pytest.approx(0, abs=1e-4)


def test_one_changed_coefficient_of_a_profile_makes_another_number(parties):
    """A word in the transform's order is all coefficients: nothing of the score is left."""
    (profile, baseline), found = profiles(), []
    rng = np.random.default_rng(1)
    for _ in range(60):
        matched = Matched(parties, profile, baseline)

        def change(words):
            words = words.copy()
            words[0, 0, rng.integers(N)] = rng.integers(PRIMES[0])
            return words

        _, constant, polynomial = split_score(with_words(parties, matched, change, baseline))
        assert polynomial == matched.polynomial
        found.append((constant + matched.key.applied(polynomial_in(polynomial))) % MODULUS)
    assert is_uniform(found)


def test_malformed_scores_are_refused_and_crash_nothing(parties):
    """Wrong lengths and words beyond the prime; every exponent and constant is a number or none."""
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    score = matched.score
    for bad in (b"", score[:1], score[:-1], score + b"\0", bytes(SCORE_BYTES - 1)):
        with pytest.raises(MessageRefused, match="expected 49165"):
            matched.opened(score=bad or b"\0")
    for at, prime in ((13, PRIMES[0]), (SCORE_BYTES - 6, PRIMES[1])):
        for word in (prime, prime + 1, 2**48 - 1):
            outside = replaced(score, at, word.to_bytes(6, "little"))
            with pytest.raises(MessageRefused, match="polynomial with a coefficient outside"):
                matched.opened(score=outside)
    for _ in range(20):
        with pytest.raises(MessageRefused, match="outside the ring"):
            matched.opened(score=os.urandom(SCORE_BYTES))
    exact = matched.opened()
    for exponent in (-128, -1, 0, 127):
        found = matched.opened(score=exponent.to_bytes(1, signed=True) + score[1:])
        assert found == exact * 2.0 ** (exponent - matched.exponent)
    constants = [c.to_bytes(12, "little") for c in (0, MODULUS, MODULUS // 2, 2**95, 2**96 - 1)]
    opened = [matched.opened(score=replaced(score, 1, constant)) for constant in constants]
    assert all(one is None or np.isfinite(one) for one in opened)
    beyond = (matched.constant + MODULUS).to_bytes(12, "little")
    assert matched.opened(score=replaced(score, 1, beyond)) == exact


def test_damaged_payloads_never_reach_the_parser(parties, monkeypatch):
    """Wrong length, form, size, version, or a coefficient outside the ring."""
    profile, baseline = profiles()
    alice = parties.senders["alice"]

    def sealed(other):
        return parties.sealer.seal(other, parties.about(len(other)), alice).payload

    payload = sealed(profile)
    rng = np.random.default_rng(2)
    damaged = {
        "bytes": payload[:-1],
        "expected": payload + b"\0",
        "exactly": b"",
        "no profile": replaced(payload, 0, b"prf2"),
        "outside the ring": replaced(payload, FIRST, b"\xff" * 8),
        "elements": sealed(random_profile(Q + 1, rng, version=3)),
        "of 98352 bytes": sealed(random_profile(N // 2, rng, version=3)),
        "version": sealed(random_profile(Q, rng, version=4)),
    }
    monkeypatch.setattr(ts, "ckks_vector_from", lambda *_: pytest.fail("parsed"))
    for message, bad in damaged.items():
        with pytest.raises(MessageRefused, match=message):
            parties.matcher.match(bad, baseline)


def test_a_payload_of_any_words_is_matched_without_a_crash(parties):
    """Zeros, the largest words, and any: each makes a score of its length."""
    _, baseline = profiles()
    matched = Matched(parties, baseline, baseline)
    for change in (
        lambda words: words * np.uint64(0),
        lambda words: words * np.uint64(0) + (PRIME_COLUMN - np.uint64(1)),
        lambda words: words + np.uint64(1),
    ):
        assert len(with_words(parties, matched, change, baseline)) == SCORE_BYTES


def test_a_plain_payload_is_checked_too():
    """Length, size, version and values."""
    rng, plain = np.random.default_rng(5), PlainMatch()
    baseline = random_profile(Q, rng, version=3)

    def sealed(profile):
        return plain.seal(profile, None, None).payload

    payload = sealed(random_profile(Q, rng, version=3))
    nan, negative = (np.float64(x).tobytes() for x in (np.nan, -1.0))
    for bad in (
        payload[:-1],
        sealed(random_profile(Q + 1, rng, version=3)),
        sealed(random_profile(Q, rng, version=4)),
        replaced(payload, HEADER_BYTES, nan),
        replaced(payload, len(payload) - 8, negative),
    ):
        with pytest.raises(MessageRefused):
            plain.match(bad, baseline)
    score = plain.match(payload, baseline)
    assert plain.open(score) > 0
    assert [plain.open(bad) for bad in (b"1234567", b"", nan)] == [None] * 3


# Who holds what.


def test_a_matcher_that_has_scored_reaches_no_key(parties):
    """Nor does a sealer that has sealed; the same search finds an opener's."""
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    assert keys_reached(parties.matcher) == keys_reached(parties.sealer) == []
    assert not any(isinstance(thing, Profile) for thing in reachable(parties.sealer))
    assert keys_reached([parties.matcher, parties.opener])
    assert keys_reached([parties.matcher, matched.key])


def keys_reached(root):
    holders = (CardSecret, OneTimeKey, KeySum, Sender, Officer, OneTimeOpener)
    return [thing for thing in reachable(root) if isinstance(thing, holders)]


def test_roles_have_their_own_verb_alone(parties):
    """No matcher seals or opens, no sealer matches or opens."""
    for made, verb in ((parties.sealer, "seal"), (parties.matcher, "match")):
        found = {name for name in dir(made) if not name.startswith("_")}
        assert found & {"seal", "match", "open", "score", "secret"} == {verb}
    assert isinstance(parties.sealer, OneTimeProfileSealer)
    assert isinstance(parties.matcher, OneTimeMatcher)


def test_the_matcher_imports_no_opener():
    """Nothing that is loaded for the server's matcher or a client's sealer knows what one is."""
    code = "import sys, securefl.exchange.one_time_match; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert "securefl.crypto.one_time" in modules
    assert not {
        "securefl.crypto.card_secret",
        "securefl.exchange.officer",
    } & set(modules)


def test_a_session_has_keys_of_its_own(parties):
    """The same client, round and nonce of another session: another key."""
    profile, baseline = profiles()
    matched = Matched(parties, profile, baseline)
    other = parties.key(matched.sealed, replace(matched.about, run="cd" * 32))
    assert matched.about.run == RUN
    assert abs(np.corrcoef(other.coefficients, matched.key.coefficients)[0, 1]) < 6 / N**0.5

"""A sealed score is the divergence in double precision, and nothing about it is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from match_parties import (
    MODULUS,
    PRIMES,
    N,
    Parties,
    coefficients_of,
    embedded,
    near,
    numbers_of,
    random_profile,
    random_words,
    words_of,
)
from scipy import stats

from securefl.crypto import KEY_DEVIATION
from securefl.crypto.ciphertext_codec import unpacked
from securefl.crypto.one_time import OneTimeKey, polynomial_in, ring, score_of, weighed
from securefl.crypto.params import MATCHES
from securefl.errors import DataError, ValueRefused
from securefl.exchange.card_keys import Quorum
from securefl.exchange.one_time_match import SCORE_BYTES, split_score
from securefl.exchange.profile_match import (
    VARIANCE_FLOOR,
    PlainMatch,
    Profile,
    divergence,
    range_unit,
)

SIZES = (1, 8, 64, 512, 2047, 2048, 5000)
"""In the last two a profile takes two ciphertexts, and three."""


@pytest.fixture(scope="module")
def parties():
    return Parties()


def by_hand(profile, baseline):
    """Σ KL of Gaussians from torch, in double precision."""
    pairs = [(p.mean_Q, p.variance_Q.sqrt()) for p in (profile, baseline)]
    normals = [torch.distributions.Normal(*pair) for pair in pairs]
    return torch.distributions.kl_divergence(*normals).mean().item()


# The ring, in Python's own integers.


def product(left, right):
    """Coefficients of a product modulo X^N + 1, each a sum of N products of whole numbers."""
    turned = np.concatenate([right[::-1], -right[::-1]])  # coefficient k is a dot product with it
    found = [left @ turned[N - 1 - k : 2 * N - 1 - k] for k in range(N)]
    return np.array(found, object) % MODULUS


def constant(left, right):
    """The first of them alone."""
    return int(left[0] * right[0] - left[1:] @ right[:0:-1]) % MODULUS


def encoded(reals, scale):
    """SEAL's encoding as whole numbers, held against the embedding by hand."""
    plain = ring(MATCHES)._encoded(reals, scale)
    words = np.array([plain[i] for i in range(2 * N)], np.uint64)
    polynomial = coefficients_of(words.reshape(2, N))
    np.testing.assert_allclose(embedded(polynomial) / scale, reals, rtol=0, atol=N / scale)
    return polynomial


def test_a_product_by_hand_is_one_modulo_x_to_the_n_plus_1():
    """X^(N-1) times X is -1, and the constant is the product's first coefficient."""
    rng = np.random.default_rng(0)
    last, x = np.zeros(N, object), np.zeros(N, object)
    last[N - 1] = x[1] = 1
    assert product(last, x)[0] == MODULUS - 1
    assert not product(last, x)[1:].any()
    left, right = (numbers_of(random_words(rng)) for _ in range(2))
    assert product(left, right)[0] == constant(left, right)


def test_a_score_is_the_equation_in_whole_numbers():
    """The constants of w (c - b) and of (w a) s over two ciphertexts are added up.

    They are the mean over slots of w (x - b), to the errors that sealing adds.
    """
    rng, drawn, about = np.random.default_rng(3), b"d" * 32, b"a message"
    x, b = rng.uniform(-3, 3, (2, 2, N))
    w = rng.normal(size=(2, N))
    w *= np.sqrt(N / 2 / (w**2).sum())
    key = OneTimeKey.of([b"k" * 32], about, "alice", b"n" * 16, MATCHES)
    message = key.seal(x, drawn)
    first, polynomial = weighed(message, drawn, b, w)
    words = unpacked(message, (2, 2, N), PRIMES, "message")
    secret = key.coefficients.astype(object)
    total, second = 0, np.zeros(N, object)
    for j in range(2):
        # The real part of a product subtracts imaginary parts: w is conjugated.
        conjugate = np.concatenate([w[j, : N // 2], -w[j, N // 2 :]])
        weights = encoded(conjugate, 2.0**MATCHES.weight_bits)
        difference = coefficients_of(words[j]) - encoded(b[j], 2.0**MATCHES.scale_bits)
        total += constant(weights, difference)
        common = ring(MATCHES).common_words(drawn, j)
        second = (second + product(weights, coefficients_of(common))) % MODULUS
    assert first == total % MODULUS
    np.testing.assert_array_equal(numbers_of(polynomial), second)
    assert key.applied(polynomial) == constant(secret, second)
    score = score_of([first, key.applied(polynomial)])
    assert score == pytest.approx((w * (x - b)).sum() / (N / 2), abs=1e-6)
    assert score != pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_a_keys_part_is_that_of_whole_numbers(seed):
    """At the ends of the range of words as well, where 64 bits would overflow."""
    key = OneTimeKey.of([bytes([seed]) * 32], b"", "alice", b"n" * 16, MATCHES)
    rng = np.random.default_rng(seed)
    secret = key.coefficients.astype(object)
    largest = np.array([MODULUS - 1] * N, object)
    for polynomial in (
        random_words(rng),
        words_of(largest),
        words_of(np.where(key.coefficients > 0, largest, 0)),
    ):
        assert key.applied(polynomial) == constant(secret, numbers_of(polynomial))


# Divergences.


@pytest.mark.parametrize("spread", ["uniform", "logarithmic"])
@pytest.mark.parametrize("q", SIZES)
def test_a_score_is_the_divergence(parties, q, spread):
    """Within the stated precision and 1e-4 of itself, for near and unrelated profiles."""
    rng = np.random.default_rng(q)
    baseline = random_profile(q, rng, spread)
    profiles = [random_profile(q, rng, spread), *(near(baseline, rng, d) for d in (0.3, 0.05))]
    exact = np.array([by_hand(profile, baseline) for profile in profiles])
    opened = parties.scores(profiles, baseline)
    error = parties.matcher.precision(baseline) + 1e-4 * exact
    assert (np.abs(opened - exact) <= error).all(), opened - exact
    assert error[-1] < 0.5 * exact[-1]


@pytest.mark.parametrize("q", SIZES)
def test_profiles_in_the_unit_that_a_run_publishes_err_by_little(parties, q):
    """1e-5, at the distances that clients have."""
    rng = np.random.default_rng(q + 1)
    baseline = random_profile(q, rng)
    unit = range_unit(baseline)
    for distance in (0.0, 0.05, 0.3):
        profile = near(baseline, rng, distance)
        score = parties.score(profile.in_unit(unit), baseline.in_unit(unit))
        assert score == pytest.approx(by_hand(profile, baseline), abs=1e-5)


@pytest.mark.parametrize("q", SIZES[1:])
def test_units_that_never_move_leave_scores_precise(parties, q):
    """A third of the baseline's variances are the least there is: weights are 500,000 times larger.

    Of a client whose units do not move either, and of one whose units have begun to.
    """
    rng = np.random.default_rng(q)
    baseline = random_profile(q, rng)
    profile, dead = near(baseline, rng, 0.05), slice(0, q // 3)
    for of in (baseline, profile):
        of.mean_Q[dead], of.variance_Q[dead] = 0.0, VARIANCE_FLOOR
    assert parties.score(profile, baseline) == pytest.approx(by_hand(profile, baseline), abs=3e-5)
    profile.variance_Q[dead] *= 4
    assert parties.score(profile, baseline) == pytest.approx(by_hand(profile, baseline), abs=3e-5)
    assert parties.matcher.precision(baseline) < 3e-4


@pytest.mark.parametrize("spread", ["uniform", "logarithmic"])
@pytest.mark.parametrize("q", SIZES)
def test_equal_profiles_score_zero(parties, q, spread):
    """But for the error of encryption, although single weights are 500 times larger."""
    drawn = random_profile(q, np.random.default_rng(q), spread)
    for baseline in (drawn, drawn.in_unit(range_unit(drawn))):  # as it is, and as runs seal it
        found = np.abs(parties.scores([baseline] * 3, baseline)).max()
        assert 0 < found <= parties.matcher.precision(baseline)


def test_the_stated_precision_keeps_the_order(parties):
    """Of 50 clients, those whose gap exceeds the stated precision stay in order."""
    rng = np.random.default_rng(1)
    baseline = random_profile(64, rng)
    profiles = [near(baseline, rng, d) for d in np.linspace(0, 0.5, 50)]
    exact = np.array([by_hand(profile, baseline) for profile in profiles])
    opened = parties.scores(profiles, baseline)
    within = parties.matcher.precision(baseline) + 1e-4 * exact
    assert (np.abs(opened - exact) <= within).all()
    apart = exact[:, None] - exact[None] > within[:, None] + within[None]
    assert apart.sum() > 1000
    assert (opened[:, None] > opened[None])[apart].all()


# Noise.


def normalised(parties, profile, baseline, n):
    """So many scores of one profile before the power of two that the weights are divided by."""
    exponent = split_score(match_of(parties, profile, baseline)[2])[0]
    return parties.scores([profile] * n, baseline) * 2.0**-exponent


def match_of(parties, profile, baseline):
    """A profile sealed, what it is about, and the score that the server makes of it."""
    about = parties.about(len(profile))
    sealed = parties.sealer.seal(profile, about, parties.senders["alice"])
    return about, sealed, parties.matcher.match(sealed.payload, baseline)


@pytest.mark.parametrize("q", [*(pytest.param(q, marks=pytest.mark.full) for q in (1, 64)), 2048])
def test_the_noise_of_scores_is_no_more_than_the_parameters_say(parties, q):
    """σ √Σ|w|² / 2^40 where no encoding errs, and weights have at most length 1: by χ² above.

    Below: the least power of two was taken, so length is more than a half.
    """
    baseline = random_profile(q, np.random.default_rng(q))
    errors = normalised(parties, baseline, baseline, 300)
    low, high = stats.chi2(300).ppf([1e-9, 1 - 1e-9])
    assert (errors**2).sum() / MATCHES.noise**2 < high
    assert (errors**2).sum() / (MATCHES.noise / 2) ** 2 > low
    assert pytest.approx(3.24 / 2**40, rel=1e-3) == MATCHES.noise
    assert pytest.approx(10.5**0.5) == KEY_DEVIATION


def test_copies_of_few_values_average_their_noise(parties):
    """Three values stand 1365 times: a score errs by 1 / √1365 of what one copy would err by."""
    baseline = Profile(torch.tensor([0.5]).double(), torch.tensor([1.0]).double(), 0)
    weights = np.array([2.0, -0.5, -0.5])  # of (σ² + μ²) / 4, μ and log σ², by hand
    errors = parties.scores([baseline] * 300, baseline)
    one_copy = MATCHES.noise * np.sqrt((weights**2).sum() * N / 2)
    low, high = stats.chi2(300).ppf([1e-9, 1 - 1e-9])
    assert low < (errors**2).sum() / (one_copy**2 / 1365) < high


def test_common_polynomials_follow_from_the_drawn_bytes(parties):
    """Those that the payload begins with: they alone open; each sealing draws others."""
    profile = random_profile(2048, np.random.default_rng(5))
    about, sealed, _ = match_of(parties, profile, profile)
    _, again, _ = match_of(parties, profile, profile)
    drawn, message = sealed.payload[16:48], sealed.payload[48:]
    assert drawn != again.payload[16:48]
    key, w = parties.key(sealed, about), np.ones((2, N)) / 2**0.5
    opened = []
    for seed in (drawn, again.payload[16:48], about.digest("profile")):
        first, polynomial = weighed(message, seed, np.zeros((2, N)), w)
        opened.append(score_of([first, key.applied(polynomial)]))
    moments = np.concatenate(
        [(profile.variance_Q + profile.mean_Q**2) / 4, profile.mean_Q]
    ).sum() + float(profile.variance_Q.log().mean())
    wanted = moments / (N / 2) / 2**0.5
    assert opened[0] == pytest.approx(wanted, abs=1e-5)
    assert all(other != pytest.approx(wanted, abs=1e-2) for other in opened[1:])


def test_a_message_has_the_length_that_is_said(parties):
    """16 and 32 bytes, and 49,152 for every 4096 values; a score is one ciphertext and 13 bytes."""
    for q, n in ((1, 1), (2047, 1), (2048, 2), (5000, 3)):
        profile = random_profile(q, np.random.default_rng(q))
        _, sealed, score = match_of(parties, profile, profile)
        assert len(sealed.payload) == parties.matcher.n_bytes(q) == 48 + 49_152 * n
        assert len(score) == SCORE_BYTES == 49_165
        assert len(bytes.fromhex(sealed.nonce)) == 16


# Officers.


@pytest.mark.parametrize("quorum", [(2, 3), (3, 5), (3, 3)], ids=str)
def test_officers_open_the_one_authoritys_score(quorum):
    """Parts of all groups add up to what one key makes of the polynomial, each rounded."""
    parties = Parties(Quorum(*quorum))
    rng = np.random.default_rng(6)
    profile, baseline = random_profile(64, rng), random_profile(64, rng)
    about, sealed, score = match_of(parties, profile, baseline)
    exponent, first, polynomial = split_score(score)
    whole = parties.key(sealed, about).applied(polynomial_in(polynomial))
    opened = parties.opener.score(score, about, "alice", sealed.nonce)
    rounding = 2.0 ** (exponent - MATCHES.scale_bits - 1) * len(parties.keys.quorum.groups)
    assert opened == pytest.approx(score_of([first, whole]) * 2.0**exponent, rel=0, abs=rounding)
    assert opened == pytest.approx(by_hand(profile, baseline), rel=1e-4)
    assert parties.said == []


# In the clear.


@pytest.mark.parametrize("q", SIZES)
def test_the_plain_match_is_the_divergence(q):
    """Bit for bit."""
    rng, plain = np.random.default_rng(q), PlainMatch()
    profile, baseline = random_profile(q, rng), random_profile(q, rng)
    sealed = plain.seal(profile, None, None)
    assert sealed.nonce == ""
    score = plain.open(plain.match(sealed.payload, baseline))
    assert score == divergence(profile, baseline)
    assert score == pytest.approx(by_hand(profile, baseline), rel=1e-12)


@given(
    st.floats(-3, 3), st.floats(1e-3, 50), st.floats(-3, 3), st.floats(1e-3, 50), st.floats(0.1, 9)
)
def test_a_divergence_does_not_depend_on_the_unit(mean_k, variance_k, mean_b, variance_b, unit):
    """Affine maps of the representation change no divergence between Gaussians."""
    pairs = [(mean_k, variance_k), (mean_b, variance_b)]
    one, other = (
        Profile(torch.tensor([m]).double(), torch.tensor([v]).double(), 0) for m, v in pairs
    )
    moved = divergence(one.in_unit(unit), other.in_unit(unit))
    assert moved == pytest.approx(divergence(one, other), rel=1e-9, abs=1e-12)


# The range.


def test_what_would_overflow_is_refused_before_it_is_sealed(parties):
    """A sum beyond the modulus wraps in silence; a larger unit is the way out."""
    far = Profile(torch.full((8,), 20.0).double(), torch.ones(8).double(), 0)
    about, alice = parties.about(8), parties.senders["alice"]
    with pytest.raises(ValueRefused, match="larger unit") as refused:
        parties.sealer.seal(far, about, alice)
    assert "401" in str(refused.value)
    sealed = parties.sealer.seal(far.in_unit(4), about, alice)
    with pytest.raises(ValueRefused, match="baseline"):
        parties.matcher.match(sealed.payload, far)
    near_zero = parties.score(far.in_unit(4), far.in_unit(4))
    assert abs(near_zero) < parties.matcher.precision(far.in_unit(4))


@pytest.mark.parametrize("q", [1, 8, 1023, 2047, 2048])
def test_the_most_distant_profiles_that_can_be_sealed_do_not_wrap(parties, q):
    """All elements at the end of the range, against all at the other end."""
    mean_Q = torch.full((q,), 7.99).double()
    variance_Q = torch.full((q,), VARIANCE_FLOOR).double()
    profile, baseline = Profile(mean_Q, variance_Q, 0), Profile(-mean_Q, variance_Q, 0)
    wide = Profile(torch.zeros(q).double(), torch.full((q,), 64.0).double(), 0)
    for one, other in ((profile, baseline), (wide, baseline), (baseline, wide)):
        score, exact = parties.score(one, other), by_hand(one, other)
        assert abs(score - exact) <= 1e-4 * exact + parties.matcher.precision(other)


@pytest.mark.parametrize(
    ("mean", "variance", "version", "what"),
    [
        ([], [], 0, "one at least"),
        ([0.0, 1.0], [1.0], 0, "one of each"),
        ([float("nan")], [1.0], 0, "NaN"),
        ([0.0], [float("inf")], 0, "infinity"),
        ([0.0], [-1e-9], 0, "variance"),
        ([0.0], [1.0], -1, "version"),
    ],
)
def test_what_is_no_profile_is_refused(mean, variance, version, what):
    """Each message says what is wrong."""
    with pytest.raises(DataError, match=what):
        Profile(torch.tensor(mean).double(), torch.tensor(variance).double(), version)


def test_rows_whose_weights_round_to_nothing_add_nothing(parties):
    """One dead unit among 4096 takes all of the weights' length; rows of means are zero then."""
    q = 4096
    variance = torch.ones(q, dtype=torch.float64)
    variance[0] = VARIANCE_FLOOR
    baseline = Profile(torch.full((q,), 1e-4, dtype=torch.float64), variance, 0)
    profile = Profile(baseline.mean_Q, variance * 1.5, 0)
    due, error = divergence(profile, baseline), parties.matcher.precision(baseline)
    assert parties.score(profile, baseline) == pytest.approx(due, abs=error)

"""Every value that leaves the authority is flooded and counted, whatever becomes of it."""

from __future__ import annotations

import random
from math import isclose

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.secret import SecretKey
from securefl.errors import KeyFileError, KeyWornOut, MessageRefused
from securefl.exchange import ckks_open
from securefl.exchange.ckks import CkksAdder, CkksSealer
from securefl.exchange.ckks_open import CkksOpener
from securefl.exchange.digits import Digits
from securefl.exchange.gaussian import gaussian
from securefl.exchange.policy import Flooding, Policy, most_releases
from securefl.exchange.releases import MemoryCount

HALF = SUMS.poly_degree // 2
LOUD = Flooding(statistical_bits=68)
"""σ = 1.1e-5 on sums of up to three clients: far above rounding, far below what counts clients."""


def opener_of(keys, flooding=LOUD, max_clients=3):
    """With a count of its own."""
    return CkksOpener(keys.secret, MemoryCount(), flooding, max_clients)


def total_of(keys, values, weights=(0.25, 0.25, 0.25)):
    sealer, running = CkksSealer(keys.public), CkksAdder(keys.adding).start(len(values))
    for weight in weights:
        running = running.plus(sealer.seal(values, weight))
    return running.total()


def test_noise_is_gaussian():
    """Kolmogorov and Smirnov see no difference to a normal distribution in 200 000 draws."""
    drawn = gaussian(200_000, 3.0)
    assert stats.kstest(drawn, stats.norm(scale=3.0).cdf).pvalue > 1e-4
    assert np.abs(drawn).max() > 12  # the tails are there, too
    assert drawn.mean() == pytest.approx(0, abs=0.05)


def test_draws_are_independent():
    """No draw tells of the next."""
    drawn = gaussian(100_000, 1.0)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.02
    assert len(np.unique(drawn)) == len(drawn)


@given(size=st.integers(0, 3000), deviation=st.floats(0, 1e6))
def test_noise_has_the_size_asked_for(size, deviation):
    """And every draw is a number."""
    drawn = gaussian(size, deviation)
    assert drawn.shape == (size,)
    assert drawn.dtype == np.float64
    assert np.isfinite(drawn).all()


def test_without_deviation_there_is_no_noise():
    """Where nothing is flooded, nothing is added."""
    np.testing.assert_array_equal(gaussian(1000, 0.0), np.zeros(1000))


def test_two_calls_differ_whatever_was_seeded():
    """Noise that a seed gives could be taken off again."""
    drawn = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 -- what a run might do
        torch.manual_seed(0)
        drawn.append(gaussian(1000, 1.0))
    assert not np.isin(drawn[0], drawn[1]).any()


@pytest.mark.parametrize("sign", [0, 1])
def test_the_extreme_words_are_finite_noise(monkeypatch, sign):
    """The least of 63 bits is the far end of a tail, the largest the middle."""
    far, middle = sign, 2**64 - 2 + sign
    for word, low, high in ((far, 9, 10), (middle, 0, 1e-12)):
        monkeypatch.setattr("os.urandom", lambda n, w=word: w.to_bytes(8, "little") * (n // 8))
        assert low <= abs(gaussian(1, 1.0)[0]) <= high


def test_the_deviation_is_the_formula_by_hand():
    """σ = √(12 · 2^30) · 2^20 · t; t = 2 (4096/6) √500 / 2^78 for 500 clients: 1.2e-8."""
    t = 2 * (4096 / 6) * 500**0.5 / 2**78
    assert SUMS.noise(500) == pytest.approx(t, rel=1e-12)
    by_hand = (12 * 2**30) ** 0.5 * 2**20 * t
    assert Flooding().deviation(SUMS.noise(500)) == pytest.approx(by_hand, rel=1e-12)
    assert by_hand == pytest.approx(1.2e-8, rel=0.01)
    assert Flooding() == Flooding(statistical_bits=40, releases=2**30)


@given(
    bits=st.integers(20, 64),
    releases=st.integers(1, 2**40),
    noise=st.floats(1e-30, 1),
    factor=st.integers(2, 100),
)
def test_more_releases_more_bits_and_more_noise_are_more_flooding(bits, releases, noise, factor):
    """By the root of releases, by two for two bits, and in proportion to the noise."""
    sigma = Flooding(bits, releases).deviation(noise)
    assert isclose(Flooding(bits, factor**2 * releases).deviation(noise), factor * sigma)
    assert isclose(Flooding(bits + 2, releases).deviation(noise), 2 * sigma)
    assert isclose(Flooding(bits, releases).deviation(factor * noise), factor * sigma)


def test_the_noise_of_a_ciphertext_is_the_formulas():
    """Two standard deviations of a slot's noise, as it is measured where it can be seen."""
    parameters = CkksParameters(modulus_bits=(60, 49), scale_bits=45)
    secret = SecretKey.generate(parameters)
    for n_clients in (1, 9):
        running = secret.adding_context().sum()
        for _ in range(n_clients):
            running = running.plus(secret.public_key.encrypt(np.zeros(HALF)))
        measured = secret.decrypt(running.coefficients()).std()
        assert 2 * measured == pytest.approx(parameters.noise(n_clients), rel=0.1)


@pytest.mark.parametrize("what", ["values", "weight", "count"])
def test_what_is_opened_errs_by_sigma(key_set, monkeypatch, what):
    """Σ of squares over σ² is χ²: 60 000 values, weights and counts, to a few percent."""
    opener, seen = opener_of(key_set), []
    released = CkksOpener._released
    monkeypatch.setattr(CkksOpener, "_released", lambda *a: seen.append(released(*a)) or seen[-1])
    values = np.full(SUMS.values_per_ciphertext, 0.5)
    total = total_of(key_set, values)
    n_openings = 30 if what == "values" else 2000
    if what != "values":  # the same slots each time: only the noise is drawn anew
        slots = key_set.secret.decrypt(total)
        monkeypatch.setattr(SecretKey, "decrypt", lambda *_: slots)
    opened = [opener.open(total, len(values), precision_bits=60) for _ in range(n_openings)]
    errors = {
        "values": lambda: np.concatenate([o.weight * o.values - 0.375 for o in opened]),
        "weight": lambda: np.array([s[0, -2] - 0.75 for s in seen]),
        "count": lambda: np.array([s[0, -1] - 3 for s in seen]),
    }[what]()
    assert {o.n_clients for o in opened} == {3}
    ratio = np.sum(errors**2) / opener.deviation**2
    low, high = stats.chi2(len(errors)).ppf([1e-5, 1 - 1e-5])
    assert low < ratio < high


def test_no_real_part_is_looked_at_before_it_is_flooded(key_set, monkeypatch):
    """Noise that moves count or weight by one is seen by the checks: they read what is flooded."""
    values = np.zeros(5)
    total, opener = total_of(key_set, values), opener_of(key_set)

    def only(place):
        def noise(size, deviation):
            made = np.zeros(size)
            made[place] = 1.0
            return made

        return noise

    for place, match in ((-1, "counts 4 clients, and"), (-2, "weights are not in")):
        monkeypatch.setattr(ckks_open, "gaussian", only(place))
        with pytest.raises(MessageRefused, match=match):
            opener.open(total, 5, 24)
    monkeypatch.setattr(ckks_open, "gaussian", only(0))
    # In the first digit, whose gain is 2^-10.
    assert opener.open(total, 5, 24).values[0] == pytest.approx(2**10 / 0.75)


def test_each_opening_of_a_total_has_noise_of_its_own(key_set):
    """Also of the same one."""
    opener, total = opener_of(key_set), total_of(key_set, np.ones(2000))
    one, other = (opener.open(total, 2000, 60).values for _ in range(2))
    assert (one != other).mean() > 0.95


@settings(deadline=None, max_examples=20)
@given(n_values=st.integers(1, 7000))
def test_every_slot_of_every_ciphertext_is_counted(key_set, n_values):
    """Values, padding, weight and count: all are shown to whoever sees the opened total."""
    opener = opener_of(key_set)
    opener.open(total_of(key_set, np.ones(n_values)), n_values, 24)
    assert opener.count.n_released == SUMS.n_ciphertexts(n_values) * HALF
    assert SUMS.n_released(n_values) == SUMS.n_ciphertexts(n_values) * HALF


def refusals(keys, foreign):
    """Totals that decrypt to something that is refused."""
    public, empty = keys.public, np.zeros(HALF)
    heavy = empty.copy()
    heavy[-2:] = 7.0, 3.0
    large = np.full(HALF, 8000.0)
    large[-2:] = 0.5, 3.0
    crowd = empty.copy()
    crowd[-2:] = 0.5, 4.0
    return {
        "nobody counts": public.encrypt(empty),
        "rubbish": foreign.public.encrypt(heavy),
        "too heavy": public.encrypt(heavy),
        "too large": public.encrypt(large),
        "too many": public.encrypt(crowd),
    }


@pytest.mark.parametrize("kind", ["nobody counts", "rubbish", "too heavy", "too large", "too many"])
def test_what_is_refused_is_counted_too(key_set, foreign_key_set, kind):
    """A refusal is an answer, and tells of the key: rubbish, which may be crafted, uses it up."""
    opener = opener_of(key_set)
    with pytest.raises(MessageRefused):
        opener.open(refusals(key_set, foreign_key_set)[kind], 5, 24)
    assert opener.count.n_released == (LOUD.releases if kind == "rubbish" else HALF)


def test_what_is_no_total_at_all_is_not_counted(key_set):
    """Of a wrong length nothing is decrypted, so nothing is told."""
    opener = opener_of(key_set)
    with pytest.raises(MessageRefused, match="payload of"):
        opener.open(b"short", 5, 24)
    assert opener.count.n_released == 0


def test_a_key_is_worn_out_before_it_releases_more_than_its_noise_hides(key_set, monkeypatch):
    """Two of three openings; at the third nothing is decrypted any more."""
    opener = opener_of(key_set, Flooding(68, releases=5000))
    total = total_of(key_set, np.ones(5))
    for _ in range(2):
        opener.open(total, 5, 24)
    monkeypatch.setattr(SecretKey, "decrypt", lambda *_: pytest.fail("decrypted"))
    with pytest.raises(KeyWornOut, match="4096 values are released under this key and 2048 are"):
        opener.open(total, 5, 24)
    assert opener.count.n_released == 4096


def test_openers_of_one_key_count_together(key_set):
    """Whoever opens with the key wears the same key out."""
    count, flooding = MemoryCount(), Flooding(68, releases=3000)
    one, other = (CkksOpener(key_set.secret, count, flooding, 3) for _ in range(2))
    total = total_of(key_set, np.ones(5))
    one.open(total, 5, 24)
    with pytest.raises(KeyWornOut):
        other.open(total, 5, 24)


def test_the_count_is_first(key_set, monkeypatch):
    """Where it cannot be written, nothing is decrypted."""

    class Full:
        n_released = 0

        def spend(self, n, at_most):
            raise KeyFileError("no space left")

    total = total_of(key_set, np.ones(5))
    monkeypatch.setattr(SecretKey, "decrypt", lambda *_: pytest.fail("decrypted"))
    with pytest.raises(KeyFileError, match="no space"):
        CkksOpener(key_set.secret, Full(), LOUD, 3).open(total, 5, 24)


def test_unflooded_openings_are_counted_and_never_wear_a_key_out(key_set):
    """Where no noise has to hide them there is no limit but that of the count itself."""
    opener = opener_of(key_set, None)
    assert opener.deviation == 0
    opened = opener.open(total_of(key_set, np.full(5, 0.125)), 5, 40)
    np.testing.assert_array_equal(opened.values, 0.125)
    assert opener.count.n_released == HALF
    assert most_releases(None) == 2**62


def test_the_default_flooding_costs_less_than_rounding_where_values_have_digits(key_set):
    """For 500 clients a fifth of what rounding a one errs by; in one slot, 8 σ are below 1e-7."""
    rounding = 2.0 ** -Policy().rule_for("update").precision_bits / 12**0.5
    deviation = opener_of(key_set, Policy().flooding, 500).deviation
    for n_values in (1, 1023):
        assert deviation * 2.0 ** -Digits.of(SUMS, n_values).finest_bits < 0.2 * rounding
    assert Digits.of(SUMS, 1024).finest_bits == 0
    assert 0.9e-7 < 8 * deviation < 1e-7

"""A committee opens what one authority would: the same sums, but for the officers' noise."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from ring_by_hand import coefficients, minus, plus, secret_of, slots_of, times
from scipy import stats

from securefl.crypto.committee import OfficerKey
from securefl.crypto.committee_flood import Flood
from securefl.crypto.committee_public import (
    CollectiveKey,
    Combiner,
    commitment,
    common_polynomial,
    from_wire,
)
from securefl.crypto.contexts import primes
from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.crypto.ring import words_of
from securefl.errors import ConfigError, KeyWornOut
from securefl.exchange.ckks import CkksAdder, CkksSealer
from securefl.exchange.committee import Committee
from securefl.exchange.policy import Flooding, Policy

WIDE = CkksParameters(modulus_bits=(60, 49), scale_bits=52)
THREE = CkksParameters(poly_degree=8192, modulus_bits=(46, 46, 46, 20), scale_bits=84)
LITTLE = Flooding(statistical_bits=30, releases=16 * 2048)
"""What one prime has room for."""
DEFAULT = Flooding()
CASES = {
    "two-primes": (3, SUMS, DEFAULT),
    "one-prime": (2, WIDE, LITTLE),
    "three-primes": (2, THREE, DEFAULT),
    "five-officers": (5, SUMS, DEFAULT),
}
MAX_CLIENTS, FINE = 5, 45


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def case(request):
    """A committee, and how much it floods."""
    n_officers, parameters, flooding = request.param
    return Committee.ephemeral(n_officers, parameters), flooding


@pytest.fixture(scope="module")
def committee(case):
    return case[0]


@pytest.fixture(scope="module")
def opener(case):
    committee, flooding = case
    return committee.opener(flooding, MAX_CLIENTS)


class Silent(random.Random):
    """Draws no noise: shares as nobody may ever release them."""

    def gauss(self, mu=0.0, sigma=1.0):
        return 0.0


def total_of(keys, values, weights):
    sealer, running = CkksSealer(keys.public), CkksAdder(keys.adding).start(len(values[0]))
    for x, weight in zip(values, weights, strict=True):
        running = running.plus(sealer.seal(x, weight))
    return running.total()


def exact_shares(opener, total):
    return [o.key.opening_share(total, opener.flood, Silent()) for o in opener.officers]


def unflooded(opener, total):
    """The exact slots of one ciphertext: what CKKS itself computes."""
    return opener.combiner.slots(total, exact_shares(opener, total))


def data_primes(parameters):
    return primes(parameters)[:-1]


def residues(share, parameters, *, special=False):
    moduli = primes(parameters) if special else data_primes(parameters)
    return from_wire(share, moduli, parameters.poly_degree)


def is_error_of_keys(error, n_keys):
    """Whether these are the integers that SEAL draws when it makes a public key, n added up."""
    return (
        np.abs(error).max() <= 21 * n_keys and 2.9 < error.astype(float).std() / n_keys**0.5 < 3.5
    )


def test_a_public_share_is_its_officers_by_exact_arithmetic(committee):
    """In Python's integers b + a s is a small e, modulo each prime, the special one too."""
    parameters, (key, _) = committee.public.parameters, committee.members[0]
    moduli = primes(parameters)
    common = common_polynomial([b"1" * 32, b"2" * 32], parameters)
    share = residues(key.public_share(common), parameters, special=True)
    error = plus(share, times(common, secret_of(key), moduli), moduli)
    assert is_error_of_keys(coefficients(error, moduli), 1)


def test_the_collective_key_is_of_the_sum_of_secrets(committee):
    """By exact arithmetic b + a Σ s_i is small, and each s_i is ternary, modulo all primes."""
    parameters = committee.public.parameters
    moduli, degree = primes(parameters), parameters.poly_degree
    public = committee.public._context.public_key().data.data()
    b, a = words_of(public, 2 * len(moduli) * degree).reshape(2, len(moduli), degree)
    total = np.zeros_like(b)
    for key, _ in committee.members:
        assert set(coefficients(secret_of(key), moduli)) == {-1, 0, 1}
        total = plus(total, secret_of(key), moduli)
    error = coefficients(plus(b, times(a, total, moduli), moduli), moduli)
    assert is_error_of_keys(error, len(committee.members))


def test_an_opening_share_is_its_officers_by_exact_arithmetic(committee, opener):
    """Without noise h = c_1 s, residue by residue; with it h - c_1 s is what was drawn."""
    parameters, officer = committee.public.parameters, opener.officers[0]
    moduli = data_primes(parameters)
    total = committee.public.encrypt(np.ones(parameters.poly_degree // 2))
    c_1 = opener.combiner.frame.from_wire(total)[1]
    product = times(c_1, secret_of(officer.key)[:-1], moduli)
    (exact, *_) = exact_shares(opener, total)
    assert np.array_equal(residues(exact, parameters), product)
    noisy = residues(officer.shares([total])[0], parameters)
    noise = coefficients(minus(noisy, product, moduli), moduli)
    assert np.abs(noise).max() < 8 * opener.flood.deviation
    assert noise.astype(float).std() == pytest.approx(opener.flood.deviation, rel=0.05)


def test_the_combiner_decodes_by_exact_arithmetic(committee, opener):
    """Its slots are those of c_0 + Σ h_i put together and decoded without SEAL."""
    parameters = committee.public.parameters
    moduli, half = data_primes(parameters), parameters.poly_degree // 2
    values = np.random.default_rng(0).normal(size=half)
    total = committee.public.encrypt(values)
    polynomial = opener.combiner.frame.from_wire(total)[0]
    shares = [officer.shares([total])[0] for officer in opener.officers]
    for share in shares:
        polynomial = plus(polynomial, residues(share, parameters), moduli)
    by_hand = slots_of(coefficients(polynomial, moduli), parameters.scale_bits)
    slots = opener.combiner.slots(total, shares).real
    np.testing.assert_allclose(slots, by_hand, rtol=0, atol=1e-11)
    np.testing.assert_allclose(slots, values, rtol=0, atol=opener.flood.tolerance + 1e-11)


def test_all_officers_open_what_one_authority_opens(committee, opener, key_set):
    """The same values under a committee's key and under one key: equal within the stated noise."""
    rng = np.random.default_rng(0)
    n = committee.public.parameters.values_per_ciphertext  # so each has one digit
    values, weights = rng.normal(size=(5, n)), np.array([13, 25, 40, 20, 30]) / 256
    opened = opener.open(total_of(committee, values, weights), n, FINE)
    single = key_set.opener(DEFAULT, 5).open(total_of(key_set, values, weights), n, FINE)
    assert opened.n_clients == single.n_clients == 5
    assert opened.weight == single.weight == 0.5
    errors = opened.weight * (opened.values - weights @ values / 0.5)
    assert errors.std() == pytest.approx(opener.flood.opened_deviation, rel=0.15)
    assert np.abs(errors).max() < opener.flood.tolerance


def test_weights_come_out_as_with_one_authority(key_set):
    """By default exactly, for sizes of hundreds of thousands of samples, in every opening."""
    committee, sizes = Committee.ephemeral(3), np.array([70_001, 123_456, 65_537, 1, 250_000])
    openers = committee.opener(DEFAULT, 5), key_set.opener(DEFAULT, 5)
    weights = sizes / 2**19
    for _ in range(20):
        for keys, opener in zip((committee, key_set), openers, strict=True):
            opened = opener.open(total_of(keys, np.ones((5, 3)), weights), 3, 24)
            assert opened.weight == weights.sum()


def test_without_noise_the_collective_key_is_as_exact_as_one_key(committee, opener):
    """All of the error is the flooding's: the ceremony itself costs CKKS no precision."""
    parameters = committee.public.parameters
    values = np.random.default_rng(1).normal(size=parameters.poly_degree // 2)
    slots = unflooded(opener, committee.public.encrypt(values))
    atol = 2.0**14 / 2.0**parameters.scale_bits + 1e-13
    np.testing.assert_allclose(slots, values, rtol=0, atol=atol)


@pytest.mark.parametrize("n_values", [1, 2046, 2047, 4093])
def test_messages_of_several_ciphertexts_open_in_order(n_values):
    """Every value comes back in its place, at sizes around whole ciphertexts."""
    committee = Committee.ephemeral(2)
    values = np.linspace(-8000, 8000, n_values)
    total = total_of(committee, [values] * 3, [0.25] * 3)
    opened = committee.opener(DEFAULT, 5).open(total, n_values, 24)
    np.testing.assert_allclose(opened.values, values, rtol=2.0**-24, atol=2.0**-24)
    assert opened.n_clients == 3


def test_the_noise_of_a_total_is_as_stated(committee, opener):
    """It is two standard deviations of a slot's noise, under the sum of the officers' keys."""
    half = committee.public.parameters.poly_degree // 2
    running = committee.adding.sum()
    for _ in range(MAX_CLIENTS):
        running = running.plus(committee.public.encrypt(np.zeros(half)))
    errors = unflooded(opener, running.coefficients())
    assert 2 * errors.std() == pytest.approx(opener.flood.noise, rel=0.15)


def test_two_openings_of_one_total_scatter_as_stated(committee, opener):
    """Their difference has twice the variance of all officers' noise together, and no mean."""
    n = committee.public.parameters.values_per_ciphertext
    values = np.random.default_rng(3).normal(size=n)
    total = total_of(committee, [values] * 2, [0.5] * 2)
    first, second = (opener.open(total, n, 50) for _ in range(2))
    difference = first.values * first.weight - second.values * second.weight
    deviation = np.sqrt(2) * opener.flood.opened_deviation
    assert difference.std() == pytest.approx(deviation, rel=0.1)
    assert abs(difference.mean()) < 5 * deviation / np.sqrt(n)


def test_the_noise_is_gaussian_and_as_wide_in_every_coefficient(committee, opener):
    """Drawn in the slots, it is isotropic, and independent from one share to the next."""
    parameters, officer = committee.public.parameters, opener.officers[0]
    moduli, half = data_primes(parameters), parameters.poly_degree // 2
    total = committee.public.encrypt(np.zeros(half))
    (exact, *_) = exact_shares(opener, total)
    noises = []
    for share in officer.shares([total] * 3):
        drawn = minus(residues(share, parameters), residues(exact, parameters), moduli)
        noises.append(coefficients(drawn, moduli).astype(float) / opener.flood.deviation)
    noise = np.stack(noises)
    assert noise.std() == pytest.approx(1, rel=0.05)
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-6
    assert abs(np.corrcoef(noise[:, 1:].ravel(), noise[:, :-1].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(noise)[0, 1]) < 0.1
    assert noise[:, :half].std() == pytest.approx(noise[:, half:].std(), rel=0.1)


def test_the_noises_lowest_bits_are_as_random_as_its_highest(committee, opener):
    """Parity is even: noise with gaps would leave the low bits of what it hides in sight."""
    parameters, officer = committee.public.parameters, opener.officers[0]
    moduli = data_primes(parameters)
    total = committee.public.encrypt(np.zeros(parameters.poly_degree // 2))
    (exact, *_) = exact_shares(opener, total)
    (share,) = officer.shares([total])
    drawn = minus(residues(share, parameters), residues(exact, parameters), moduli)
    bits = (coefficients(drawn, moduli) % 4).astype(int)
    assert stats.chisquare(np.bincount(bits, minlength=4)).pvalue > 1e-6


def test_flooding_is_counted_as_with_one_authority(committee, opener, case):
    """By the same formula, for the noise of as many ciphertexts as clients times officers."""
    _, flooding = case
    noise = committee.public.parameters.noise(MAX_CLIENTS * len(committee.members))
    assert opener.flood.slot_deviation == pytest.approx(flooding.deviation(noise), rel=1e-12)
    slots = committee.public.parameters.poly_degree // 2
    before = [officer.count.n_released for officer in opener.officers]
    opener.open(total_of(committee, [np.ones(1)] * 3, [0.25] * 3), 1, 24)
    after = [officer.count.n_released for officer in opener.officers]
    assert after == [n_released + slots for n_released in before]
    assert committee.n_released == max(after)


def test_clients_and_server_get_what_they_always_get(committee):
    """The collective key's files are read by the same types and name the same key."""
    public = committee.public
    assert PublicKey.from_json(public.to_json()).key_id == public.key_id
    assert AddingContext.from_json(committee.adding.to_json()).key_id == public.key_id
    assert public.epoch == committee.adding.epoch == 1


def test_the_next_key_is_another_committees_of_the_next_epoch():
    """With as many officers and the same parameters, and nothing released."""
    first = Committee.ephemeral(2, WIDE)
    second = first.successor()
    assert (second.public.epoch, len(second.members), second.n_released) == (2, 2, 0)
    assert second.public.parameters == WIDE
    assert second.public.key_id != first.public.key_id


def test_an_officers_key_survives_its_file(committee, opener):
    """What is encrypted at rest gives the same shares again."""
    parameters, (first, _) = committee.public.parameters, committee.members[0]
    again = OfficerKey.from_secret_bytes(first.to_secret_bytes(), parameters)
    total = committee.public.encrypt(np.ones(parameters.poly_degree // 2))
    shares = [key.opening_share(total, opener.flood, Silent()) for key in (first, again)]
    assert shares[0] == shares[1]


def test_shares_take_as_few_bytes_as_ciphertexts():
    """Six a residue: half a ciphertext for an opening, and a third prime for the public share."""
    key = OfficerKey.generate()
    common = common_polynomial([bytes(32), b"1" * 32])
    assert len(key.public_share(common)) == 3 * 4096 * 6
    total = CkksSealer(Committee.ephemeral(2).public).seal(np.ones(1), 0.5)
    share = key.opening_share(total, Flood(SUMS, 2, 5, 40, 2**30), random.SystemRandom())
    assert len(share) == len(total) // 2 == 2 * 4096 * 6


@pytest.mark.parametrize("parameters", [SUMS, WIDE, THREE], ids=str)
def test_the_common_polynomial_is_every_officers(parameters):
    """The same for the same contributions, another for any other byte or order."""
    contributions = [bytes([i]) * 32 for i in range(3)]
    common = common_polynomial(contributions, parameters)
    np.testing.assert_array_equal(common, common_polynomial(contributions, parameters))
    assert common.shape == (len(parameters.modulus_bits), parameters.poly_degree)
    for row, modulus in zip(common, primes(parameters), strict=True):
        assert row.max() < modulus
        assert stats.kstest(row.astype(float) / modulus, "uniform").pvalue > 1e-6
    changed = [contributions[0], contributions[1], bytes(31) + b"\x01"]
    for other in (contributions[::-1], changed):
        assert (common != common_polynomial(other, parameters)).mean() > 0.99


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((SUMS, 1, 5, 40, 2**30), "n_officers = 1"),
        ((SUMS, 2, 0, 40, 2**30), "max_clients"),
        ((SUMS, 2, 5, 0, 2**30), "statistical_bits"),
        ((SUMS, 2, 5, 40, 0), "releases = 5, 40, 0"),
        ((WIDE, 3, 5, 40, 2**30), "clients could not be counted"),
        ((SUMS, 3, 5, 64, 2**30), r"can be drawn to 9e\+15"),
    ],
)
def test_noise_that_makes_no_sense_is_refused(numbers, message):
    """Also where it drowns the count, or could only be drawn with gaps."""
    with pytest.raises(ConfigError, match=message):
        Flood(*numbers)


def test_a_policy_without_flooding_is_no_committees():
    """A bare share is an officer's key."""
    with pytest.raises(ConfigError, match="a bare share is a key"):
        Committee.ephemeral(2, WIDE).opener(None, 5)


def test_an_opener_wants_all_its_officers():
    """Fewer than the noise and the combiner are for make none."""
    opener = Committee.ephemeral(3, WIDE).opener(LITTLE, 5)
    with pytest.raises(ConfigError, match=r"are for \[2, 3\] officers"):
        replace(opener, officers=opener.officers[:2])
    with pytest.raises(ConfigError, match=r"are for \[2, 3\] officers"):
        replace(opener, combiner=Combiner(2, WIDE))


def test_openings_end_with_the_noises_budget():
    """After so many values each officer refuses, whatever is asked for, and whoever opens."""
    committee = Committee.ephemeral(3)
    total = total_of(committee, [np.ones(5)] * 3, [0.25] * 3)
    few = Flooding(releases=2 * 2048 + 100)
    opener, another = committee.opener(few, 5), committee.opener(few, 5)
    for _ in range(2):
        opener.open(total, 5, 24)
    for either in (opener, another):
        with pytest.raises(KeyWornOut, match="make a new key"):
            either.open(total, 5, 24)
    assert committee.n_released == 2 * 2048


def test_a_commitment_names_one_share():
    """Another share, another commitment."""
    assert commitment(b"one") != commitment(b"two")


def test_a_collective_key_says_its_epoch():
    """As every key does."""
    keys = [OfficerKey.generate() for _ in range(2)]
    common = common_polynomial([bytes([i]) * 32 for i in range(2)])
    shares = [key.public_share(common) for key in keys]
    made = CollectiveKey.assembled(common, [commitment(s) for s in shares], shares, epoch=7)
    assert made.public.epoch == made.adding.epoch == 7


def test_a_committee_carries_a_consortiums_policy():
    """As a `KeySet` does."""
    policy = Policy(min_contributions=5)
    assert replace(Committee.ephemeral(2, WIDE), policy=policy).policy is policy

"""A committee opens what one authority would: the same sums, but for the officers' noise."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats
from tenseal import sealapi

from securefl.crypto.committee_flood import STATISTICAL_BITS, Flood
from securefl.crypto.committee_public import commitment, common_polynomial
from securefl.crypto.contexts import primes
from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.crypto.ring import RingFrame, words_of
from securefl.errors import ConfigError, OpeningRefused
from securefl.exchange.ckks import CkksAdder, CkksSealer
from securefl.exchange.ckks_open import CkksOpener
from securefl.exchange.committee_open import Committee
from securefl.roles.authority import Authority

PRECISION_BITS = 30
WIDE = CkksParameters(scale_bits=52)


def flood(n_officers=3, max_clients=8, max_releases=16, parameters=WIDE):
    return Flood(parameters, n_officers, max_clients, max_releases)


@pytest.fixture(scope="module", params=[(2, SUMS, 1), (3, WIDE, 64), (5, WIDE, 4)], ids=str)
def committee(request):
    n_officers, parameters, max_releases = request.param
    return Committee.ephemeral(flood(n_officers, 5, max_releases, parameters))


@pytest.fixture
def fresh():
    """A committee of three of its own for a test that spends its budget."""
    return Committee.ephemeral(flood())


class Silent(random.Random):
    """Draws no noise: shares as nobody may ever release them."""

    def gauss(self, mu=0.0, sigma=1.0):
        return 0.0


def total_of(public, adding, values, weights):
    sealer, running = CkksSealer(public), CkksAdder(adding).start(len(values[0]))
    for x, weight in zip(values, weights, strict=True):
        running = running.plus(sealer.seal(x, weight))
    return running.total()


def exact_shares(officers, total, flood_):
    return [officer.key.opening_share(total, flood_, Silent()) for officer in officers]


def unflooded(committee, total):
    """The exact slots of one ciphertext: what CKKS itself computes."""
    shares = exact_shares(committee.officers, total, committee.flood)
    return committee.opener(PRECISION_BITS).combiner.slots(total, shares)


def test_all_officers_open_what_one_authority_opens(committee, key_set):
    """The same values under a committee's key and under one key: equal within the stated noise."""
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(5, 700)), [0.1, 0.2, 0.3, 0.15, 0.25]
    keys = committee.collective
    opened = committee.opener(PRECISION_BITS).open(
        total_of(keys.public, keys.adding, values, weights), 700
    )
    single = CkksOpener(key_set.secret, PRECISION_BITS).open(
        total_of(key_set.public, key_set.adding, values, weights), 700
    )
    assert opened.n_clients == single.n_clients == 5
    assert opened.weight == pytest.approx(single.weight, abs=committee.flood.tolerance)
    # The weight's error, of one standard deviation or so, is in every value too.
    errors = opened.values * opened.weight - single.values * single.weight
    assert errors.std() == pytest.approx(committee.flood.opened_deviation, rel=0.15)
    assert np.abs(errors).max() < committee.flood.tolerance


def test_without_noise_the_collective_key_is_as_exact_as_one_key(committee):
    """All of the error is the flooding's: the ceremony itself costs CKKS no precision."""
    values = np.random.default_rng(1).normal(size=2048)
    slots = unflooded(committee, committee.collective.public.encrypt(values))
    scale = 2.0**committee.flood.parameters.scale_bits
    np.testing.assert_allclose(slots, values, rtol=0, atol=2.0**14 / scale)


@pytest.mark.parametrize("n_values", [1, 2046, 2047, 4093])
def test_messages_of_several_ciphertexts_open_in_order(fresh, n_values):
    """Every value comes back in its place, at sizes around whole ciphertexts."""
    values = np.linspace(-60, 60, n_values)
    total = total_of(fresh.collective.public, fresh.collective.adding, [values] * 3, [0.25] * 3)
    opened = fresh.opener(PRECISION_BITS).open(total, n_values)
    np.testing.assert_allclose(opened.values, values, rtol=0, atol=100 * fresh.flood.tolerance)
    assert opened.n_clients == 3


def test_the_noise_of_a_total_is_no_longer_than_stated(committee):
    """The bound t is on the length of all N coefficients, and it is not twice as long as they."""
    public, flood_ = committee.collective.public, committee.flood
    scale, half = 2.0**flood_.parameters.scale_bits, flood_.parameters.poly_degree // 2
    values = np.round(np.random.default_rng(2).normal(size=half) * 2**20) / 2**20
    sum_ = committee.collective.adding.sum()
    for _ in range(flood_.max_clients):
        sum_ = sum_.plus(public.encrypt(values))
    errors = unflooded(committee, sum_.coefficients()) - flood_.max_clients * values
    # Real parts hold half of the noise, and a slot's is √(N/2) times a coefficient's.
    length = scale * np.sqrt(2 * np.sum(errors**2) / half)
    assert 0.5 * flood_.noise < length < flood_.noise


def test_two_openings_of_one_total_scatter_as_stated(fresh):
    """Their difference has twice the variance of all officers' noise together, and no mean."""
    values = np.random.default_rng(3).normal(size=2046)
    total = total_of(fresh.collective.public, fresh.collective.adding, [values] * 2, [0.5] * 2)
    opener = fresh.opener(40)
    first, second = (opener.open(total, 2046) for _ in range(2))
    difference = first.values * first.weight - second.values * second.weight
    deviation = np.sqrt(2) * fresh.flood.opened_deviation
    assert difference.std() == pytest.approx(deviation, rel=0.1)
    assert abs(difference.mean()) < 5 * deviation / np.sqrt(2046)


def test_one_officers_noise_alone_has_the_stated_deviation(fresh):
    """Against all others and the combiner it is this noise that hides the last officer's key."""
    total = fresh.collective.public.encrypt(np.zeros(2048))
    last = fresh.officers[0].key
    combiner = fresh.opener(40).combiner
    exact, *others = exact_shares(fresh.officers, total, fresh.flood)
    noisy = last.opening_share(total, fresh.flood, random.SystemRandom())
    noise = combiner.slots(total, [noisy, *others]) - combiner.slots(total, [exact, *others])
    assert noise.std() == pytest.approx(fresh.flood.slot_deviation, rel=0.1)


def coefficients(key, residues):
    """Of a polynomial in the transform's form, by SEAL, around zero."""
    modulus, context = primes(WIDE)[0], key._context
    hiding = np.stack([residues, np.ones_like(residues)])[:, None]
    ciphertext = (
        RingFrame.of_fresh(context, WIDE.scale_bits).loaded(context, hiding).ciphertext()[0]
    )
    sealapi.Evaluator(context.seal_context().data).transform_from_ntt_inplace(ciphertext)
    words = words_of(ciphertext, len(residues)).astype(object)
    return np.array([w - modulus if 2 * w > modulus else w for w in words], float)


def test_the_noise_is_gaussian_and_as_wide_in_every_coefficient(fresh):
    """Drawn in the slots, it is isotropic: deviation σ = √(12 τ) 2^(s/2) t in each coefficient."""
    modulus, key = np.uint64(primes(WIDE)[0]), fresh.officers[0].key
    total = fresh.collective.public.encrypt(np.zeros(2048))
    (exact,) = exact_shares(fresh.officers[:1], total, fresh.flood)
    noises = []
    for _ in range(4):
        noisy = key.opening_share(total, fresh.flood, random.SystemRandom())
        residues = (np.frombuffer(noisy, "<u8") + modulus - np.frombuffer(exact, "<u8")) % modulus
        noises.append(coefficients(key, residues) / fresh.flood.deviation)
    noise = np.stack(noises)
    assert noise.std() == pytest.approx(1, rel=0.05)
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-4
    assert abs(np.corrcoef(noise[:, 1:].ravel(), noise[:, :-1].ravel())[0, 1]) < 0.05
    assert noise[:, :2048].std() == pytest.approx(noise[:, 2048:].std(), rel=0.1)
    t, tau = fresh.flood.noise, fresh.flood.max_releases
    assert fresh.flood.deviation == np.sqrt(12 * tau) * 2 ** (STATISTICAL_BITS / 2) * t


def test_clients_and_server_get_what_they_always_get(committee):
    """The collective key's files are read by the same types and name the same key."""
    keys = committee.collective
    assert PublicKey.from_json(keys.public.to_json()).key_id == keys.public.key_id
    assert AddingContext.from_json(keys.adding.to_json()).key_id == keys.public.key_id


def test_an_officers_key_survives_its_file(fresh):
    """What is encrypted at rest gives the same shares again."""
    first = fresh.officers[0].key
    again = type(first).from_secret_bytes(first.to_secret_bytes(), WIDE)
    total = fresh.collective.public.encrypt(np.ones(2048))
    shares = [key.opening_share(total, fresh.flood, Silent()) for key in (first, again)]
    assert shares[0] == shares[1]


@dataclass
class KeysOf:
    """A committee's public keys as a federation takes them: no one has the secret."""

    public: PublicKey
    adding: AddingContext
    secret: None = None


def test_an_authority_opens_by_committee(federate, fresh):
    """`CommitteeOpener` stands where `CkksOpener` stands: no other object of a round changes."""
    federation = federate(KeysOf(fresh.collective.public, fresh.collective.adding))
    opener = fresh.opener(PRECISION_BITS)
    authority = Authority(opener, federation.roster, 3, federation.log.append)
    opened = authority.open(federation.collect().request())
    weight = sum(client.weight for client in federation.clients.values())
    tolerance = 10 * fresh.flood.tolerance / weight
    np.testing.assert_allclose(opened.values, federation.mean(), rtol=0, atol=tolerance)
    assert opened.n_clients == federation.n_clients


def test_the_common_polynomial_is_every_officers(committee):
    """The same for the same contributions, another for any other byte or order."""
    parameters = committee.flood.parameters
    contributions = [bytes([i]) * 32 for i in range(3)]
    common = common_polynomial(contributions, parameters)
    np.testing.assert_array_equal(common, common_polynomial(contributions, parameters))
    assert (common < np.array(primes(parameters), np.uint64)[:, None]).all()
    changed = [contributions[0], contributions[1], bytes(31) + b"\x01"]
    for other in (contributions[::-1], changed):
        assert (common != common_polynomial(other, parameters)).mean() > 0.99


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((SUMS, 1, 5, 1), "n_officers = 1"),
        ((SUMS, 2, 0, 1), "max_clients"),
        ((SUMS, 2, 5, 0), "max_clients"),
        ((SUMS, 3, 5, 4096), "scale_bits = 45"),
    ],
)
def test_noise_that_makes_no_sense_is_refused(numbers, message):
    """Also where it drowns the count: SUMS' scale has no room for thousands of openings."""
    with pytest.raises(ConfigError, match=message):
        Flood(*numbers)


def test_openings_end_with_the_noises_budget(fresh):
    """After max_releases ciphertexts each officer refuses, whatever is asked for."""
    total = total_of(fresh.collective.public, fresh.collective.adding, [np.ones(5)] * 3, [0.25] * 3)
    opener = fresh.opener(PRECISION_BITS)
    for _ in range(fresh.flood.max_releases):
        opener.open(total, 5)
    with pytest.raises(OpeningRefused, match="make a new key"):
        opener.open(total, 5)
    assert {officer.budget.left for officer in fresh.officers} == {0}


def test_a_commitment_names_one_share():
    """Another share, another commitment."""
    assert commitment(b"one") != commitment(b"two")

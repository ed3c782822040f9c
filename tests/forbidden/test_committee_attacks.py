"""What a combiner, a client, or all officers but one might try."""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import tenseal as ts
from reachability import reachable
from ring_by_hand import coefficients, minus, secret_of
from scipy import stats

from securefl.crypto.committee import OfficerKey
from securefl.crypto.committee_flood import Flood
from securefl.crypto.committee_public import (
    CollectiveKey,
    Combiner,
    added,
    commitment,
    common_polynomial,
    from_wire,
    to_wire,
)
from securefl.crypto.contexts import fresh_context, primes, secret_key_alone, with_secret_key
from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.ring import words_of
from securefl.errors import ConfigError, Crafted, KeyFileError, MessageRefused
from securefl.exchange.ckks import CkksAdder, CkksSealer
from securefl.exchange.committee import Committee
from securefl.exchange.committee_open import Officer
from securefl.exchange.digits import Digits
from securefl.exchange.keyset import KeySet
from securefl.exchange.policy import Flooding
from securefl.exchange.releases import MemoryCount

WIDE = CkksParameters(modulus_bits=(60, 49), scale_bits=52)
N_SLOTS = 2048


@pytest.fixture(scope="module", params=["two-primes", "one-prime"])
def case(request):
    """A committee of three and its flooding: the default's, and what one prime has room for."""
    if request.param == "two-primes":
        return Committee.ephemeral(3), Flooding()
    return Committee.ephemeral(3, WIDE), Flooding(30, 32 * N_SLOTS)


@pytest.fixture(scope="module")
def committee(case):
    return case[0]


@pytest.fixture
def opener(case):
    """One that has released nothing yet."""
    committee, flooding = case
    anew = tuple((key, MemoryCount()) for key, _ in committee.members)
    return replace(committee, members=anew).opener(flooding, 5)


@pytest.fixture(scope="module")
def total(committee):
    """Three clients' values, one ciphertext."""
    return sum_of(committee, [np.arange(5.0)] * 3, 0.25)


def sum_of(keys, values, weight):
    sealer, running = CkksSealer(keys.public), CkksAdder(keys.adding).start(len(values[0]))
    for x in values:
        running = running.plus(sealer.seal(x, weight))
    return running.total()


class Silent(random.Random):
    """Draws no noise: a share as nobody may ever release it."""

    def gauss(self, mu=0.0, sigma=1.0):
        return 0.0


def residues(share, parameters, *, special=False):
    """By the data primes; a share of the key also by the special one."""
    moduli = primes(parameters) if special else primes(parameters)[:-1]
    return from_wire(share, moduli, parameters.poly_degree)


def two_polynomials(opener, total):
    """Of a ciphertext, by the data primes."""
    return opener.combiner.frame.from_wire(total)


def is_uniform(rows, moduli):
    """By Kolmogorov and Smirnov, modulo each prime; an honest sample fails once in 10^6 runs."""
    return all(
        stats.kstest(row.astype(float) / modulus, "uniform").pvalue > 1e-6
        for row, modulus in zip(rows, moduli, strict=True)
    )


def quotients(dividends, divisors, moduli):
    """What times the divisor is the dividend, residue by residue."""
    return [
        [int(d) * pow(int(by), -1, modulus) % modulus for d, by in zip(*rows, strict=True)]
        for *rows, modulus in zip(dividends, divisors, moduli, strict=True)
    ]


class Stubborn:
    """An officer whose shares something has changed."""

    def __init__(self, officer, change):
        self._officer, self._change = officer, change

    def shares(self, ciphertexts):
        return [self._change(share) for share in self._officer.shares(ciphertexts)]

    def stop(self):
        self._officer.stop()


def opener_with(opener, change):
    """The committee, but its last officer sends something else."""
    *others, last = opener.officers
    return replace(opener, officers=(*others, Stubborn(last, change)))


def test_all_officers_but_one_see_noise(opener, total):
    """c_0 and the shares of n - 1 officers add up to uniform residues, and to no count."""
    parameters, moduli = opener.combiner.parameters, opener.combiner.frame.moduli
    shares = [o.shares([total])[0] for o in opener.officers]
    for absent in range(3):
        present = [share for i, share in enumerate(shares) if i != absent]
        partial = two_polynomials(opener, total)[0]
        for share in present:
            partial = added(partial, residues(share, parameters), moduli)
        assert is_uniform(partial, moduli)
        silent = bytes(len(shares[0]))
        chosen = [silent if i == absent else share for i, share in enumerate(shares)]
        assert np.abs(opener.combiner.slots(total, chosen)).max() > parameters.max_value


def test_a_uniform_test_can_tell_an_opened_total(opener, total):
    """The test above has teeth: with the last share the same sum is anything but uniform."""
    parameters, moduli = opener.combiner.parameters, opener.combiner.frame.moduli
    shares = [o.shares([total])[0] for o in opener.officers]
    whole = two_polynomials(opener, total)[0]
    for share in shares:
        whole = added(whole, residues(share, parameters), moduli)
    # Modulo one prime alone a scale of 2^78 wraps around: it is the whole that is small.
    small = np.abs(coefficients(whole, moduli)).max()
    assert small < 2.0 ** (parameters.scale_bits + 2)
    values = Digits.of(parameters, 5).joined(opener.combiner.slots(total, shares).real, 5)
    atol = opener.flood.tolerance + 1e-12
    np.testing.assert_allclose(values, 0.75 * np.arange(5.0), rtol=0, atol=atol)


def test_all_officers_but_one_do_not_have_small_coefficients(opener, total):
    """Put together, too, what n - 1 open is as large as the modulus, not as a message."""
    parameters, moduli = opener.combiner.parameters, opener.combiner.frame.moduli
    partial = two_polynomials(opener, total)[0]
    for officer in opener.officers[1:]:
        partial = added(partial, residues(officer.shares([total])[0], parameters), moduli)
    found = coefficients(partial, moduli).astype(float) / float(np.prod(np.array(moduli, object)))
    assert stats.kstest(found + 0.5, "uniform").pvalue > 1e-6


def test_no_officers_key_alone_decrypts(committee, opener, total):
    """SEAL itself decrypts with it to noise: no count of three, nothing in range."""
    frame = opener.combiner.frame
    for key, _ in committee.members:
        slots = np.asarray(frame.loaded(key._context, frame.from_wire(total)).decrypt())
        assert np.abs(slots[-1] - 3) > 1
        assert np.abs(slots).max() > committee.public.parameters.max_value


def test_a_share_alone_looks_uniform_and_never_repeats(opener, total):
    """Also where the ciphertext is the same: each share has noise of its own."""
    parameters = opener.combiner.parameters
    first, second = (residues(s, parameters) for s in opener.officers[0].shares([total, total]))
    assert is_uniform(first, opener.combiner.frame.moduli)
    assert (first != second).all()


def test_public_shares_look_uniform_and_never_share_an_error(committee):
    """Two shares of one key for different polynomials do not differ by a multiple of the key.

    With a common error, (b - b') / (a' - a) would be the key.
    """
    parameters, (key, _) = committee.public.parameters, committee.members[0]
    moduli = primes(parameters)
    commons = [common_polynomial([bytes([i]) * 32, bytes(32)], parameters) for i in (1, 2)]
    shares = [residues(key.public_share(a), parameters, special=True) for a in commons]
    for share in shares:
        assert is_uniform(share, moduli)
    above, below = minus(shares[0], shares[1], moduli), minus(commons[1], commons[0], moduli)
    below[below == 0] = 1  # happens modulo 16 bits
    found = np.array(quotients(above, below, moduli), np.uint64)
    # Modulo 16 bits a residue is right by chance, once in 40961.
    n_right = (found == secret_of(key)).sum(axis=1)
    assert not n_right[:-1].any()
    assert n_right[-1] < 10


def test_without_its_noise_one_share_is_the_key(opener, total):
    """Why officers flood: h / c_1 is s_i, residue by residue. With noise no residue is right."""
    key, moduli = opener.officers[0].key, opener.combiner.frame.moduli
    c_1 = two_polynomials(opener, total)[1]
    for rng, is_key in ((Silent(), True), (random.SystemRandom(), False)):
        share = residues(key.opening_share(total, opener.flood, rng), opener.combiner.parameters)
        found = quotients(share, c_1, moduli)
        assert np.all(np.equal(found, secret_of(key)[:-1]) == is_key)


def test_nothing_of_the_combiner_leads_to_an_officers_key(committee, opener):
    """Its own context has a key that nobody encrypts with, and that is none of theirs."""
    things = reachable(opener.combiner)
    assert not [thing for thing in things if isinstance(thing, (OfficerKey, Officer, Committee))]
    contexts = [thing for thing in things if isinstance(thing, ts.Context)]
    assert contexts
    for context in contexts:
        words = words_of(context.secret_key().data.data(), 4096)
        for key, _ in committee.members:
            assert not np.any(words == secret_of(key)[0])


def test_nothing_of_the_collective_key_opens(committee):
    """Clients and the server get a context without any secret key."""
    for thing in reachable([committee.public, committee.adding]):
        assert not isinstance(thing, (OfficerKey, Officer))
        if isinstance(thing, ts.Context):
            assert not thing.has_secret_key()


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda f: f.__name__)
def test_an_officers_key_is_neither_copied_nor_pickled(opener, act):
    """Nor is the combiner."""
    for held in (opener.officers[0].key, opener.combiner):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            act(held)


def test_the_key_never_becomes_text(committee, opener):
    """No repr of anything that holds it shows more than its type."""
    assert repr(opener.officers[0].key) == "OfficerKey()"
    for holder in (committee, opener, opener.officers[0]):
        assert "OfficerKey" not in repr(holder)


def test_a_context_with_a_public_key_is_no_officers():
    """That key's error is one with nobody else's share: it must not exist beside the secret."""
    context = fresh_context(WIDE)
    with pytest.raises(KeyFileError, match="nothing else"):
        OfficerKey.from_secret_bytes(with_secret_key(context), WIDE)
    with pytest.raises(KeyFileError, match="not of the parameters"):
        OfficerKey.from_secret_bytes(secret_key_alone(context), SUMS)


def residues_in_words(share, frame):
    """As they travelled before, with a byte more where that is the same."""
    wide = from_wire(share, frame.moduli, frame.poly_degree).tobytes()
    return wide if len(wide) != len(share) else wide + b"\0"


SHAPES = {
    "short": lambda share, _: share[:-6],
    "long": lambda share, _: share + bytes(6),
    "empty": lambda _share, _: b"",
    "ones": lambda share, _: b"\xff" * len(share),
    "modulus": lambda share, frame: (
        frame.moduli[0].to_bytes(frame.word_bytes, "little") + share[frame.word_bytes :]
    ),
    "last modulus": lambda share, frame: (
        share[: -frame.word_bytes] + frame.moduli[-1].to_bytes(frame.word_bytes, "little")
    ),
    "eight bytes a residue": residues_in_words,
    "one prime": lambda share, frame: share[: len(share) // len(frame.moduli) - 1],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_share_of_another_shape_is_refused(opener, total, shape):
    """Before TenSEAL sees a byte of it."""
    frame = opener.combiner.frame
    with pytest.raises(MessageRefused, match=r"^share "):
        opener_with(opener, lambda share: SHAPES[shape](share, frame)).open(total, 5, 24)


def rotated(share, frame):
    rows = from_wire(share, frame.moduli, frame.poly_degree)
    return to_wire(np.roll(rows, 1, axis=-1), frame.moduli)


def flipped(share, place, bit):
    return share[:place] + bytes([share[place] ^ bit]) + share[place + 1 :]


WRONG = {
    "nothing": lambda share, _: bytes(len(share)),
    "rotated": rotated,
    "lowest bit": lambda share, _: flipped(share, 0, 1),
    "a high bit": lambda share, frame: flipped(share, frame.word_bytes - 2, 4),
    "the last prime's lowest bit": lambda share, frame: flipped(share, -frame.word_bytes, 1),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_share_shows_in_the_count(opener, total, what):
    """Any error but a small one spreads over all slots: the clients' ones no longer add up.

    A residue is a value of the polynomial, not a coefficient: its lowest bit is as large as any.
    """
    frame = opener.combiner.frame
    with pytest.raises(
        MessageRefused, match=r"slots are not real.* or an officer's share is wrong"
    ):
        opener_with(opener, lambda share: WRONG[what](share, frame)).open(total, 5, 24)


def test_a_share_of_another_total_is_garbage(committee, opener, total):
    """An officer that answers for another ciphertext opens neither."""
    other = committee.public.encrypt(np.ones(N_SLOTS))
    foreign = opener.officers[-1].shares([other])[0]
    with pytest.raises(Crafted, match="slots are not real"):
        opener_with(opener, lambda share: foreign).open(total, 5, 24)


def test_a_total_of_another_key_does_not_open(committee, opener):
    """Another key's ciphertext has the same shape: what it opens to is not real."""
    foreign = KeySet.ephemeral(committee.public.parameters)
    sealed = CkksSealer(foreign.public).seal(np.ones(5), 0.5)
    with pytest.raises(Crafted, match="slots are not real"):
        opener.open(sealed, 5, 24)


@pytest.mark.parametrize("n_shares", [0, 1, 2, 4])
def test_fewer_or_more_shares_than_officers_are_refused(opener, total, n_shares):
    """All open together or none does."""
    shares = (opener.officers[0].shares([total]) * 4)[:n_shares]
    with pytest.raises(MessageRefused, match="all 3 open together"):
        opener.combiner.slots(total, shares)


def test_officers_give_no_share_of_what_hides_nothing(opener, total):
    """A ciphertext (c_0, 0), of another length, or outside the ring gets no answer."""
    for wrong in (bytes(len(total)), total[:-1], b"\xff" * len(total)):
        with pytest.raises(MessageRefused):
            opener.officers[0].shares([wrong])


def test_what_is_refused_counts_as_released(opener, total):
    """A refusal is an answer, too: what may be crafted leaves no officer anything to open."""
    with pytest.raises(Crafted):
        opener.open(sum_of_wrong(opener, total), 5, 24)
    assert {o.count.n_released for o in opener.officers} == {opener.flood.releases}


@pytest.mark.parametrize("bits", [45, 50, 64])
def test_a_client_that_adds_a_multiple_of_the_key_is_refused(bits):
    """K s is not real; of it, the officers' noise covers K = 2^44 at most."""
    committee = Committee.ephemeral(3)
    opener = committee.opener(Flooding(), 5)
    total = sum_of(committee, [np.ones(5)] * 3, 0.25)
    residues_, moduli = two_polynomials(opener, total), opener.combiner.frame.moduli
    for residue, modulus in zip(residues_[1], moduli, strict=True):
        residue[:] = (residue + np.uint64(2**bits % modulus)) % np.uint64(modulus)
    assert opener.open(total, 5, 24).n_clients == 3
    with pytest.raises(Crafted, match="slots are not real"):
        opener.open(opener.combiner.frame.to_wire(residues_), 5, 24)


def sum_of_wrong(opener, total):
    residues_ = two_polynomials(opener, total)
    residues_[0, 0, 0] ^= np.uint64(1)
    return opener.combiner.frame.to_wire(residues_)


def test_more_clients_than_the_noise_is_sized_for_are_refused(committee, opener):
    """Their ciphertexts' noise would be longer than what hides it."""
    with pytest.raises(MessageRefused, match=r"counts 6 clients, .* at most 5"):
        opener.open(sum_of(committee, [np.ones(5)] * 6, 0.125), 5, 24)


@pytest.fixture(scope="module", params=[SUMS, WIDE], ids=["two-primes", "one-prime"])
def ceremony(request):
    """Parameters, a common polynomial and two officers' shares of a key."""
    keys = [OfficerKey.generate(request.param) for _ in range(2)]
    common = common_polynomial([bytes([i]) * 32 for i in range(2)], request.param)
    return request.param, common, [key.public_share(common) for key in keys]


def test_an_officer_cannot_choose_its_share_after_the_others(ceremony):
    """The rogue key b* - b_1, whose sum is a key of its own, is not what it had committed to."""
    parameters, common, (honest, own) = ceremony
    moduli = primes(parameters)
    wanted, theirs = (residues(share, parameters, special=True) for share in (own, honest))
    rogue = to_wire(minus(wanted, theirs, moduli).astype(np.uint64), moduli)
    commitments = [commitment(honest), commitment(own)]
    with pytest.raises(MessageRefused, match="officer 2 had committed to another"):
        CollectiveKey.assembled(common, commitments, [honest, rogue], parameters)
    # It would have been one: whoever had not asked for commitments, gets just that key.
    taken = [commitment(honest), commitment(rogue)]
    made = CollectiveKey.assembled(common, taken, [honest, rogue], parameters)
    public = made.public._context.public_key().data.data()
    size = wanted.size
    np.testing.assert_array_equal(words_of(public, size), wanted.ravel())


def test_a_ceremony_with_a_copied_or_missing_part_is_refused(ceremony):
    """Two officers cannot send the same, and one is no committee."""
    parameters, common, shares = ceremony
    with pytest.raises(MessageRefused, match="copied"):
        CollectiveKey.assembled(common, [commitment(shares[0])] * 2, [shares[0]] * 2, parameters)
    with pytest.raises(MessageRefused, match="copied"):
        common_polynomial([bytes(32)] * 2)
    with pytest.raises(MessageRefused, match="32 bytes"):
        common_polynomial([bytes(32), b"short"])
    with pytest.raises(ConfigError, match="two or more"):
        CollectiveKey.assembled(common, [commitment(shares[0])], shares[:1], parameters)
    with pytest.raises(ConfigError, match="1 commitments to 2"):
        CollectiveKey.assembled(common, [commitment(shares[0])], shares, parameters)
    with pytest.raises(ConfigError, match="two or more"):
        Combiner(1)


@pytest.mark.parametrize("shape", ["empty", "short", "ones", "one prime less"])
def test_a_damaged_share_of_the_key_is_refused(ceremony, shape):
    """Even if its officer had committed to it."""
    parameters, common, (honest, _) = ceremony
    n_bytes = len(honest) // len(parameters.modulus_bits)
    share = {
        "empty": b"",
        "short": honest[:-1],
        "ones": b"\xff" * len(honest),
        "one prime less": honest[:-n_bytes],
    }[shape]
    commitments = [commitment(honest), commitment(share)]
    with pytest.raises(MessageRefused, match=r"^share "):
        CollectiveKey.assembled(common, commitments, [honest, share], parameters)


def test_noise_for_other_parameters_is_refused(opener, total):
    """Sized for another scale it would hide less, or drown the total."""
    other = CkksParameters(scale_bits=77)
    with pytest.raises(ConfigError, match="other CKKS parameters"):
        opener.officers[0].key.opening_share(
            total, Flood(other, 2, 5, 40, N_SLOTS), random.SystemRandom()
        )


@pytest.mark.parametrize("bits", [(54, 54), (36, 36, 36)], ids=str)
def test_a_special_prime_of_a_data_primes_size_makes_no_committee(bits):
    """Then SEAL's order of them is not ours to choose."""
    parameters = CkksParameters(modulus_bits=bits, scale_bits=45)
    key = OfficerKey.generate(parameters)
    common = common_polynomial([bytes(32), b"1" * 32], parameters)
    with pytest.raises(ConfigError, match="must differ in size"):
        key.public_share(common)

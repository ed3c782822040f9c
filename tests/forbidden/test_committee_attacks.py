"""What a combiner, a client, or all officers but one might try."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
import tenseal as ts
from reachability import reachable
from scipy import stats

from securefl.crypto.committee import OfficerKey
from securefl.crypto.committee_flood import Flood
from securefl.crypto.committee_public import (
    CollectiveKey,
    Combiner,
    commitment,
    common_polynomial,
)
from securefl.crypto.contexts import fresh_context, primes, secret_key_alone, with_secret_key
from securefl.crypto.params import SUMS, CkksParameters
from securefl.crypto.ring import words_of
from securefl.errors import ConfigError, KeyFileError, MessageRefused
from securefl.exchange.ckks import CkksAdder, CkksSealer
from securefl.exchange.committee_open import Committee, CommitteeOpener, Officer

WIDE = CkksParameters(scale_bits=52)
DATA_PRIME = primes(WIDE)[0]


@pytest.fixture(scope="module")
def committee():
    return Committee.ephemeral(Flood(WIDE, n_officers=3, max_clients=5, max_releases=1000))


@pytest.fixture(scope="module")
def total(committee):
    """Three clients' values, one ciphertext."""
    sealer = CkksSealer(committee.collective.public)
    running = CkksAdder(committee.collective.adding).start(5)
    for _ in range(3):
        running = running.plus(sealer.seal(np.arange(5.0), 0.25))
    return running.total()


class Silent(random.Random):
    """Draws no noise: a share as nobody may ever release it."""

    def gauss(self, mu=0.0, sigma=1.0):
        return 0.0


def residues(share):
    return np.frombuffer(share, "<u8")


def key_words(key):
    """An officer's secret by the data prime, as SEAL keeps it."""
    return words_of(key._context.secret_key().data.data(), 4096)


def is_uniform(words, modulus=DATA_PRIME):
    """By Kolmogorov and Smirnov; an honest sample fails once in 10^4 runs."""
    return stats.kstest(words.astype(float) / modulus, "uniform").pvalue > 1e-4


class Stubborn:
    """An officer whose shares something has changed."""

    def __init__(self, officer, change):
        self._officer, self._change = officer, change

    def shares(self, ciphertexts):
        return [self._change(share) for share in self._officer.shares(ciphertexts)]


def opener_with(committee, change):
    """The committee, but its last officer sends something else."""
    *others, last = committee.officers
    officers = (*others, Stubborn(last, change))
    return CommitteeOpener(
        officers, Combiner(3, WIDE), committee.flood, committee.collective.public.key_id, 30
    )


def test_all_officers_but_one_see_noise(committee, total):
    """c_0 and the shares of n - 1 officers add up to uniform residues, and to no count."""
    shares = [o.shares([total])[0] for o in committee.officers]
    for absent in range(3):
        present = [residues(share) for i, share in enumerate(shares) if i != absent]
        partial = (residues(total[:32768]) + present[0]) % DATA_PRIME
        assert is_uniform((partial + present[1]) % DATA_PRIME)
        silent = bytes(32768)
        chosen = [silent if i == absent else share for i, share in enumerate(shares)]
        assert np.abs(Combiner(3, WIDE).slots(total, chosen)).max() > WIDE.max_value


def test_a_uniform_test_can_tell_an_opened_total(committee, total):
    """The test above has teeth: with the last share the same sum is anything but uniform."""
    shares = [o.shares([total])[0] for o in committee.officers]
    slots = Combiner(3, WIDE).slots(total, shares)
    np.testing.assert_allclose(slots[:5], 0.75 * np.arange(5.0), atol=committee.flood.tolerance)


def test_a_share_alone_looks_uniform_and_never_repeats(committee, total):
    """Also where the ciphertext is the same: each share has noise of its own."""
    first, second = committee.officers[0].shares([total, total])
    assert is_uniform(residues(first))
    assert (residues(first) != residues(second)).all()


def test_public_shares_look_uniform_and_never_share_an_error(committee):
    """Two shares of one key for different polynomials do not differ by a multiple of the key.

    With a common error, (b - b') / (a' - a) would be the key.
    """
    key = committee.officers[0].key
    commons = [common_polynomial([bytes([i]) * 32, bytes(32)], WIDE) for i in (1, 2)]
    shares = [residues(key.public_share(common)).reshape(2, -1) for common in commons]
    for share in shares:
        for row, modulus in zip(share, primes(WIDE), strict=True):
            assert is_uniform(row, modulus)
    quotients = [
        (int(b) - int(b_)) * pow(int(a_) - int(a), -1, DATA_PRIME) % DATA_PRIME
        for a, a_, b, b_ in zip(
            *(common[0] for common in commons), shares[0][0], shares[1][0], strict=True
        )
    ]
    assert not np.any(np.array(quotients, np.uint64) == key_words(key))


def test_without_its_noise_one_share_is_the_key(committee, total):
    """Why officers flood: h / c_1 is s_i, residue by residue. With noise no residue is right."""
    key = committee.officers[0].key
    inverses = [pow(int(c), -1, DATA_PRIME) for c in residues(total[32768:])]
    for rng, is_key in ((Silent(), True), (random.SystemRandom(), False)):
        share = residues(key.opening_share(total, committee.flood, rng))
        found = [int(h) * inverse % DATA_PRIME for h, inverse in zip(share, inverses, strict=True)]
        assert np.all(np.equal(found, key_words(key)) == is_key)


def test_nothing_of_the_combiner_leads_to_an_officers_key(committee):
    """Its own context has a key that nobody encrypts with, and that is none of theirs."""
    combiner = committee.opener(30).combiner
    things = reachable(combiner)
    assert not [thing for thing in things if isinstance(thing, (OfficerKey, Officer, Committee))]
    contexts = [thing for thing in things if isinstance(thing, ts.Context)]
    assert contexts
    for context in contexts:
        words = words_of(context.secret_key().data.data(), 4096)
        for officer in committee.officers:
            assert not np.any(words == key_words(officer.key))


def test_nothing_of_the_collective_key_opens(committee):
    """Clients and the server get a context without any secret key."""
    for thing in reachable(committee.collective):
        assert not isinstance(thing, (OfficerKey, Officer))
        if isinstance(thing, ts.Context):
            assert not thing.has_secret_key()


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda f: f.__name__)
def test_an_officers_key_is_neither_copied_nor_pickled(committee, act):
    """Nor is the combiner."""
    for held in (committee.officers[0].key, committee.opener(30).combiner):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            act(held)


def test_the_key_never_becomes_text(committee):
    """No repr of anything that holds it shows more than its type."""
    assert repr(committee.officers[0].key) == "OfficerKey()"
    assert "OfficerKey" not in repr(committee)
    assert "OfficerKey" not in repr(committee.officers[0])


def test_a_context_with_a_public_key_is_no_officers(committee):
    """That key's error is one with nobody else's share: it must not exist beside the secret."""
    context = fresh_context(WIDE)
    with pytest.raises(KeyFileError, match="nothing else"):
        OfficerKey.from_secret_bytes(with_secret_key(context), WIDE)
    with pytest.raises(KeyFileError, match="not of the parameters"):
        OfficerKey.from_secret_bytes(secret_key_alone(context), SUMS)


@pytest.mark.parametrize(
    "change",
    [
        lambda share: share[:-8],
        lambda share: share + bytes(8),
        lambda share: b"",
        lambda share: b"\xff" * len(share),
        lambda share: DATA_PRIME.to_bytes(8, "little") + share[8:],
    ],
    ids=["short", "long", "empty", "ones", "modulus"],
)
def test_a_share_of_another_shape_is_refused(committee, total, change):
    """Before TenSEAL sees a byte of it."""
    with pytest.raises(MessageRefused, match="share"):
        opener_with(committee, change).open(total, 5)


@pytest.mark.parametrize(
    "change",
    [
        lambda share: bytes(len(share)),
        lambda share: share[8:] + share[:8],
        lambda share: bytes([share[0] ^ 1]) + share[1:],
        lambda share: share[:6] + bytes([share[6] ^ 4]) + share[7:],
    ],
    ids=["nothing", "rotated", "lowest-bit", "one-high-bit"],
)
def test_a_wrong_share_shows_in_the_count(committee, total, change):
    """Any error but a small one spreads over all slots: the clients' ones no longer add up.

    A residue is a value of the polynomial, not a coefficient: its lowest bit is as large as any.
    """
    with pytest.raises(MessageRefused, match="officer's share is wrong"):
        opener_with(committee, change).open(total, 5)


def test_a_share_of_another_total_is_garbage(committee, total):
    """An officer that answers for another ciphertext opens neither."""
    other = committee.collective.public.encrypt(np.ones(2048))
    foreign = committee.officers[-1].shares([other])[0]
    with pytest.raises(MessageRefused, match="does not count its clients"):
        opener_with(committee, lambda share: foreign).open(total, 5)


def test_a_total_of_another_key_does_not_open(committee, key_set):
    """Another key's ciphertext has the same shape: only the count tells."""
    sealed = CkksSealer(key_set.public).seal(np.ones(5), 0.5)
    with pytest.raises(MessageRefused, match="does not count its clients"):
        committee.opener(30).open(sealed, 5)


@pytest.mark.parametrize("n_shares", [0, 1, 2, 4])
def test_fewer_or_more_shares_than_officers_are_refused(committee, total, n_shares):
    """All open together or none does."""
    shares = (committee.officers[0].shares([total]) * 4)[:n_shares]
    with pytest.raises(MessageRefused, match="all 3 open together"):
        Combiner(3, WIDE).slots(total, shares)


def test_officers_give_no_share_of_what_hides_nothing(committee):
    """A ciphertext (c_0, 0), of another length, or outside the ring gets no answer."""
    officer = committee.officers[0]
    for total in (bytes(65536), bytes(65535), b"\xff" * 65536):
        with pytest.raises(MessageRefused):
            officer.shares([total])


def test_more_clients_than_the_noise_is_sized_for_are_refused(committee):
    """Their ciphertexts' noise would be longer than what hides it."""
    sealer, running = (
        CkksSealer(committee.collective.public),
        CkksAdder(committee.collective.adding).start(5),
    )
    for _ in range(6):
        running = running.plus(sealer.seal(np.ones(5), 0.125))
    with pytest.raises(MessageRefused, match="more than 5"):
        committee.opener(30).open(running.total(), 5)


def ceremony():
    keys = [OfficerKey.generate() for _ in range(2)]
    common = common_polynomial([bytes([i]) * 32 for i in range(2)])
    return common, [key.public_share(common) for key in keys]


def test_an_officer_cannot_choose_its_share_after_the_others(key_set):
    """The rogue key b* - b_1, whose sum is a key of its own, is not what it had committed to."""
    common, (honest, own) = ceremony()
    moduli = np.array(primes(SUMS), np.uint64)[:, None]
    wanted, theirs = (residues(share).reshape(2, -1) for share in (own, honest))
    rogue = ((wanted + (moduli - theirs)) % moduli).tobytes()
    commitments = [commitment(honest), commitment(own)]
    with pytest.raises(MessageRefused, match="officer 2 had committed to another"):
        CollectiveKey.assembled(common, commitments, [honest, rogue])


def test_a_ceremony_with_a_copied_or_missing_part_is_refused():
    """Two officers cannot send the same, and one is no committee."""
    common, shares = ceremony()
    with pytest.raises(MessageRefused, match="copied"):
        CollectiveKey.assembled(common, [commitment(shares[0])] * 2, [shares[0]] * 2)
    with pytest.raises(MessageRefused, match="copied"):
        common_polynomial([bytes(32)] * 2)
    with pytest.raises(MessageRefused, match="32 bytes"):
        common_polynomial([bytes(32), b"short"])
    with pytest.raises(ConfigError, match="two or more"):
        CollectiveKey.assembled(common, [commitment(shares[0])], shares[:1])
    with pytest.raises(ConfigError, match="1 commitments to 2"):
        CollectiveKey.assembled(common, [commitment(shares[0])], shares)
    with pytest.raises(ConfigError, match="two or more"):
        Combiner(1)


@pytest.mark.parametrize("share", [b"", bytes(65535), b"\xff" * 65536], ids=["none", "short", "ff"])
def test_a_damaged_share_of_the_key_is_refused(share):
    """Even if its officer had committed to it."""
    common, (honest, _) = ceremony()
    with pytest.raises(MessageRefused):
        CollectiveKey.assembled(common, [commitment(honest), commitment(share)], [honest, share])


def test_noise_for_other_parameters_is_refused(total):
    """Sized for another scale it would hide less, or drown the total."""
    key = OfficerKey.generate(WIDE)
    with pytest.raises(ConfigError, match="other CKKS parameters"):
        key.opening_share(total, Flood(SUMS, 2, 5, 1), random.SystemRandom())


def test_primes_of_one_size_make_no_committee():
    """Then SEAL's order of them is not ours to choose."""
    parameters = CkksParameters(modulus_bits=(54, 54), scale_bits=45)
    key = OfficerKey.generate(parameters)
    common = common_polynomial([bytes(32), b"1" * 32], parameters)
    with pytest.raises(ConfigError, match="must differ"):
        key.public_share(common)

"""Whether a polynomial is uniform, against the transform by hand and polynomials that are not."""

from __future__ import annotations

import numpy as np
import pytest
from ring_by_hand import untransformed
from securefl.crypto.match_params import LINEAR, SQUARE
from securefl.exchange.match_forms import FORMS
from securefl.exchange.match_open import MatchKeys

from securefl.audit.exposure.uniform import coefficients, uneven, uneven_sum
from securefl.crypto.derived import common_polynomial
from securefl.crypto.one_time import OneTimeKey, ring
from securefl.crypto.params import SUMS
from securefl.crypto.ring import packed

FRAMES = {"linear": LINEAR, "full": SQUARE}


@pytest.fixture(scope="module", params=FRAMES)
def frame(request):
    return MatchKeys.ephemeral(FORMS[request.param]).scoring.frame


def random_in(frame, seed):
    rng, moduli = np.random.default_rng(seed), np.array(frame.moduli, np.uint64)[:, None]
    return rng.integers(0, 2**63, frame.shape, np.uint64) % moduli


def test_coefficients_are_those_by_hand(frame):
    """Of every prime, to the last bit."""
    for row, modulus in zip(random_in(frame, 0)[0], frame.moduli, strict=True):
        assert (coefficients(row, modulus).astype(object) == untransformed(row, modulus)).all()


def test_uniform_polynomials_pass(frame):
    """Dozens of ciphertexts of them."""
    made = [frame.to_wire(random_in(frame, seed)) for seed in range(24)]
    assert uneven(frame, made) == ""


@pytest.mark.parametrize("polynomial", [0, 1])
@pytest.mark.parametrize("residue", [1, 2**20])
def test_one_constant_polynomial_is_found(frame, polynomial, residue):
    """Beside one that is uniform."""
    residues = random_in(frame, 1)
    residues[polynomial] = residue
    assert "residues are not uniform" in uneven(frame, [frame.to_wire(residues)])


SUMMED = SUMS.poly_degree, ring().modulus


def sealed(values):
    key = OneTimeKey.of([bytes(32)], bytes(32), "alice", bytes(16))
    return key.seal(values[None], bytes(32))


def test_messages_under_one_time_keys_are_uniform():
    """Of any values, zero among them, to the eye of who has no key."""
    for values in (np.zeros(2048), np.full(2048, 8000.0), np.linspace(-1, 1, 2048)):
        assert uneven_sum([sealed(values) for _ in range(5)], *SUMMED) == ""


@pytest.mark.parametrize("word", [1, 2**20])
def test_a_constant_message_is_found(word):
    """Beside those that are uniform."""
    constant = packed(np.full((1, 1, 2048), word, np.uint64), [ring().modulus])
    found = uneven_sum([sealed(np.zeros(2048)), constant], *SUMMED)
    assert "residues are not uniform" in found


def test_a_message_without_a_key_is_found():
    """A key of one coefficient leaves small ones at the end, which the transform hides."""
    of, one = ring(), np.zeros(2048, np.int64)
    one[0] = 1
    key, words = of.key(one), ring().common(bytes(32), 0)
    sealed = of.encrypted(key, words, np.linspace(-1, 1, 2048))
    words = (sealed + common_polynomial(bytes(32), 0, *SUMMED)) % np.uint64(of.modulus)
    assert "coefficients are not uniform" in uneven_sum([packed(words, [of.modulus])], *SUMMED)

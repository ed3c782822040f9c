"""Whether a polynomial is uniform, against the transform by hand and polynomials that are not."""

from __future__ import annotations

import numpy as np
import pytest
from ring_by_hand import untransformed

from securefl.audit.exposure.uniform import coefficients, uneven
from securefl.crypto.match_params import LINEAR, SQUARE
from securefl.exchange.match_forms import FORMS
from securefl.exchange.match_open import MatchKeys

FRAMES = {"sums": None, "linear": LINEAR, "full": SQUARE}


@pytest.fixture(scope="module", params=FRAMES)
def frame(request, key_set):
    if request.param == "sums":
        return key_set.adding.frame
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


def test_encryptions_are_uniform(key_set):
    """Of any values, zero among them."""
    for values in (np.zeros(2048), np.full(2048, 8000.0), np.linspace(-1, 1, 2048)):
        made = [key_set.public.encrypt(values) for _ in range(5)]
        assert uneven(key_set.adding.frame, made) == ""

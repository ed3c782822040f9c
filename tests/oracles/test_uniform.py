"""Whether a polynomial is uniform, against the transform by hand and polynomials that are not."""

from __future__ import annotations

import numpy as np
import pytest
from ring_by_hand import untransformed

from securefl.audit.exposure.sealed_messages import coefficients, uneven
from securefl.crypto.ciphertext_codec import packed
from securefl.crypto.one_time import OneTimeKey, ring
from securefl.crypto.params import MATCHES, SUMS
from securefl.errors import MessageRefused


@pytest.fixture(params=[SUMS, MATCHES], ids=["sums", "matches"])
def parameters(request):
    return request.param


def written(words, parameters):
    return packed(words, ring(parameters).primes)


def random_in(parameters, seed):
    of = ring(parameters)
    return np.random.default_rng(seed).integers(0, of.column, of.shape, np.uint64)


def sealed(values, parameters):
    key = OneTimeKey.of([bytes(32)], bytes(32), "alice", bytes(16), parameters)
    return key.seal(values[None], bytes(32))


def test_coefficients_are_those_by_hand(parameters):
    """To the last bit."""
    for row, prime in zip(random_in(parameters, 0), ring(parameters).primes, strict=True):
        assert (coefficients(row, prime).astype(object) == untransformed(row, prime)).all()


def test_uniform_polynomials_pass(parameters):
    """Dozens of them."""
    made = [written(random_in(parameters, seed), parameters) for seed in range(48)]
    assert uneven(made, parameters) == ""


def test_messages_under_one_time_keys_are_uniform(parameters):
    """Of any values, zero among them, to the eye of who has no key."""
    n = parameters.poly_degree
    for values in (np.zeros(n), np.full(n, 60.0), np.linspace(-1, 1, n)):
        assert uneven([sealed(values, parameters) for _ in range(5)], parameters) == ""


@pytest.mark.parametrize("word", [1, 2**20])
def test_a_constant_message_is_found(parameters, word):
    """Beside one that is uniform."""
    n = parameters.poly_degree
    constant = random_in(parameters, 1)
    constant[-1] = word  # of one prime alone
    constant = written(constant, parameters)
    found = uneven([sealed(np.zeros(n), parameters), constant], parameters)
    assert "residues are not uniform" in found


def test_a_message_without_a_key_is_found(parameters):
    """A key of one coefficient leaves small ones at the end, which the transform hides."""
    of, n = ring(parameters), parameters.poly_degree
    one = np.zeros(n, np.int64)
    one[0] = 1
    message = of.encrypted(one, 3 * one, of.common(bytes(32), 0), np.linspace(-1, 1, n))
    words = (message + of.common_words(bytes(32), 0)) % of.column
    assert "coefficients are not uniform" in uneven([written(words, parameters)], parameters)


def test_bytes_that_are_no_polynomial_are_refused(parameters):
    """They are of another length, or have a word that is not below the prime."""
    whole = written(random_in(parameters, 0), parameters)
    for bad in (whole[:-1], whole + b"\0", b"\xff" * len(whole)):
        with pytest.raises(MessageRefused):
            uneven([bad], parameters)

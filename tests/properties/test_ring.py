"""Ciphertexts on the wire: read out of TenSEAL's serialisation as word by word, and back again."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
import tenseal as ts
from hypothesis import given, settings
from hypothesis import strategies as st
from securefl.crypto.contexts import fresh_context
from securefl.crypto.match_params import LINEAR, MatchParameters

from securefl.crypto import sealwire
from securefl.crypto.one_time import ring
from securefl.crypto.params import SUMS
from securefl.crypto.ring import RingFrame, packed, unpacked
from securefl.errors import MessageRefused

ONE_PRIME = MatchParameters(1, 4096, (60, 49), scale_bits=45, weight_bits=8, range_bits=5)
SMALL = MatchParameters(1, 2048, (37, 17), scale_bits=25, weight_bits=5, range_bits=5)
THREE_PRIMES = MatchParameters(1, 8192, (60, 50, 40, 30), 90, weight_bits=28, range_bits=5)
PARAMETERS = [SMALL, ONE_PRIME, LINEAR, THREE_PRIMES]


@cache
def made(parameters):
    """A context with its keys, and the frame of what is encrypted in it."""
    context = fresh_context(parameters)
    return context, RingFrame.of_fresh(context, parameters.scale_bits)


def vector(parameters, seed=0):
    rng = np.random.default_rng(seed)
    context, _ = made(parameters)
    return ts.ckks_vector(context, rng.normal(size=parameters.poly_degree // 2).tolist())


def name(parameters):
    return f"{len(parameters.modulus_bits) - 1} of {max(parameters.modulus_bits[:-1])} bits"


every = pytest.mark.parametrize("parameters", PARAMETERS, ids=name)


@every
def test_a_ciphertext_is_read_as_word_by_word(parameters):
    """What is found in TenSEAL's message is what its own accessors give, of each prime."""
    _, frame = made(parameters)
    sealed = vector(parameters)
    slowly = frame.residues(sealed.ciphertext()[0])
    quickly = sealwire.residues(sealed.serialize(), frame.shape)
    np.testing.assert_array_equal(quickly, slowly)
    assert frame.encrypted(sealed) == frame.to_wire(slowly)
    assert len(frame.encrypted(sealed)) == frame.n_bytes


@every
def test_a_sum_is_read_as_word_by_word(parameters):
    """As the server sends it on."""
    _, frame = made(parameters)
    total = vector(parameters, 1)
    total += vector(parameters, 2)
    slowly = frame.residues(total.ciphertext()[0])
    assert frame.encrypted(total) == frame.to_wire(slowly)


@every
def test_what_travels_decrypts_to_what_was_encrypted(parameters):
    """Through the wire and into a context that has never seen it."""
    context, frame = made(parameters)
    sealed = vector(parameters)
    loaded = frame.loaded(context, frame.from_wire(frame.encrypted(sealed)))
    np.testing.assert_array_equal(loaded.decrypt(), sealed.decrypt())


def test_the_parameters_say_how_large_a_ciphertext_is():
    """So a server knows the one length that it takes before any ciphertext comes."""
    for parameters in PARAMETERS:
        word = -(-max(parameters.modulus_bits[:-1]) // 8)
        n_words = 2 * parameters.n_primes * parameters.poly_degree
        assert made(parameters)[1].n_bytes == n_words * word
    assert made(LINEAR)[1].n_bytes == 98_304


@pytest.mark.parametrize(
    "shape",
    [
        (2, 1, 4096),
        (2, 3, 4096),
        (3, 2, 4096),
        (1, 2, 4096),
        (2, 2, 2048),
        (2, 2, 8192),
        (4, 1, 4096),
    ],
)
def test_a_ciphertext_of_another_shape_is_refused(shape):
    """It is a bug of this process, and said to be one."""
    _, frame = made(LINEAR)
    sealed = vector(LINEAR)
    with pytest.raises(RuntimeError, match="expected"):
        sealwire.residues(sealed.serialize(), shape)
    n_polynomials, n_primes, poly_degree = shape
    other = dataclasses.replace(
        frame,
        n_polynomials=n_polynomials,
        moduli=(frame.moduli * 2)[:n_primes],
        poly_degree=poly_degree,
    )
    for read in (other.encrypted, lambda v: other.residues(v.ciphertext()[0])):
        with pytest.raises(RuntimeError, match="expected"):
            read(sealed)


@pytest.mark.parametrize("parameters", [ONE_PRIME, LINEAR], ids=name)
def test_a_product_has_one_polynomial_more_and_is_refused(parameters):
    """Nothing here multiplies ciphertexts; TenSEAL can."""
    context, frame = made(parameters)
    context = ts.context_from(context.serialize(save_secret_key=True))
    context.auto_relin = context.auto_rescale = False
    scale = 2.0**20
    pair = [ts.ckks_vector(context, [1.0], scale) for _ in range(2)]
    product = pair[0] * pair[1]
    assert product.ciphertext()[0].size() == 3
    for read in (frame.encrypted, lambda v: frame.residues(v.ciphertext()[0])):
        with pytest.raises(RuntimeError, match="expected"):
            read(product)


@pytest.mark.parametrize("message", [b"", b"\x5e", bytes(500), b"\x5e\xa1\x10\x04\x03", b"[" * 99])
def test_what_is_no_ciphertext_is_not_read(message):
    """Cut, empty, and something else."""
    with pytest.raises(RuntimeError, match="not a ciphertext as TenSEAL writes it"):
        sealwire.residues(message, (2, 2, 4096))


@settings(deadline=None, max_examples=60)
@given(cut=st.floats(0, 0.999))
def test_a_cut_ciphertext_is_not_read(cut):
    """Wherever it ends, and whatever of its compression is left."""
    message = vector(SMALL).serialize()
    with pytest.raises(RuntimeError):
        sealwire.residues(message[: int(cut * len(message))], made(SMALL)[1].shape)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), parameters=st.sampled_from(PARAMETERS))
def test_residues_survive_the_wire(data, seed, parameters):
    """Any number below its prime, to the byte, and the bytes again; the largest ones, too."""
    _, frame = made(parameters)
    moduli = np.array(frame.moduli, np.uint64)[:, None]
    residues = np.random.default_rng(seed).integers(0, moduli, frame.shape, dtype=np.uint64)
    places = st.tuples(*(st.integers(0, size - 1) for size in frame.shape))
    for place in data.draw(st.lists(places, max_size=5)):
        residues[place] = data.draw(st.sampled_from([0, frame.moduli[place[1]] - 1]))
    wire = frame.to_wire(residues)
    assert len(wire) == frame.n_bytes
    back = frame.from_wire(wire)
    np.testing.assert_array_equal(back, residues)
    assert frame.to_wire(back) == wire


@settings(deadline=None, max_examples=60)
@given(data=st.data(), parameters=st.sampled_from([SMALL, ONE_PRIME, LINEAR]))
def test_no_residue_above_its_prime_passes(data, parameters):
    """Also where another prime of the same ciphertext is larger."""
    _, frame = made(parameters)
    residues = np.ones(frame.shape, np.uint64)
    place = tuple(data.draw(st.integers(0, size - 1)) for size in frame.shape)
    modulus = frame.moduli[place[1]]
    residues[place] = data.draw(st.integers(modulus, 256**frame.word_bytes - 1))
    with pytest.raises(MessageRefused, match="outside the ring"):
        frame.from_wire(frame.to_wire(residues))


@settings(deadline=None)
@given(n_chunks=st.integers(1, 5), excess=st.integers(-9, 9))
def test_a_payload_is_cut_into_whole_ciphertexts(n_chunks, excess):
    """Or into none."""
    _, frame = made(SMALL)
    payload = bytes(n_chunks * frame.n_bytes + excess)
    if excess:
        with pytest.raises(MessageRefused, match="payload of"):
            frame.chunks(payload, n_chunks)
    else:
        assert [len(chunk) for chunk in frame.chunks(payload, n_chunks)] == [
            frame.n_bytes
        ] * n_chunks


SHAPE = 2, 1, SUMS.poly_degree
"""Of a message of two ciphertexts."""


@settings(deadline=None, max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_words_of_sums_survive_the_wire(data, seed):
    """As those of matches do: any word below the prime, in seven bytes each."""
    modulus = ring().modulus
    words = np.random.default_rng(seed).integers(0, modulus, SHAPE, dtype=np.uint64)
    places = st.tuples(*(st.integers(0, size - 1) for size in SHAPE))
    for place in data.draw(st.lists(places, max_size=5)):
        words[place] = data.draw(st.sampled_from([0, modulus - 1]))
    wire = packed(words, [modulus])
    assert len(wire) == 2 * SUMS.ciphertext_bytes == 2 * 7 * SUMS.poly_degree
    back = unpacked(wire, SHAPE, [modulus], "message")
    np.testing.assert_array_equal(back, words)
    assert packed(back, [modulus]) == wire


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_word_of_sums_above_the_prime_passes(data):
    """Wherever it stands."""
    modulus = ring().modulus
    words = np.ones(SHAPE, np.uint64)
    place = tuple(data.draw(st.integers(0, size - 1)) for size in SHAPE)
    words[place] = data.draw(st.integers(modulus, 256**7 - 1))
    with pytest.raises(MessageRefused, match="message with a coefficient outside the ring"):
        unpacked(packed(words, [modulus]), SHAPE, [modulus], "message")


@settings(deadline=None)
@given(excess=st.integers(-9, 9).filter(bool))
def test_a_message_of_sums_has_one_length(excess):
    """Neither a byte nor a word more or less."""
    wire = bytes(2 * SUMS.ciphertext_bytes + excess)
    with pytest.raises(MessageRefused, match="expected exactly"):
        unpacked(wire, SHAPE, [ring().modulus], "message")

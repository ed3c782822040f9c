"""Polynomials on the wire: words below a prime survive it, and nothing else passes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefl.crypto import seal_ring
from securefl.crypto.ciphertext_codec import packed, split_payload, unpacked
from securefl.crypto.one_time import ring
from securefl.crypto.params import MATCHES, SUMS
from securefl.errors import MessageRefused

BOTH = st.sampled_from([SUMS, MATCHES])


def shape_of(parameters):
    """Return that of a message of two ciphertexts."""
    return 2, *ring(parameters).shape


@settings(deadline=None, max_examples=60)
@given(data=st.data(), parameters=BOTH, seed=st.integers(0, 2**32 - 1))
def test_words_survive_the_wire(data, parameters, seed):
    """Any word below its prime, in seven or six bytes each; the largest ones, too."""
    of, shape = ring(parameters), shape_of(parameters)
    words = np.random.default_rng(seed).integers(0, of.column, shape, dtype=np.uint64)
    places = st.tuples(*(st.integers(0, size - 1) for size in shape))
    for place in data.draw(st.lists(places, max_size=5)):
        words[place] = data.draw(st.sampled_from([0, of.primes[place[1]] - 1]))
    wire = packed(words, of.primes)
    word_bytes = {SUMS: 7, MATCHES: 2 * 6}[parameters]
    assert len(wire) == 2 * parameters.ciphertext_bytes == 2 * word_bytes * parameters.poly_degree
    back = unpacked(wire, shape, of.primes, "message")
    np.testing.assert_array_equal(back, words)
    assert packed(back, of.primes) == wire


@settings(deadline=None, max_examples=60)
@given(data=st.data(), parameters=BOTH)
def test_no_word_above_the_prime_passes(data, parameters):
    """Wherever it stands."""
    of, shape = ring(parameters), shape_of(parameters)
    words = np.ones(shape, np.uint64)
    place = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    most = 256 ** {SUMS: 7, MATCHES: 6}[parameters] - 1
    words[place] = data.draw(st.integers(of.primes[place[1]], most))
    with pytest.raises(MessageRefused, match="message with a coefficient outside the ring"):
        unpacked(packed(words, of.primes), shape, of.primes, "message")


@settings(deadline=None, max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_several_primes_have_a_word_size_in_common(data, seed):
    """Each word is held against the prime of its row, also where the other one is larger."""
    moduli, shape = [*ring(MATCHES).primes[:1], ring(SUMS).modulus], (1, 2, 64)
    words = np.random.default_rng(seed).integers(0, moduli[0], shape, dtype=np.uint64)
    wire = packed(words, moduli)
    assert len(wire) == 2 * 64 * 7
    np.testing.assert_array_equal(unpacked(wire, shape, moduli, "message"), words)
    words[0, 0, data.draw(st.integers(0, 63))] = moduli[0]
    with pytest.raises(MessageRefused, match="outside the ring"):
        unpacked(packed(words, moduli), shape, moduli, "message")


@settings(deadline=None)
@given(parameters=BOTH, excess=st.integers(-9, 9).filter(bool))
def test_a_message_has_one_length(parameters, excess):
    """Neither a byte nor a word more or less."""
    wire = bytes(2 * parameters.ciphertext_bytes + excess)
    with pytest.raises(MessageRefused, match="expected exactly"):
        unpacked(wire, shape_of(parameters), ring(parameters).primes, "message")


@settings(deadline=None)
@given(n_chunks=st.integers(1, 5), excess=st.integers(-9, 9))
def test_a_payload_is_cut_into_whole_ciphertexts(n_chunks, excess):
    """Or into none."""
    size = SUMS.ciphertext_bytes
    payload = bytes(range(256)) * (n_chunks * size // 256) + bytes(excess % 256)
    payload = payload[: n_chunks * size + excess]
    if excess:
        with pytest.raises(MessageRefused, match="payload of"):
            split_payload(payload, size, n_chunks)
    else:
        parts = split_payload(memoryview(payload), size, n_chunks)
        assert [len(part) for part in parts] == [size] * n_chunks
        assert b"".join(parts) == payload


@pytest.mark.parametrize("parameters", [SUMS, MATCHES], ids=["sums", "matches"])
def test_words_are_read_at_once_as_one_by_one(parameters, monkeypatch):
    """A ciphertext (x, y), and x + p y of it, through files in memory and on the disk."""
    of = ring(parameters)
    drawn = np.random.default_rng(0).integers(0, of.column, (3, *of.shape), dtype=np.uint64)
    words, by = drawn[:2], drawn[2]
    ciphertext = of._ciphertext(words)
    accessed = [ciphertext[i] for i in range(words.size)]
    np.testing.assert_array_equal(accessed, words.ravel())
    x, y, p = (one.astype(object) for one in drawn)
    total = ((x + y * p) % of.column.astype(object)).astype(np.uint64)
    for has in {seal_ring._HAS_MEMORY_FILES, False}:
        monkeypatch.setattr(seal_ring, "_HAS_MEMORY_FILES", has)
        np.testing.assert_array_equal(seal_ring._words(ciphertext, words.shape), words)
        plain = of._decrypted(of.decryptor(by), ciphertext)
        np.testing.assert_array_equal(seal_ring._words(plain, of.shape), total)

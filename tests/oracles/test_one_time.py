"""One-time keys against their equations, in Python's own integers."""

from __future__ import annotations

import hashlib
import os
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from ring_by_hand import coefficients

import securefl.crypto.one_time
from securefl.crypto import KEY_DEVIATION, seal_ring
from securefl.crypto.ciphertext_codec import unpacked
from securefl.crypto.derived import (
    common_polynomial,
    error_polynomial,
    error_seed,
    key_polynomial,
    key_seed,
)
from securefl.crypto.one_time import CipherSum, KeySum, OneTimeKey, ring
from securefl.crypto.params import SUMS
from securefl.errors import ConfigError, MessageRefused
from securefl.exchange.card_keys import Quorum

Q, N = 4503599627366401, 2048
ABOUT, NONCE = bytes(range(32)), bytes(range(16))


def key_of(sender, secret=b"k" * 32):
    return OneTimeKey.of([secret], ABOUT, sender, NONCE)


def words_of(message):
    return unpacked(message, (1, 1, N), [Q], "message")[0]


def coefficients_of(words):
    """Around zero, out of the transform."""
    return coefficients(words, [Q])


def test_the_ring_is_seals():
    """One prime of 52 bits, at which the transform of 2048 coefficients exists."""
    assert ring().modulus == Q
    assert Q.bit_length() == SUMS.modulus_bits == 52
    assert Q % (2 * N) == 1


def test_a_common_polynomial_is_what_shake_gives():
    """SHAKE-256 of a label, the index and what it is about; words that are q or more are left."""
    seed = b"SecureFL common 1\0" + (7).to_bytes(8, "little") + ABOUT
    stream = hashlib.shake_256(seed).digest(8 * (N + 64))
    words = [int.from_bytes(stream[i : i + 8], "little") % 2**52 for i in range(0, len(stream), 8)]
    wanted = [word for word in words if word < Q][:N]
    assert common_polynomial(ABOUT, 7, N, Q).tolist() == wanted


def test_words_beyond_the_modulus_are_left_out():
    """A modulus a little above a power of two rejects about half of them: too many are an error."""
    with pytest.raises(RuntimeError, match="beyond the modulus"):
        common_polynomial(ABOUT, 0, N, 2**51 + 1)


def test_a_key_is_counted_bits():
    """21 bits up and 21 down, of each six bytes of SHAKE-256."""
    stream = hashlib.shake_256(b"SecureFL one-time key 1\0" + b"s" * 32).digest(6 * N)
    wanted = []
    for i in range(0, len(stream), 6):
        bits = int.from_bytes(stream[i : i + 6], "little")
        up, down = bits % 2**21, bits >> 21 & (2**21 - 1)
        wanted.append(up.bit_count() - down.bit_count())
    assert key_polynomial(b"s" * 32, N).tolist() == wanted


def test_keys_have_the_deviation_that_their_security_is_estimated_for():
    """σ = 3.24 over half a million coefficients, mean zero, all within ±21."""
    drawn = np.concatenate([key_polynomial(bytes([i]) * 32, N) for i in range(250)])
    assert drawn.std() == pytest.approx(KEY_DEVIATION, rel=5e-3)
    assert abs(drawn.mean()) < 0.02
    assert np.abs(drawn).max() <= 21


def test_a_seed_follows_from_secret_message_sender_and_nonce():
    """By HKDF, over parts that each say their length."""
    parts = b"SecureFL one-time key 1\0", ABOUT, b"alice", NONCE
    info = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    wanted = HKDF(SHA256(), 32, salt=None, info=info).derive(b"k" * 32)
    assert key_seed(b"k" * 32, ABOUT, "alice", NONCE) == wanted
    others = [
        key_seed(b"l" * 32, ABOUT, "alice", NONCE),
        key_seed(b"k" * 32, ABOUT[::-1], "alice", NONCE),
        key_seed(b"k" * 32, ABOUT, "alicen", NONCE[1:]),
        key_seed(b"k" * 32, ABOUT, "alice", NONCE[::-1]),
    ]
    assert len({wanted, *others}) == 5


def test_a_message_is_minus_a_s_plus_noise_plus_values():
    """C + a s is the encoding, by an embedding worked out here, but for an error like a key's."""
    rng = np.random.default_rng(0)
    row, key = rng.normal(size=N), key_of("alice")
    c = coefficients_of(words_of(key.seal(row[None], ABOUT))).astype(object)
    s = key_polynomial(key_seed(b"k" * 32, ABOUT, "alice", NONCE), N).astype(object)
    a = coefficients_of(common_polynomial(ABOUT, 0, N, Q)[None]).astype(object)
    product = np.convolve(a, s)  # modulo X^N + 1
    product[: N - 1] -= product[N:]
    plain = (c + product[:N]) % Q
    plain = np.where(2 * plain > Q, plain - Q, plain).astype(float)
    slots = row[: N // 2] + 1j * row[N // 2 :]
    order = [pow(3, j, 2 * N) for j in range(N // 2)]
    roots = np.exp(1j * np.pi * np.array(order) / N)
    encoded = np.array([2 / N * np.real(slots @ roots ** -float(k)) for k in range(N)])
    error = plain - encoded * 2**SUMS.scale_bits
    assert error.std() == pytest.approx(KEY_DEVIATION, rel=0.1)
    assert np.abs(error).max() < 25


def test_errors_are_drawn_anew_for_each_message_and_under_each_key(monkeypatch):
    """A copied machine, whose random bytes repeat, has other errors under another key."""
    keys = [key_polynomial(bytes([i]) * 32, N) for i in (1, 2)]
    assert error_seed(keys[0]) != error_seed(keys[0])
    monkeypatch.setattr(os, "urandom", bytes)
    seeds = [error_seed(key) for key in keys]
    drawn = [error_polynomial(seed, index, N) for seed in seeds for index in (0, 1)]
    assert len({of.tobytes() for of in drawn}) == 4
    for of in drawn:
        assert of.std() == pytest.approx(KEY_DEVIATION, rel=0.1)


def test_each_ciphertext_of_a_message_has_an_error_of_its_own():
    """Of two equal rows, as an update of zeros has, the difference would be the key times a's."""
    key, of = key_of("alice"), ring(SUMS)
    row = np.zeros(N)
    row[-2:] = 0.25, 1.0
    q, shape = of.primes[0], (2, 1, N)
    first, second = unpacked(key.seal(np.stack([row, row]), ABOUT), shape, of.primes, "c")[:, 0]
    polynomials = [of.common_words(ABOUT, j)[0] for j in (0, 1)]
    transformed = of.key(key.coefficients)
    for i in range(0, N, 7):
        apart = int(polynomials[0][i]) - int(polynomials[1][i])
        shown = (int(second[i]) - int(first[i])) * pow(apart, -1, q) % q
        assert shown != transformed[N + i]


def test_what_is_sealed_has_the_errors_of_its_key(monkeypatch):
    """On a copied machine, whose random bytes repeat, another key has another error."""
    monkeypatch.setattr(os, "urandom", bytes)
    seeds = []
    drawn = securefl.crypto.one_time.error_polynomial

    def noted(seed, index, degree):
        seeds.append(seed)
        return drawn(seed, index, degree)

    monkeypatch.setattr(securefl.crypto.one_time, "error_polynomial", noted)
    for name in ("alice", "bob", "alice"):
        key_of(name).seal(np.zeros((1, N)), ABOUT)
    assert seeds[0] != seeds[1]
    assert seeds[0] == seeds[2]


def sealed(n_clients, rows=1, seed=0):
    values = np.random.default_rng(seed).normal(size=(n_clients, rows, N))
    keys = [key_of(f"client {i}") for i in range(n_clients)]
    added = CipherSum(rows)
    for key, of in zip(keys, values, strict=True):
        added = added.plus(key.seal(of, ABOUT))
    return keys, added.total(), values.sum(axis=0)


@pytest.mark.parametrize("n_clients", [1, 3, 50])
def test_the_sum_of_keys_opens_the_sum_of_messages(n_clients):
    """To the noise that is promised: its deviation, and six of them at most."""
    keys, total, wanted = sealed(n_clients, rows=4)
    error = KeySum.of(keys).open(total, ABOUT, 4) - wanted
    assert error.std() == pytest.approx(SUMS.noise(n_clients), rel=0.1)
    assert np.abs(error).max() < 6 * SUMS.noise(n_clients)


def test_keys_may_be_added_in_parts():
    """As groups of officers add theirs, and send them."""
    keys, total, wanted = sealed(3)
    parts = [KeySum.from_bytes(KeySum.of([key]).to_bytes(), 1) for key in keys]
    whole = parts[0].plus(parts[1]).plus(parts[2])
    assert whole == KeySum.of(keys)
    assert np.abs(whole.open(total, ABOUT, 1) - wanted).max() < 6 * SUMS.noise(3)


def test_without_files_in_memory_it_is_the_same(monkeypatch):
    """Where the system has none, SEAL writes to files of the disk."""
    keys, total, _ = sealed(3)
    opened = KeySum.of(keys).open(total, ABOUT, 1)
    monkeypatch.setattr(seal_ring, "_HAS_MEMORY_FILES", False)
    np.testing.assert_array_equal(KeySum.of(keys).open(total, ABOUT, 1), opened)
    row = np.ones((1, N))
    alone = CipherSum(1).plus(keys[0].seal(row, ABOUT)).total()
    shown = KeySum.of(keys[:1]).open(alone, ABOUT, 1)
    assert np.abs(shown - row).max() < 6 * SUMS.noise(1)


@pytest.mark.parametrize("content", [b"", bytes(8191), bytes(8193)])
def test_a_sum_of_keys_has_one_length(content):
    """What a peer sends is held against it before it is read."""
    with pytest.raises(MessageRefused, match="sum of keys of"):
        KeySum.from_bytes(content, 3)


def test_a_sum_of_keys_is_as_small_as_keys_are():
    """Three keys add up to 63 at most."""
    largest = np.full(N, 63, "<i4")
    KeySum.from_bytes(largest.tobytes(), 3)
    largest[5] = -64
    with pytest.raises(MessageRefused, match="no sum of 3 keys"):
        KeySum.from_bytes(largest.tobytes(), 3)


@pytest.mark.parametrize(("needed", "officers"), [(1, 1), (2, 3), (3, 3), (3, 5), (4, 7)])
def test_k_officers_are_in_all_groups_and_one_fewer_are_not(needed, officers):
    """So any k know every secret, and any k - 1 lack one."""
    quorum = Quorum(needed, officers)
    own = [set(quorum.groups_of[number]) for number in range(officers)]
    everything = set(range(len(quorum.groups)))
    for several in combinations(own, needed):
        assert set().union(*several) == everything
    for fewer in combinations(own, needed - 1):
        assert set().union(*fewer) < everything


@pytest.mark.parametrize(
    ("needed", "officers"), [(0, 1), (2, 1), (1, 2), (1, 3), (2, 4), (4, 8), (0, 0)]
)
def test_no_half_of_the_officers_opens(needed, officers):
    """Two halves could be shown two lists of clients."""
    with pytest.raises(ConfigError):
        Quorum(needed, officers)

"""Sums over clients: on ciphertext within sealing's error, in the clear to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from securefl.crypto.params import SUMS
from securefl.errors import MessageRefused
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.plain import LARGEST, PlainChannel
from securefl.exchange.sums import MessageId, Sender

PRECISION_BITS = 30
RUN = "ab" * 32
SEALING_ERROR = 6 * SUMS.noise(20)
"""Absolute, of one slot of a sum of up to 20 ciphertexts: 2e-8."""
ALICE = Sender("alice", bytes(32))
ABOUT = MessageId(RUN, 1, "layer/mean", 5)

edge_sizes = st.sampled_from([1, 2, 2045, 2046, 2047, 4091, 4092, 4093, 5000])
sample_counts = st.lists(st.integers(2, 10_000), min_size=1, max_size=20)


def weights_of(n_samples):
    """As in a run: sizes over the power of two that bounds their sum."""
    bound = 1 << (sum(n_samples) - 1).bit_length()
    return [n / bound for n in n_samples]


def sealed_total(keys, values, weights, precision_bits=PRECISION_BITS):
    about = MessageId(RUN, 1, "layer/mean", len(values[0]))
    sealer, adder, opener = OneTimeSealer(keys.public), OneTimeAdder(keys.public), keys.opener()
    running, nonces = adder.start(about.n_values), {}
    for i, (x, weight) in enumerate(zip(values, weights, strict=True)):
        sender = Sender(f"client-{i}", bytes([i]) * 32)
        opener.take_cards(RUN, sender.name, keys.public.cards(RUN, sender))
        payload, nonces[sender.name] = sealer.seal(x, weight, about, sender)
        assert len(payload) == adder.n_bytes(about.n_values)
        running = running.plus(payload)
    return opener.open(running.total(), about, nonces, precision_bits)


def assert_is_the_mean(opened, values, weights, precision_bits=PRECISION_BITS):
    """Within rounding of each value, and within sealing's error on the sum, relative to Σ w."""
    weight = float(np.sum(weights))
    mean = np.average(values, axis=0, weights=weights)
    rounding = 2.0 ** -(precision_bits + 1)
    largest = 1 + np.abs(values).max()
    tolerance = rounding * largest + SEALING_ERROR / weight
    np.testing.assert_allclose(opened.values, mean, rtol=0, atol=tolerance)
    assert opened.values.shape == mean.shape
    assert opened.n_clients == len(weights)
    return tolerance / largest


@settings(deadline=None, max_examples=40)
@given(
    n_samples=sample_counts,
    n_values=edge_sizes | st.integers(1, 5000),
    magnitude=st.sampled_from([0.0, 1e-6, 1.0, 100.0, 8191.0]),
    seed=st.integers(0, 2**32 - 1),
)
@example([100] * 20, 5000, 1.0, 0)
@example([2], 2046, 1.0, 0)
@example([3, 3, 3], 2047, 8191.0, 0)
@example([10_000, 2, 2], 4092, 1.0, 0)
def test_a_ciphertext_sum_opens_to_the_weighted_mean(key_set, n_samples, n_values, magnitude, seed):
    """Σ w x / Σ w within 1e-6 · (1 + max |x|); the weight and the number of clients are exact."""
    weights = weights_of(n_samples)
    rng = np.random.default_rng(seed)
    values = magnitude * rng.uniform(-1, 1, size=(len(weights), n_values))
    opened = sealed_total(key_set, values, weights)
    assert assert_is_the_mean(opened, values, weights) < 1e-6
    assert opened.weight == sum(weights)


@pytest.mark.parametrize("n_values", [1, 2045, 2046, 2047, 4091, 4092, 4093])
def test_no_value_gets_lost_where_ciphertexts_end(key_set, n_values):
    """Every index comes back in its place, at sizes around whole ciphertexts."""
    values = [np.arange(n_values) + 1.0 for _ in range(3)]
    opened = sealed_total(key_set, values, [0.25, 0.25, 0.25])
    np.testing.assert_allclose(opened.values, values[0], rtol=1e-7, atol=1e-7)
    assert SUMS.n_ciphertexts(n_values) == -(-n_values // 2046)


@pytest.mark.parametrize("value", [8192.0, -8192.0])
def test_the_largest_value_does_not_wrap(key_set, value):
    """Twenty clients at the limit of what may be sealed give that limit: no silent overflow."""
    values = np.full((20, 2046), value)
    opened = sealed_total(key_set, values, weights_of([1] * 20))
    np.testing.assert_allclose(opened.values, values[0], rtol=1e-7)
    assert SUMS.max_value == 8192.0


def test_alternating_extremes_do_not_wrap(key_set):
    """Values at both ends of the range, slot by slot and client by client, still add up."""
    pattern = np.where(np.arange(4092) % 2, 8192.0, -8192.0)
    values = np.stack([pattern, -pattern, pattern, np.roll(pattern, 1), pattern])
    weights = weights_of([1, 2, 3, 4, 5])
    assert_is_the_mean(sealed_total(key_set, values, weights), values, weights)


@settings(deadline=None, max_examples=15)
@given(n_samples=st.lists(st.integers(2, 10_000), min_size=3, max_size=8), data=st.data())
def test_a_dropped_client_leaves_the_mean_of_the_others(key_set, n_samples, data):
    """Weights are of all clients, the sum of those who came: Σ over them, divided by theirs."""
    weights = np.array(weights_of(n_samples))
    came = data.draw(st.lists(st.booleans(), min_size=len(weights), max_size=len(weights)))
    came[0] = True
    values = np.random.default_rng(len(came)).normal(size=(len(weights), 5))
    opened = sealed_total(key_set, values[came], weights[came])
    assert_is_the_mean(opened, values[came], weights[came])
    assert opened.weight == pytest.approx(weights[came].sum(), abs=2.0**-PRECISION_BITS)


@settings(deadline=None, max_examples=15)
@given(
    precision_bits=st.integers(16, 30),
    n_samples=st.lists(st.integers(2, 1000), min_size=3, max_size=6),
)
def test_the_declared_precision_is_kept(key_set, precision_bits, n_samples):
    """Opened values have so many bits behind the leading one, and err by half of the last."""
    weights = weights_of(n_samples)
    values = np.random.default_rng(0).normal(size=(len(weights), 7))
    opened = sealed_total(key_set, values, weights, precision_bits)
    assert_is_the_mean(opened, values, weights, precision_bits)
    significant = 2.0 ** (precision_bits + 1) * np.frexp(opened.values)[0]
    np.testing.assert_array_equal(significant, np.rint(significant))


def sealed(keys, values, name="layer/mean"):
    about = MessageId(RUN, 1, name, len(values))
    return OneTimeSealer(keys.public).seal(values, 0.1, about, ALICE)


@settings(deadline=None, max_examples=10)
@given(order=st.permutations(range(6)))
def test_the_order_of_arrival_does_not_matter(key_set, order):
    """Adding ciphertexts is exact: any order gives the same total, to the byte."""
    rng = np.random.default_rng(0)
    payloads = [sealed(key_set, rng.normal(size=2047)).payload for _ in range(6)]
    totals = []
    for arrival in (range(6), order):
        running = OneTimeAdder(key_set.public).start(2047)
        for i in arrival:
            running = running.plus(payloads[i])
        totals.append(running.total())
    assert totals[0] == totals[1]


def test_thousands_of_messages_are_added_modulo_the_prime(key_set):
    """Words of 53 bits are reduced before 64 bits are full: as Python's integers have it."""
    payload = sealed(key_set, np.ones(3)).payload
    running = OneTimeAdder(key_set.public).start(3)
    for _ in range(5000):
        running = running.plus(payload)
    modulus = 4503599627366401
    word, summed = (int.from_bytes(of[:7], "little") for of in (payload, running.total()))
    assert summed == 5000 * word % modulus


def test_equal_values_are_sealed_unequally(key_set):
    """Each message has a key and an error of its own: nobody can tell that values come again."""
    messages = [sealed(key_set, np.ones(5)) for _ in range(10)]
    assert len({m.payload for m in messages}) == len({m.nonce for m in messages}) == 10
    assert {len(m.payload) for m in messages} == {SUMS.ciphertext_bytes} == {14_336}


@pytest.mark.parametrize(
    "n_bytes",
    [0, 1, SUMS.ciphertext_bytes - 1, SUMS.ciphertext_bytes + 1, 2 * SUMS.ciphertext_bytes],
)
def test_the_sum_takes_one_length(key_set, n_bytes):
    """A payload of any other length is refused and the sum stays as it was."""
    running = OneTimeAdder(key_set.public).start(5).plus(sealed(key_set, np.ones(5)).payload)
    before = running.total()
    with pytest.raises(MessageRefused):
        running = running.plus(bytes(n_bytes))
    assert running.total() == before


def test_a_word_beyond_the_prime_is_refused(key_set):
    """A ring has one form of each polynomial."""
    running = OneTimeAdder(key_set.public).start(5)
    with pytest.raises(MessageRefused, match="outside the ring"):
        running.plus(b"\xff" * SUMS.ciphertext_bytes)


finite = st.floats(-LARGEST, LARGEST)


@settings(deadline=None)
@given(n_samples=st.lists(st.integers(1, 10_000), min_size=1, max_size=20), data=st.data())
def test_the_plain_sum_is_numpys_to_the_bit(n_samples, data):
    """In the clear, doubles are summed in the order of arrival and divided once."""
    weights = weights_of(n_samples)
    n_values = data.draw(st.integers(1, 6))
    row = st.lists(finite, min_size=n_values, max_size=n_values)
    values = np.array(data.draw(st.lists(row, min_size=len(weights), max_size=len(weights))))
    channel = PlainChannel("float64")
    running = channel.start(n_values)
    wanted, weight = np.zeros(n_values), 0.0
    for x, w in zip(values, weights, strict=True):
        payload = channel.seal(x, w, ABOUT, ALICE).payload
        assert len(payload) == channel.n_bytes(n_values)
        running = running.plus(payload)
        wanted, weight = wanted + w * x, weight + w
    opened = channel.open(running.total(), n_values)
    np.testing.assert_array_equal(opened.values, wanted / weight)
    assert (opened.weight, opened.n_clients) == (weight, len(weights))


@settings(deadline=None)
@given(data=st.data())
def test_the_plain_sum_of_floats_rounds_each_value_once(data):
    """In float32 each value is rounded when it is sent; from there on all is double precision."""
    values = np.array(data.draw(st.lists(finite, min_size=3, max_size=3)))
    channel = PlainChannel("float32")
    running = channel.start(3)
    for weight in (0.5, 0.25):
        running = running.plus(channel.seal(values, weight, ABOUT, ALICE).payload)
    sent = values.astype(np.float32).astype(np.float64)
    opened = channel.open(running.total(), 3)
    np.testing.assert_array_equal(opened.values, (0.5 * sent + 0.25 * sent) / 0.75)


not_finite = st.sampled_from([np.nan, np.inf, -np.inf, -np.nan, 8.4e6, -3e38])
no_weight = st.sampled_from([0.0, -0.0, -0.5, 1.0000001, 2.0, np.nan, np.inf, -np.inf])


@settings(deadline=None)
@given(
    dtype=st.sampled_from(["float32", "float64"]),
    index=st.integers(0, 4),
    value=not_finite,
    weight=st.just(0.5) | no_weight,
)
def test_the_plain_sum_refuses_what_could_not_be_sealed(dtype, index, value, weight):
    """One NaN or value out of range, or a weight outside (0, 1], leaves the sum as before."""
    channel = PlainChannel(dtype)
    running = channel.start(5)
    running = running.plus(channel.seal(np.arange(5.0), 0.25, ABOUT, ALICE).payload)
    before = running.total()
    bad = np.ones(5)
    if weight == 0.5:
        bad[index] = value
    with pytest.raises(
        MessageRefused, match=r"not finite, or not within ±8388608|outside \(0, 1\]"
    ):
        running = running.plus(channel.seal(bad, weight, ABOUT, ALICE).payload)
    assert running.total() == before


@pytest.mark.parametrize("n_values", [0, 1, 4, 6])
def test_the_plain_sum_takes_one_length(n_values):
    """`RunningSum.add` raises MessageRefused for what is no contribution, whoever calls it."""
    channel = PlainChannel("float64")
    running = channel.start(5)
    with pytest.raises(MessageRefused):
        running = running.plus(channel.seal(np.ones(n_values), 0.25, ABOUT, ALICE).payload)


@pytest.mark.parametrize(("n_clients", "n_values"), [(3, 1), (200, 3), (3, 5000), (40, 1300)])
def test_random_sums_are_right(benchmark, n_clients, n_values):
    """The script of the page, which has thousands of them."""
    script = benchmark("random_sums")
    rng = np.random.default_rng(n_values)
    assert all(script.error_of(rng, n_clients, n_values) <= 1 for _ in range(3))

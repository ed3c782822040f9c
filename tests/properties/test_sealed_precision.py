"""Encrypted training is the training in the clear, whatever size values and weights have."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from securefl.algorithms.algorithm import with_gains
from securefl.crypto.params import SUMS, SumParameters
from securefl.errors import MessageRefused, ValueRefused
from securefl.exchange.decode_total import TotalDecoder
from securefl.exchange.digits import MOST_CLIENTS, SURE, UNIT_BITS, Digits, is_exact
from securefl.exchange.layout import gains_of, pack
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.sums import MessageId, Sender
from securefl.exchange.value_range import FEW, are_in_range
from securefl.types import Kind, MessageSpec

pytestmark = pytest.mark.usefixtures("quick")

COARSE = SumParameters(prime_bits=(40,), scale_bits=25)
RUN = "ab" * 32


@pytest.mark.parametrize(
    ("scale", "weight", "encrypt"),
    [(1e-3, 1e-3, "statistics"), (200.0, 1.0, "statistics"), (60.0, 1e-2, "model")],
)
def test_encrypted_training_ends_where_training_in_the_clear_does(
    benchmark, scale, weight, encrypt
):
    """The published table's code, over fewer rounds: within 1e-6 of each tensor's size."""
    measure = benchmark("sealed_precision")
    assert measure.measured(measure.Case(scale, weight, encrypt, 12, rounds=3)) < 1e-6


@pytest.mark.parametrize("scale", [1e-3, 60.0])
@pytest.mark.parametrize("way", ["FedTAN", "FedAvg + GN"])
def test_sealed_training_on_the_digits_ends_where_training_in_the_clear_does(benchmark, way, scale):
    """The published table's code, over fewer rounds."""
    measure = benchmark("sealed_digits")
    apart = measure.measured(measure.Case(way, "model", 0, scale, rounds=4))
    assert apart.error < 1e-6
    assert (apart.sealed, apart.n_incidents) == (apart.clear, 0)


def test_one_clients_bias_beyond_the_usual_range_is_sealed_as_well(benchmark):
    """Inputs a thousandth as large, and steps so long that it passes ±32: by few of all values."""
    measure = benchmark("sealed_digits")
    apart = measure.measured(measure.Case("FedTAN", "model", 1, 1e-3, rounds=1, lr=0.8))
    assert (apart.error < 1e-6, apart.n_incidents) == (True, 0)


def test_a_sealed_run_that_a_value_leaves_is_told_from_an_imprecise_one(benchmark):
    """Steps so long that one client's bias passes ±512."""
    measure = benchmark("sealed_digits")
    apart = measure.measured(measure.Case("FedTAN", "model", 1, 1e-3, rounds=1, lr=14.0))
    assert apart.n_incidents > 0
    assert str(apart).endswith(f" ({apart.n_incidents} incidents)")
    assert apart.error > 1e-3


def test_two_honest_sealed_runs_of_one_seed_differ_by_their_noise_alone(benchmark, capsys):
    """The page's numbers: what a server that has one run made twice reads is no finer."""
    benchmark("sealed_twice").main(["--rounds", "1"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| fedavg", "| fedtan"]
    for _, rounds, apart, largest in rows:
        assert (rounds, 1e-10 < float(apart) < 1e-6) == ("1", True)
        assert 0.5 < float(largest.rstrip("| ")) < 2


def sealed_total(keys, values, weights):
    """The sum of these clients' messages, and what opens it: total, about and nonces."""
    about = MessageId(RUN, 1, "layer/mean", values.shape[-1])
    sealer, opener = OneTimeSealer(keys.public), keys.opener()
    running, nonces = OneTimeAdder(keys.public).start(about.n_values), {}
    for i, weight in enumerate(weights):
        sender = Sender(f"client-{i}", bytes([i]) * 32)
        opener.take_cards(RUN, sender.name, keys.public.cards(RUN, sender))
        payload, nonces[sender.name] = sealer.seal(values, weight, about, sender)
        running = running.plus(payload)
    return opener, (running.total(), about, nonces)


@pytest.mark.parametrize("n_values", [1, 409, 511, 682, 1023, 1024])
@pytest.mark.parametrize("n_clients", [1, 50])
def test_digits_add_up_to_the_sum(n_values, n_clients):
    """The totals of all digits are the values' total, whatever part each digit takes."""
    rng = np.random.default_rng(n_values)
    digits = Digits.of(SUMS, n_values)
    sizes = 10.0 ** rng.uniform(-9, 3, (n_clients, n_values))
    weighted = sizes * rng.choice([-1, 1], sizes.shape) / n_clients
    slots = sum(digits.split(x) for x in weighted)
    assert len(slots) <= SUMS.values_per_ciphertext * SUMS.n_ciphertexts(n_values)
    assert np.abs(slots).max() <= SUMS.max_value
    noisy = slots + rng.normal(0, 1e-9, slots.shape)
    atol = 8 * 1e-9 * 2.0**-digits.finest_bits + 1e-15 * np.abs(weighted).sum(0).max()
    np.testing.assert_allclose(digits.joined(noisy, n_values), weighted.sum(0), rtol=0, atol=atol)


def test_the_halves_of_a_unit_fit_into_the_next_slot():
    """As many clients as are allowed, each with the largest remainder, stay within the range."""
    for n_values in (400, 500, 600, 1000):
        bits = Digits.of(SUMS, n_values).gain_bits
        for coarse, fine in pairwise(bits):
            remainder = 2.0 ** -(coarse + UNIT_BITS + 1)
            assert MOST_CLIENTS * remainder * 2.0**fine <= SUMS.max_value


def test_no_more_bytes_travel_for_digits(key_set):
    """A message takes the ciphertexts that its values alone would take."""
    for n_values in (1, 1023, 2046, 2047):
        _, (total, *_) = sealed_total(key_set, np.ones(n_values), [0.5])
        assert len(total) == SUMS.message_bytes(n_values)


def test_parameters_without_room_have_one_digit():
    """At a small scale the usual noise would drown the units."""
    assert Digits.of(COARSE, 5).gain_bits == (0,)
    assert len(Digits.of(SUMS, 5).gain_bits) == 5


def test_digits_are_read_under_the_noise_of_the_most_clients():
    """Six of its deviations are less than half a unit; those of a smaller scale are not."""
    assert SURE * SUMS.noise(MOST_CLIENTS) < 2.0 ** -(UNIT_BITS + 1)
    assert is_exact(SUMS.noise(MOST_CLIENTS))
    assert not is_exact(COARSE.noise(MOST_CLIENTS))
    assert not is_exact(2.0 ** -(UNIT_BITS + 1) / SURE)


def test_more_clients_than_digits_hold_are_refused():
    """Their remainders might leave the range in silence."""
    slots = np.zeros((1, 2048))
    slots[:, -2:] = 0.5, MOST_CLIENTS + 1
    with pytest.raises(MessageRefused, match=f"digits hold at most {MOST_CLIENTS}"):
        TotalDecoder(SUMS, MOST_CLIENTS + 1).decode(slots, 5, 24)
    slots[:, -1] = MOST_CLIENTS
    assert TotalDecoder(SUMS, MOST_CLIENTS).decode(slots, 5, 24).n_clients == MOST_CLIENTS


@pytest.mark.parametrize("weight", [1.0, 2.0**-13])
def test_one_rounding_is_relative(key_set, weight):
    """Values of any size, from clients of any weight, err by half of the last bit released."""
    values = np.array([1e-5, -3e-3, 0.7, -40.0, 5e6])
    opener, total = sealed_total(key_set, values, [weight / 2] * 2)
    opened = opener.open(*total, 20)
    np.testing.assert_allclose(opened.values, values, rtol=2.0**-21 * 1.01, atol=0)
    significant = 2**21 * np.frexp(opened.values)[0]
    np.testing.assert_array_equal(significant, np.rint(significant))


def large(**sizes):
    """A message of a whole model, of tensors of these sizes."""
    tensors = {name: torch.full((1000,), size, dtype=torch.float64) for name, size in sizes.items()}
    spec = MessageSpec("update/parameters", Kind.PARAMETERS, 1000 * len(tensors))
    (spec,) = with_gains([spec], {Kind.PARAMETERS: tensors}, frozenset({Kind.PARAMETERS}))
    return spec, tensors


def test_a_tensor_may_jump_to_32_or_to_64_times_its_size():
    """And a few values 16 times beyond; what no gain lets through is refused by name."""
    spec, _ = large(small=1e-3, zero=0.0, wide=1024.0)
    gains, limit = gains_of(spec), Digits.of(SUMS, spec.n_values).max_value
    ranges = limit / gains[::1000]
    np.testing.assert_array_equal(ranges, [32.0, 65536.0, 65536.0])
    jumped = {n: torch.full((1000,), r) for n, r in zip(("s", "z", "w"), ranges, strict=True)}
    assert np.abs(pack("m", jumped, limit, gains)).max() == limit
    jumped["s"][:34] = 16 * 32
    assert np.abs(pack("m", jumped, limit, gains)).max() == 16 * limit
    jumped["s"][40:43] = 300  # more than 512 ranges beyond, in all
    with pytest.raises(ValueRefused, match=r"m: s\[0\] = 512 must be within ±32"):
        pack("m", jumped, limit, gains)
    jumped["s"][3] = 513
    with pytest.raises(ValueRefused, match=r"m: s\[3\] = 513 must be within ±512"):
        pack("m", jumped, limit, gains)


@pytest.mark.parametrize("times", [2, 16])
def test_the_worst_values_that_are_in_range_open(key_set, times):
    """All as large as they may be, with the signs that add up in one coefficient."""
    assert SUMS.poly_degree == 4 * FEW
    n = SUMS.values_per_ciphertext
    powers = np.array([pow(3, j, 2 * 2048) for j in range(1024)])
    aligned = np.exp(1j * np.pi / 4 * powers)  # of the coefficient N/4
    values = SUMS.max_value * np.sign(np.concatenate([aligned.real, aligned.imag]))[:n]
    values[: FEW // (times - 1)] *= times
    assert are_in_range(values, SUMS.max_value)
    assert not are_in_range(values * (1 + 1e-9), SUMS.max_value)
    opener, total = sealed_total(key_set, values, [0.5, 0.25, 0.25])
    opened = opener.open(*total, 40)
    np.testing.assert_allclose(opened.values, values, rtol=0, atol=1e-8)
    with pytest.raises(ValueRefused, match=r"weight 0\.8, are together too large to be sealed"):
        sealed_total(key_set, values, [0.8, 0.1, 0.1])


def test_a_total_beyond_what_clients_may_send_is_refused():
    """As their mean is no larger."""
    slots = np.zeros((1, 2048))
    slots[:, -2:] = 1.0, 3.0
    slots[0, :34] = 16 * SUMS.max_value
    assert TotalDecoder(SUMS, 3).decode(slots, 2046, 24).n_clients == 3
    slots[0, 34] = 4 * SUMS.max_value
    with pytest.raises(MessageRefused, match="none that clients may send"):
        TotalDecoder(SUMS, 3).decode(slots, 2046, 24)


def test_a_large_message_is_as_precise_as_its_tensors_are_small(key_set):
    """Gains make up for the digits that a whole model has no room for."""
    spec, tensors = large(small=0.01, wide=1000.0)
    gains, limit = gains_of(spec), Digits.of(SUMS, spec.n_values).max_value
    packed = pack("m", tensors, limit, gains)
    opener, total = sealed_total(key_set, packed, [2.0**-6])
    opened = opener.open(*total, 24)
    error = opened.values / gains / np.repeat([0.01, 1000.0], 1000) - 1
    assert np.linalg.norm(error) / np.sqrt(2000) < 1e-7

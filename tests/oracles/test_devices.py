"""Time and energy of FedProf's Eqs. (9)-(16), against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from securefl.errors import ConfigError, DataError
from securefl.selection.device_simulation import (
    Cost,
    Device,
    Load,
    cost,
    downlink_bits_per_s,
    draw_devices,
    dropouts,
    round_outcome,
)
from securefl.settings.devices import DEVICE_PRESETS, DeviceSpecification, DevicesTable
from securefl.settings.load import load_config

# 10 log10(3) dB is a ratio of 3, so log2(1 + SNR) = 2: 1 MHz carries 2 Mbit/s down, 1 Mbit/s up.
ROUND_NUMBERS = DeviceSpecification(
    clock_ghz=2.0,
    bandwidth_mhz=1.0,
    snr_db=10 * math.log10(3),
    bits_per_sample=1000,
    cycles_per_bit=100.0,
    transmit_w=0.5,
    compute_w=0.25,
)
DEVICE = Device(clock_ghz=2.0, bandwidth_mhz=1.0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_clients_round_in_round_numbers():
    """Down 250 kB = 2 Mbit in 1 s, up 250 kB in 2 s; 40 000 samples are 4 Gcycles an epoch, 2 s."""
    load = Load(40_000, 3, download_bytes=250_000, upload_bytes=250_000, profile_bytes=125_000)
    made = cost(ROUND_NUMBERS, DEVICE, load)
    assert made.communication_s == pytest.approx(1 + 2)  # Eq. (11)
    assert made.training_s == pytest.approx(3 * 2)  # Eq. (12)
    assert made.profiling_s == pytest.approx(2)  # Eq. (13)
    assert made.profile_upload_s == pytest.approx(1)  # Eq. (13)
    assert made.time_s == pytest.approx(12)
    assert made.communication_j == pytest.approx(0.5 * 3)  # Eq. (14)
    assert made.training_j == pytest.approx(0.25 * 8 * 6)  # Eq. (15)
    assert made.profiling_j == pytest.approx(0.5 * 1 + 0.25 * 8 * 2)  # Eq. (16)
    assert made.energy_wh == pytest.approx((1.5 + 12 + 4.5) / 3600)  # Eq. (10)


def test_eq_11_is_three_downloads_where_both_ways_weigh_the_same():
    """And encryption, which makes the upload alone heavier, costs twice its bytes of a download."""
    plain = cost(ROUND_NUMBERS, DEVICE, Load(0, 1, 10**6, 10**6))
    down = 8 * 10**6 / downlink_bits_per_s(ROUND_NUMBERS, DEVICE)
    assert plain.communication_s == pytest.approx(3 * down) == 12
    sealed = cost(ROUND_NUMBERS, DEVICE, Load(0, 1, 10**6, 5 * 10**6))
    assert sealed.communication_s == pytest.approx(plain.communication_s + 2 * 4 * down)


def test_without_a_profile_there_is_neither_its_time_nor_its_energy():
    """T_RP and E_RP only apply to FedProf; an empty profile still takes a pass over the data."""
    none = cost(ROUND_NUMBERS, DEVICE, Load(40_000, 3, 0, 0))
    assert (none.profiling_s, none.profile_upload_s, none.profiling_j) == (0, 0, 0)
    empty = cost(ROUND_NUMBERS, DEVICE, Load(40_000, 3, 0, 0, profile_bytes=0))
    assert empty.profiling_s == pytest.approx(2)


@pytest.mark.parametrize(
    ("preset", "device", "n_samples", "epochs", "rate", "training_s", "compute_w"),
    [
        # 0.7e6 · log2(1 + 10^0.7) = 0.7e6 · 2.58781; 2 · 514 · 352 · 300 / 0.5e9; 0.7 · 0.5³
        ("gasturbine", Device(0.5, 0.7), 514, 2, 1_811_469.0, 0.2171136, 0.0875),
        # 1e6 · log2(11); 5 · 480 · 6272 · 400 / 1e9; 0.7 · 1³
        ("emnist", Device(1.0, 1.0), 480, 5, 3_459_432.0, 6.02112, 0.7),
        # 2e6 · log2(11); 6 · 5000 · 24576 · 400 / 3e9; 0.7 · 3³
        ("cifar10", Device(3.0, 2.0), 5000, 6, 6_918_863.0, 98.304, 18.9),
    ],
)
def test_the_three_tasks_of_table_2(preset, device, n_samples, epochs, rate, training_s, compute_w):
    """A device of mean speed: its rate, its training time and its power."""
    table = DEVICE_PRESETS[preset]
    made = cost(table, device, Load(n_samples, epochs, 10**6, 10**6, 8 * 64))
    assert downlink_bits_per_s(table, device) == pytest.approx(rate, rel=1e-5)
    assert made.training_s == pytest.approx(training_s)
    assert made.training_j == pytest.approx(compute_w * training_s)
    assert made.communication_s == pytest.approx(3 * 8e6 / rate, rel=1e-5)
    assert made.communication_j == pytest.approx(0.75 * made.communication_s)
    assert made.profiling_s == pytest.approx(training_s / epochs)
    assert made.profile_upload_s == pytest.approx(8 * 8 * 64 / (rate / 2), rel=1e-5)


@pytest.mark.parametrize(
    ("preset", "clock", "bandwidth"),
    [
        ("gasturbine", (0.5, 0.1), (0.7, 0.1)),
        ("emnist", (1.0, 0.2), (1.0, 0.3)),
        ("cifar10", (3.0, 0.4), (2.0, 0.2)),
    ],
)
def test_devices_are_drawn_from_table_2s_normal_distributions(preset, clock, bandwidth):
    """Mean and standard deviation within four standard errors of 5000 devices."""
    devices = draw_devices(DEVICE_PRESETS[preset], 5000, generator())
    for drawn, (mean, deviation) in (
        ([d.clock_ghz for d in devices], clock),
        ([d.bandwidth_mhz for d in devices], bandwidth),
    ):
        values = torch.tensor(drawn)
        assert float(values.mean()) == pytest.approx(mean, abs=4 * deviation / 5000**0.5)
        assert float(values.std()) == pytest.approx(deviation, rel=4 / 10_000**0.5)
    assert devices == draw_devices(DEVICE_PRESETS[preset], 5000, generator())
    assert devices != draw_devices(DEVICE_PRESETS[preset], 5000, generator(1))


def test_no_device_is_slower_than_nothing():
    """What is not above 0 is drawn again: N(1, 2²) truncated at 0 has the mean 2.018."""
    wide = ROUND_NUMBERS.model_copy(update={"clock_ghz": 1.0, "clock_ghz_deviation": 2.0})
    clocks = [device.clock_ghz for device in draw_devices(wide, 5000, generator())]
    assert min(clocks) > 0
    # mean + σ φ(a) / (1 - Φ(a)), a = -1/2: 1 + 2 · 0.352065 / 0.691462
    assert sum(clocks) / 5000 == pytest.approx(2.0183, abs=4 * 1.4 / 5000**0.5)
    assert {d.bandwidth_mhz for d in draw_devices(wide, 9, generator())} == {1.0}


def spent(time_s, joules=3600.0):
    return Cost(time_s, 0, 0, 0, joules, 0, 0)


COSTS = {"a": spent(3.0), "b": spent(9.0), "c": spent(5.0), "d": spent(7.0)}


@pytest.mark.parametrize(
    ("lost", "deadline_s", "arrived", "stragglers", "time_s"),
    [
        ((), None, "abcd", "", 9.0),  # Eq. (9)
        ((), 20.0, "abcd", "", 9.0),
        ((), 9.0, "abcd", "", 9.0),
        ((), 6.0, "ac", "bd", 6.0),
        ((), 1.0, "", "abcd", 1.0),
        (("b",), None, "acd", "", 7.0),
        (("b",), 8.0, "acd", "", 8.0),
        (("a", "b"), 6.0, "c", "d", 6.0),
        (("a", "b", "c", "d"), None, "", "", 0.0),
    ],
)
def test_a_round_lasts_as_long_as_its_slowest_client_or_its_deadline(
    lost, deadline_s, arrived, stragglers, time_s
):
    """Energy is spent by all, those that came too late or never among them."""
    outcome = round_outcome(COSTS, lost, deadline_s)
    assert outcome.arrived == tuple(arrived)
    assert outcome.stragglers == tuple(stragglers)
    assert outcome.lost == lost
    assert outcome.time_s == time_s
    assert outcome.energy_wh == pytest.approx(4.0)


def test_clients_drop_out_with_their_probability_and_independently():
    """Of 4000 clients about 30 %, also of those whose neighbour did; 0 is none and 1 is all."""
    names = tuple(f"client-{i}" for i in range(1, 4001))
    out = set(dropouts(names, 0.3, generator()))
    four_errors = 4 * (0.3 * 0.7 / 4000) ** 0.5
    assert len(out) / 4000 == pytest.approx(0.3, abs=four_errors)
    pairs = sum(a in out and b in out for a, b in itertools.pairwise(names))
    assert pairs / 4000 == pytest.approx(0.09, abs=0.03)
    assert dropouts(names, 0.0, generator()) == ()
    assert dropouts(names, 1.0, generator()) == names
    assert dropouts(names, 0.3, generator()) == dropouts(names, 0.3, generator())


PHONES = {
    "clock_ghz": 1.5,
    "clock_ghz_deviation": 0.25,
    "bandwidth_mhz": 5.0,
    "snr_db": 12.0,
    "bits_per_sample": 6272,
    "cycles_per_bit": 400.0,
}


def test_devices_are_described_by_a_preset_by_keys_or_by_both():
    """Deviations of 0 and the paper's powers stand where nothing is said; own keys come first."""
    phones = DevicesTable(**PHONES).specification
    assert (phones.clock_ghz, phones.clock_ghz_deviation) == (1.5, 0.25)
    assert (phones.bandwidth_mhz, phones.bandwidth_mhz_deviation) == (5.0, 0.0)
    assert (phones.transmit_w, phones.compute_w) == (0.75, 0.7)
    assert DevicesTable(preset="emnist").specification == DEVICE_PRESETS["emnist"]
    louder = DevicesTable(preset="emnist", snr_db=3.0).specification
    assert louder == DEVICE_PRESETS["emnist"].model_copy(update={"snr_db": 3.0})
    assert DevicesTable().specification is None
    assert DevicesTable(dropout=0.5).specification is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["devices.snr=3.0"], "snr: no such key; did you mean devices.snr_db"),
        (["devices.preset=emnsit"], "devices.preset = 'emnsit'"),
        (["devices.preset=emnist", "devices.clock_ghz=0.0"], "devices.clock_ghz = 0.0"),
        (["devices.preset=emnist", "devices.snr_db=nan"], "devices.snr_db = nan"),
        (
            ["devices.clock_ghz=1.5"],
            "devices.clock_ghz = 1.5: bandwidth_mhz, snr_db, .* missing; give all of",
        ),
        (["devices.deadline_s=3.0"], r"devices.deadline_s = 3.0: without devices nothing takes"),
        (["devices.dropout=1.0"], "devices.dropout = 1.0"),
    ],
)
def test_devices_that_are_not_whole_are_refused_by_key(settings, message):
    """The message names the key, its value and the way out."""
    with pytest.raises(ConfigError, match=message):
        load_config(settings=settings)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: draw_devices(ROUND_NUMBERS, 0, generator()), ConfigError, "0 clients"),
        (lambda: Load(-1, 1, 0, 0), ConfigError, "n_samples = -1"),
        (lambda: Load(1, math.nan, 0, 0), ConfigError, "epochs = nan"),
        (lambda: Load(1, 1, 0, 0, -8), ConfigError, "profile_bytes = -8"),
        (lambda: round_outcome(COSTS, deadline_s=0.0), ConfigError, "deadline_s = 0.0"),
        (lambda: round_outcome(COSTS, ("e",)), DataError, "e: lost, but not among"),
        (lambda: dropouts("ab", 1.5, generator()), ConfigError, "1.5"),
    ],
)
def test_what_no_device_can_do_is_refused(make, error, message):
    """The message names the number."""
    with pytest.raises(error, match=message):
        make()

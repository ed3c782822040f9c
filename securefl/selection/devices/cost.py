"""One client's time and energy in a round (Wu et al., FedProf, Eqs. (10)-(16)).

The paper states neither the units nor the logarithm. As in Shannon's formula the logarithm has
base 2 and the signal-to-noise ratio is a ratio, so decibels are converted; sizes are in bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from securefl.config.devices import DeviceSpecification
from securefl.errors import ConfigError
from securefl.selection.devices.spec import Device

_JOULES_PER_WH = 3600.0


@dataclass(frozen=True, slots=True)
class Load:
    """One client's workload in a round; bytes are those on the wire, encryption included.

    Raises:
        ConfigError: a number below 0.
    """

    n_samples: int
    """|D_k|"""
    epochs: float
    """E; local steps count as the share of an epoch that they are."""
    download_bytes: int
    upload_bytes: int
    """Without the profile. The paper's msize is either, as its up- and download are alike."""
    profile_bytes: int | None = None
    """RPsize; none where the client makes no profile."""

    def __post_init__(self) -> None:
        numbers = {
            "n_samples": self.n_samples,
            "epochs": self.epochs,
            "download_bytes": self.download_bytes,
            "upload_bytes": self.upload_bytes,
            "profile_bytes": self.profile_bytes or 0,
        }
        for name, number in numbers.items():
            if not 0 <= number < math.inf:
                raise ConfigError(f"{name} = {number}: must be a finite number from 0 on")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and joules of one client's round, by what they are spent on."""

    communication_s: float
    training_s: float
    profiling_s: float
    """The passes over the data that make the profile, T_RPgen."""
    profile_upload_s: float
    """T_RPup"""
    communication_j: float
    training_j: float
    profiling_j: float
    """Energy to make and send the profile."""

    @property
    def time_s(self) -> float:
        """Duration of the round for this client, the term of Eq. (9)'s maximum."""
        return self.communication_s + self.training_s + self.profiling_s + self.profile_upload_s

    @property
    def energy_wh(self) -> float:
        """E_k, Eq. (10), in watt-hours."""
        return (self.communication_j + self.training_j + self.profiling_j) / _JOULES_PER_WH


def downlink_bits_per_s(table: DeviceSpecification, device: Device) -> float:
    """Return bw_k log2(1 + SNR); the uplink has half of it."""
    return device.bandwidth_mhz * 1e6 * math.log2(1 + 10 ** (table.snr_db / 10))


def cost(table: DeviceSpecification, device: Device, load: Load) -> Cost:
    """Return time and energy of one client's round."""
    down = downlink_bits_per_s(table, device)
    up = down / 2
    cycles_per_epoch = load.n_samples * table.bits_per_sample * table.cycles_per_bit
    epoch_s = cycles_per_epoch / (device.clock_ghz * 1e9)
    compute_w = table.compute_w * device.clock_ghz**3

    communication_s = 8 * load.download_bytes / down + 8 * load.upload_bytes / up  # Eq. (11)
    training_s = load.epochs * epoch_s  # Eq. (12)
    profiled = load.profile_bytes is not None
    profiling_s = epoch_s if profiled else 0.0  # Eq. (13), T_train / E
    profile_upload_s = 8 * (load.profile_bytes or 0) / up  # Eq. (13)
    return Cost(
        communication_s,
        training_s,
        profiling_s,
        profile_upload_s,
        communication_j=table.transmit_w * communication_s,  # Eq. (14)
        training_j=compute_w * training_s,  # Eq. (15)
        profiling_j=table.transmit_w * profile_upload_s + compute_w * profiling_s,  # Eq. (16)
    )

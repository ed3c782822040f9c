"""The table `[devices]`: what clients run on, for the simulated clock and the energy."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, model_validator

from securefl.settings.table import Table

Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False, strict=True)]
Deviation = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)]
Decibels = Annotated[float, Field(ge=-30, le=100, allow_inf_nan=False, strict=True)]


class DeviceSpecification(Table):
    """Normal distributions of the devices' speeds, and what is the same for all of them."""

    clock_ghz: Positive
    """Mean of s_k, the devices' clock."""
    clock_ghz_deviation: Deviation = 0.0
    bandwidth_mhz: Positive
    """Mean of bw_k, the downlink's bandwidth; the uplink has half of it."""
    bandwidth_mhz_deviation: Deviation = 0.0
    snr_db: Decibels
    """Signal-to-noise ratio of the channel, the same for all."""
    bits_per_sample: Annotated[int, Field(ge=1, strict=True)]
    """BPS"""
    cycles_per_bit: Positive
    """CPB, processor cycles to train on one bit of a sample."""
    transmit_w: Positive = 0.75
    """P_trans, the transmitter's power."""
    compute_w: Positive = 0.7
    """P_f, the processor's power at 1 GHz; it grows with the cube of the clock."""


DEVICE_PRESETS: Mapping[str, DeviceSpecification] = MappingProxyType(
    {
        "gasturbine": DeviceSpecification(
            clock_ghz=0.5,
            clock_ghz_deviation=0.1,
            bandwidth_mhz=0.7,
            bandwidth_mhz_deviation=0.1,
            snr_db=7.0,
            bits_per_sample=11 * 8 * 4,
            cycles_per_bit=300.0,
        ),
        "emnist": DeviceSpecification(
            clock_ghz=1.0,
            clock_ghz_deviation=0.2,
            bandwidth_mhz=1.0,
            bandwidth_mhz_deviation=0.3,
            snr_db=10.0,
            bits_per_sample=28 * 28 * 1 * 8,
            cycles_per_bit=400.0,
        ),
        "cifar10": DeviceSpecification(
            clock_ghz=3.0,
            clock_ghz_deviation=0.4,
            bandwidth_mhz=2.0,
            bandwidth_mhz_deviation=0.2,
            snr_db=10.0,
            bits_per_sample=32 * 32 * 3 * 8,
            cycles_per_bit=400.0,
        ),
    }
)
"""The three tasks of FedProf's table 2 (Wu et al.)."""


class DevicesTable(Table):
    """The table `[devices]`: a preset, or all that a specification needs; own keys come first."""

    preset: Literal["gasturbine", "emnist", "cifar10"] | None = None
    """A task of FedProf's table 2."""
    clock_ghz: Positive | None = None
    """Mean clock; it takes `clock_ghz_deviation` beside it."""
    clock_ghz_deviation: Deviation | None = None
    bandwidth_mhz: Positive | None = None
    """Mean bandwidth of the downlink; the uplink has half of it."""
    bandwidth_mhz_deviation: Deviation | None = None
    snr_db: Decibels | None = None
    """Signal-to-noise ratio."""
    bits_per_sample: Annotated[int, Field(ge=1, strict=True)] | None = None
    cycles_per_bit: Positive | None = None
    """Processor cycles to train on one bit of a sample."""
    transmit_w: Positive | None = None
    """The transmitter's power; 0.75 where absent."""
    compute_w: Positive | None = None
    """The processor's power at 1 GHz; 0.7 where absent."""
    deadline_s: Positive | None = None
    """Clients that would take longer do not count in the round."""
    dropout: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    """The probability that a selected client is lost in a round."""

    @property
    def specification(self) -> DeviceSpecification | None:
        """Devices that all keys together describe; None where none is simulated."""
        own = {key: getattr(self, key) for key in DeviceSpecification.model_fields}
        own = {key: value for key, value in own.items() if value is not None}
        if self.preset is None and not own:
            return None
        base = DEVICE_PRESETS[self.preset].model_dump() if self.preset else {}
        return DeviceSpecification.model_validate(base | own)

    @model_validator(mode="after")
    def _is_whole(self) -> DevicesTable:
        given = [key for key in DeviceSpecification.model_fields if getattr(self, key) is not None]
        needed = [k for k, field in DeviceSpecification.model_fields.items() if field.is_required()]
        missing = [key for key in needed if key not in given]
        presets = ", ".join(DEVICE_PRESETS)
        if given and missing and self.preset is None:
            raise ValueError(
                f"devices.{given[0]} = {getattr(self, given[0])}: {', '.join(missing)} are "
                f"missing; give all of {', '.join(needed)}, or a devices.preset to start from: "
                f"{presets}"
            )
        if self.deadline_s is not None and self.specification is None:
            raise ValueError(
                f"devices.deadline_s = {self.deadline_s}: without devices nothing takes time; set "
                f"devices.preset, one of {presets}, or their speeds"
            )
        return self

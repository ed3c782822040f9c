"""The devices of a federation, drawn from the settings' distributions of their speeds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from securefl.config.devices import DeviceSpecification
from securefl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Device:
    """One client's device."""

    clock_ghz: float
    """s_k"""
    bandwidth_mhz: float
    """bw_k, the downlink's bandwidth."""


def draw_devices(
    table: DeviceSpecification, n_clients: int, rng: torch.Generator
) -> tuple[Device, ...]:
    """Draw a device for each client, clock and bandwidth from normal distributions.

    A value that is not above 0 is drawn again, so the distributions are normal ones truncated
    at 0. The paper does not say how it avoids a bandwidth below 0, which N(1, 0.3²) has for one
    client in 2300.

    Raises:
        ConfigError: no client.
    """
    if n_clients < 1:
        raise ConfigError(f"{n_clients} clients: must be at least 1")
    return tuple(
        Device(
            _above_zero(table.clock_ghz, table.clock_ghz_deviation, rng),
            _above_zero(table.bandwidth_mhz, table.bandwidth_mhz_deviation, rng),
        )
        for _ in range(n_clients)
    )


def _above_zero(mean: float, deviation: float, rng: torch.Generator) -> float:
    while True:  # half of all draws are above the mean, which is above 0
        drawn = mean + deviation * float(torch.randn((), dtype=torch.float64, generator=rng))
        if drawn > 0:
            return drawn

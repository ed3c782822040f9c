"""Simulated devices: what a round costs in time and energy (Wu et al., FedProf, Eqs. (9)-(16))."""

from __future__ import annotations

from securefl.devices.cost import Cost, Load, cost, downlink_bits_per_s
from securefl.devices.rounds import RoundOutcome, dropouts, round_outcome
from securefl.devices.spec import Device, draw_devices

__all__ = [
    "Cost",
    "Device",
    "Load",
    "RoundOutcome",
    "cost",
    "downlink_bits_per_s",
    "draw_devices",
    "dropouts",
    "round_outcome",
]

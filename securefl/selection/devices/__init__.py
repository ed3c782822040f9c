"""Simulated devices: what a round costs in time and energy (Wu et al., FedProf, Eqs. (9)-(16))."""

from __future__ import annotations

from securefl.selection.devices.cost import Cost, Load, cost, downlink_bits_per_s
from securefl.selection.devices.rounds import RoundOutcome, dropouts, round_outcome
from securefl.selection.devices.spec import Device, draw_devices

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

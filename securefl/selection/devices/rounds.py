"""A round on simulated devices: arrivals, duration, energy (Wu et al., Eq. (9))."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from securefl.errors import ConfigError, DataError
from securefl.selection.devices.cost import Cost


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """Outcome of a round; clients are in the order in which they were selected."""

    arrived: tuple[str, ...]
    """Clients whose contribution counts."""
    stragglers: tuple[str, ...]
    """Clients that missed the deadline."""
    lost: tuple[str, ...]
    """Clients that dropped out."""
    time_s: float
    energy_wh: float
    """Energy of all the selected; a client that drops out counts with a whole round."""


def round_outcome(
    costs: Mapping[str, Cost], lost: Collection[str] = (), deadline_s: float | None = None
) -> RoundOutcome:
    """Return the outcome of a round of the clients in `costs`.

    It lasts as long as its slowest client, Eq. (9). With a deadline it ends there at the latest,
    and lasts until then where a client is missing, since the server goes on waiting. Without a
    deadline the server does not wait for a client that drops out.

    Raises:
        ConfigError: a deadline that is not above 0.
        DataError: a client is lost that was not selected.
    """
    if deadline_s is not None and not deadline_s > 0:
        raise ConfigError(f"deadline_s = {deadline_s}: must be above 0; leave it out to wait")
    if strangers := sorted(set(lost) - costs.keys()):
        raise DataError(f"{', '.join(strangers)}: lost, but not among the selected clients")
    present = [client for client in costs if client not in lost]
    late = [c for c in present if deadline_s is not None and costs[c].time_s > deadline_s]
    arrived = tuple(client for client in present if client not in late)
    time_s = max((costs[client].time_s for client in arrived), default=0.0)
    if deadline_s is not None and len(arrived) < len(costs):
        time_s = deadline_s
    energy_wh = sum(cost.energy_wh for cost in costs.values())
    gone = tuple(client for client in costs if client in lost)
    return RoundOutcome(arrived, tuple(late), gone, time_s, energy_wh)


def dropouts(clients: Sequence[str], probability: float, rng: torch.Generator) -> tuple[str, ...]:
    """Draw the clients that drop out of a round, each with this probability.

    One number is drawn for each client, so dropouts of different rounds are independent.

    Raises:
        ConfigError: not a probability.
    """
    if not 0 <= probability <= 1:
        raise ConfigError(f"dropout probability {probability}: must be in 0..1")
    drawn = torch.rand(len(clients), dtype=torch.float64, generator=rng).tolist()
    return tuple(c for c, number in zip(clients, drawn, strict=True) if number < probability)

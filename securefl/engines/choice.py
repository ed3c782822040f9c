"""Which engine trains a run's clients: the one asked for, or the fastest by a short rule.

The rule is of measurements (docs/results/engines.md) and not measured anew at each start: the same
settings on the same kind of machine always train alike, so that a run resumes and is replayed bit
for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefl.engines.base import Engine
from securefl.engines.clients import Clients
from securefl.engines.sequential import Sequential
from securefl.engines.vectorised import Vectorised, reason_against
from securefl.norms.standardised import Convolution


@dataclass(frozen=True, slots=True)
class Chosen:
    """An engine, and why."""

    engine: Engine
    words: str
    """For whoever starts a run."""


def chosen_engine(name: str, clients: Clients) -> Chosen:
    """The engine of this name, or for `auto` the fastest.

    Raises:
        ConfigError: the engine that is asked for cannot train these clients.
    """
    if name == "sequential":
        return Chosen(Sequential(clients), "sequential, as asked for")
    if name == "vectorised":
        return Chosen(Vectorised(clients), "vectorised, as asked for")
    if why_not := _slower(clients) or reason_against(clients):
        return Chosen(Sequential(clients), f"sequential: {why_not}")
    where = "on a GPU" if clients.device.type == "cuda" else "of linear layers"
    return Chosen(Vectorised(clients), f"vectorised: clients of a model {where} train side by side")


def _slower(clients: Clients) -> str:
    """Why clients are better not side by side, though they could be; empty where they are."""
    if len(clients.data) == 1:
        return "there is one client"
    if clients.device.type == "cpu":
        for layer in clients.model.modules():
            if isinstance(layer, Convolution):
                return "convolutions are faster on a CPU one client after the other"
    return ""

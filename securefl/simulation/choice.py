"""Which engine trains a run's clients: the one asked for, or the faster in one process by a rule.

The rule is of measurements (docs/results/engines.md) and not measured anew at each start: the same
settings on the same kind of machine always train alike, so that a run resumes and is replayed, on a
CPU bit for bit. It does not start processes, which read a user's script anew and copy the clients'
data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from securefl.errors import ConfigError
from securefl.federation.engine import Engine
from securefl.norms.standardised import Convolution
from securefl.simulation.clients import Clients
from securefl.simulation.processes.engine import Parallel, reason_against_workers
from securefl.simulation.processes.messages import Inner
from securefl.simulation.sequential import Sequential
from securefl.simulation.stacked.engine import Vectorised, reason_against

MOST_PARAMETERS = 1_500_000
"""Of a model that is faster side by side on a CPU: larger ones fill its caches by themselves."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """An engine, and why."""

    engine: Engine
    words: str
    """For whoever starts a run."""


def chosen_engine(name: str, clients: Clients, n_workers: int | None = None) -> Chosen:
    """The engine of this name, or for `auto` the fastest.

    Args:
        name: as in the settings.
        clients: of the run.
        n_workers: where None, of `parallel` one for each core, or GPU, and of others none.

    Raises:
        ConfigError: the engine that is asked for cannot train these clients.
    """
    if name == "sequential":
        return Chosen(Sequential(clients), "sequential, as asked for")
    if name == "parallel":
        engine = _workers(name, clients, Sequential, n_workers)
        return Chosen(engine, f"parallel, as asked for: {_hired(engine)} one after the other")
    if name == "vectorised":
        if why_not := reason_against(clients):
            raise ConfigError(
                f'run.engine = "vectorised" cannot train clients side by side: {why_not}; use '
                '"sequential", or "auto"'
            )
        if n_workers is None:
            return Chosen(Vectorised(clients), "vectorised, as asked for")
        engine = _workers(name, clients, Vectorised, n_workers)
        return Chosen(engine, f"vectorised, as asked for: {_hired(engine)} side by side")
    if why_not := _slower(clients) or reason_against(clients):
        return Chosen(Sequential(clients), f"sequential: {why_not}")
    where = "on a GPU" if clients.device.type == "cuda" else "of linear layers"
    return Chosen(Vectorised(clients), f"vectorised: clients of a model {where} train side by side")


def _workers(
    name: str, clients: Clients, inside: Callable[[Clients], Inner], n_workers: int | None
) -> Parallel:
    if reason := reason_against_workers(clients):
        raise ConfigError(
            f'run.engine = "{name}": no worker can train these clients: {reason}; or set '
            'run.engine = "sequential", or "vectorised" without run.workers'
        )
    return Parallel(clients, inside, n_workers)


def _hired(engine: Parallel) -> str:
    n, n_threads = engine.n_workers, engine.n_threads
    workers = f"{n} worker{'s' if n > 1 else ''}"
    return f"{workers} with {n_threads} torch thread{'s' if n_threads > 1 else ''}, clients of each"


def _slower(clients: Clients) -> str:
    """Why clients are better not side by side, though they could be; empty where they are."""
    if len(clients.data) == 1:
        return "there is one client"
    if clients.device.type == "cpu":
        for layer in clients.model.modules():
            if isinstance(layer, Convolution):
                return (
                    "convolutions are faster on a CPU one client after the other (on several "
                    'cores, run.engine = "parallel" is faster still)'
                )
        n_parameters = sum(p.numel() for p in clients.model.parameters())
        if n_parameters > MOST_PARAMETERS:
            return (
                f"models of more than {MOST_PARAMETERS:,} parameters, as this one of "
                f"{n_parameters:,}, are no faster on a CPU side by side"
            )
    return ""

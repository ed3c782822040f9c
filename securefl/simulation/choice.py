"""Engine that trains a run's clients: the one asked for, or the faster one in this process.

The faster one is chosen by a rule from measurements (docs/results/engines.md, gpu.md), not measured
at each start: the same settings on the same kind of machine always train alike, so that a run
resumes and is replayed, on a CPU bit for bit. The rule starts no processes, which would read a
user's script anew and copy the clients' data.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from securefl.errors import ConfigError
from securefl.federation.client import Client
from securefl.federation.engine import Engine
from securefl.federation.query import Profiling, Respondent
from securefl.federation.site import Trainer
from securefl.norms.weight_standardization import Convolution
from securefl.settings.tables import Config
from securefl.simulation.clients import Clients
from securefl.simulation.in_memory import InMemory
from securefl.simulation.processes.engine import Workers, reason_against_workers
from securefl.simulation.processes.machines import Machines, Wanted
from securefl.simulation.processes.worker_process import ThisMachine
from securefl.simulation.sequential import Sequential
from securefl.simulation.stacked.engine import Stacked, reason_against
from securefl.types import Floats

MOST_PARAMETERS = 1_500_000
"""Largest model that trains faster side by side on a CPU; larger ones fill its caches alone."""


@dataclass(frozen=True, slots=True)
class ClientEnds:
    """Sending and answering side of a simulation's clients."""

    clients: Mapping[str, Client]
    respondent: Respondent
    profiling: Profiling
    precision: Floats


@dataclass(frozen=True, slots=True)
class Chosen:
    """Engine, and the reason for it."""

    engine: Engine
    words: str
    """Reason, for the user who starts a run."""


def chosen_engine(config: Config, trained: Clients, ends: ClientEnds) -> Chosen:
    """Return the engine that the settings name, or for `auto` the fastest.

    Args:
        config: the settings.
        trained: algorithm, model and data of the run's clients.
        ends: their sending and answering side.

    Raises:
        ConfigError: the engine that is asked for cannot train these clients.
    """
    name = config.run.engine
    if name == "sequential":
        return Chosen(_here(Sequential(trained), ends), "sequential, as asked for")
    if name in {"parallel", "ray"}:
        if reason := reason_against_workers(trained):
            raise ConfigError(
                f'run.engine = "{name}": no worker can train these clients: {reason}; or set '
                'run.engine = "sequential"'
            )
        made = ends.clients, ends.profiling, ends.precision
        wanted = _wanted(config, trained)
        engine = Workers(trained, *made, _cluster(wanted) if name == "ray" else ThisMachine(wanted))
        return Chosen(engine, f"{name}, as asked for: {_hired(engine)} one after the other")
    if name == "vectorised":
        if why_not := reason_against(trained):
            raise ConfigError(
                f'run.engine = "vectorised" cannot train clients side by side: {why_not}; use '
                '"sequential", or "auto"'
            )
        return Chosen(_here(Stacked(trained), ends), "vectorised, as asked for")
    if why_not := _slower(trained) or reason_against(trained):
        return Chosen(_here(Sequential(trained), ends), f"sequential: {why_not}")
    on_gpu = trained.device.type == "cuda"
    where = "on a GPU" if on_gpu else "of linear layers"
    words = f"vectorised: clients of a model {where} train side by side"
    if on_gpu and config.exchange.seals_sums:
        words += '; where sealing takes longer, run.engine = "parallel" seals on several cores'
    return Chosen(_here(Stacked(trained), ends), words)


def _here(trainer: Trainer, ends: ClientEnds) -> InMemory:
    return InMemory(trainer, ends.clients, ends.respondent)


def _wanted(config: Config, trained: Clients) -> Wanted:
    run, device = config.run, trained.device
    first_gpu = device.index or 0 if device.type == "cuda" else None
    return Wanted(run.workers, trained.training.threads, len(trained.data), first_gpu)


def _cluster(wanted: Wanted) -> Machines:
    try:
        from securefl.simulation.ray.cluster import Cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError(
            "run.engine = \"ray\" needs Ray: pip install 'securefl[ray]'; or set "
            'run.engine = "parallel", which has workers on this machine alone'
        ) from error
    return Cluster(wanted)


def _hired(engine: Workers) -> str:
    n, n_threads = engine.n_workers, engine.n_threads
    workers = f"{n} worker{'s' if n > 1 else ''}"
    return f"{workers} with {n_threads} torch thread{'s' if n_threads > 1 else ''}, clients of each"


def _slower(clients: Clients) -> str:
    """Return the reason why stacking would be slower; empty where it would not."""
    if len(clients.data) == 1:
        return "there is one client"
    if clients.device.type == "cpu":
        for layer in clients.model.modules():
            if isinstance(layer, Convolution):
                return (
                    "convolutions are faster on a CPU one client after the other (on several "
                    'cores, run.engine = "parallel" is faster still; "ray" is for several machines)'
                )
        n_parameters = sum(p.numel() for p in clients.model.parameters())
        if n_parameters > MOST_PARAMETERS:
            return (
                f"models of more than {MOST_PARAMETERS:,} parameters, as this one of "
                f"{n_parameters:,}, are no faster on a CPU side by side"
            )
    return ""

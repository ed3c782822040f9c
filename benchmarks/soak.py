"""Soak of 500 clients a round, for many rounds: the authority's time, and growth of memory.

    OMP_NUM_THREADS=1 python benchmarks/soak.py --clients 500 --rounds 40

Clients of ten samples each train a small network with batch normalisation by FedAvg; all that they
send is sealed and signed, in one process. Times are the processor's, of the authority alone.
"""

from __future__ import annotations

import pkgutil
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from statistics import median
from typing import Any
from unittest import mock

import click
import torch
from torch import nn

import securefl
from securefl.federation.message import _verify

OPEN = "securefl.federation.authority.Authority.open"
PHASES: Mapping[str, str] = {
    "signatures": "securefl.federation.message.Roster.check",
    "keys of messages, added": "securefl.exchange.officer.Officer.key_sums",
    "decrypt": "securefl.crypto.one_time.KeySum.open",
    "count, range, noise": "securefl.exchange.decode_total.TotalDecoder.decode",
    "history": "securefl.federation.opening_history.OpeningHistory.require_alike",
}
REST = "rest"


class Phases:
    """Seconds of the processor within `OPEN`, by phase; none of them is within another one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._opening = False

    def whole(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, its time charged to `REST`."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._opening, began = True, time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[REST] += time.process_time() - began
                self._opening = False

        return wrapper

    def part(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, its time charged to a phase in the place of `REST`."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._opening:
                return function(*args, **kwargs)
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.process_time() - began
                self.seconds[phase] += took
                self.seconds[REST] -= took

        return wrapper


@contextmanager
def phases() -> Iterator[Phases]:
    """Time the authority; every function is itself again afterwards."""
    watch = Phases()
    with ExitStack() as stack:
        stack.enter_context(mock.patch(OPEN, watch.whole(pkgutil.resolve_name(OPEN))))
        # As where the authority has a process of its own: not what the server has verified.
        once = f"{_verify.__module__}.{_verify.__name__}"
        stack.enter_context(mock.patch(once, _verify.__wrapped__))
        for phase, name in PHASES.items():
            patched = mock.patch(name, watch.part(phase, pkgutil.resolve_name(name)))
            stack.enter_context(patched)
        yield watch


def task(n_clients: int) -> securefl.Task:
    """Return a task of random samples, ten a client."""
    rng = torch.Generator().manual_seed(0)
    x, y = (
        torch.randn(10 * n_clients + 100, 16, generator=rng),
        torch.randint(4, (10 * n_clients + 100,)),
    )
    clients = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 10 * n_clients, 10)]
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    return securefl.Task(model, clients, test=(x[-100:], y[-100:]))


def peak_mb() -> float:
    """Return the process's peak memory in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@click.command(help=__doc__)
@click.option("--clients", default=500)
@click.option("--rounds", default=40)
def main(clients: int, rounds: int) -> None:
    """Print a round's times by phase, in the first and in the last rounds, and memory."""
    settings = [f"run.rounds={rounds}", "algorithm.name=fedavg", "exchange.encrypt=model"]
    config = securefl.load_config(settings=[*settings, "train.lr=0.05", "algorithm.local_steps=1"])
    by_round, memory, ends = list[dict[str, float]](), list[float](), [time.process_time()]
    with phases() as watch:

        def on_round(*_: Any) -> None:
            by_round.append(dict(watch.seconds))
            watch.seconds.clear()
            memory.append(peak_mb())
            ends.append(time.process_time())

        result = securefl.run(config, task(clients), on_round=on_round)
    part = max(1, rounds // 4)

    def show(name: str, values: Sequence[float]) -> None:
        first, last = median(values[:part]), median(values[-part:])
        click.echo(f"{name:26} {1e3 * first:8.1f} ms {1e3 * last:8.1f} ms")

    for name in (*PHASES, REST):
        show(name, [row[name] for row in by_round])
    show("a round in all", [after - before for before, after in pairwise(ends)])
    click.echo(
        f"totals a round: {len(result.openings) / rounds:g}; peak {memory[part - 1]:.0f} -> "
        f"{memory[-1]:.0f} MB; incidents: {len(result.incidents)}"
    )


if __name__ == "__main__":
    main()

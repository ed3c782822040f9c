"""The demo's job, FedTAN on five clients: in the clear, with statistics sealed, and all of it.

A run's time is the processor's in all of its rounds: no imports, no data, no key generation, and
little of what else the machine does; phases are by the clock. OMP_NUM_THREADS=1, since threads that
spin take the processor's time as well. All clients
work one after the other in this one process, so five encryptions stand where a federation of five
machines waits for one.
"""

from __future__ import annotations

import argparse
import pkgutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from measure import Machine, ms_text, show, write_json

import securefl
from securefl.simulation.malloc import keep_freed_memory
from securefl.task import Task, configured_task

OTHER = "other"
PHASES: Mapping[str, tuple[str, ...]] = {
    # The engine waits in `resume` while a client's thread moves: the client's work, all of it.
    "train": ("securefl.federation.pausable.Pausable.resume",),
    "evaluate": ("securefl.evaluation.evaluator.evaluate",),
    "pack, unpack": (
        "securefl.federation.client.pack",
        "securefl.federation.clients_round.unpack",
        "securefl.federation.round.unpack",
    ),
    "seal": (
        "securefl.exchange.one_time.OneTimeSealer.seal",
        "securefl.exchange.plain.PlainChannel.seal",
    ),
    "sign, hash, verify": (
        "securefl.federation.client.header_for",
        "securefl.federation.client.encode_message",
        "securefl.federation.server.split_message",
        "securefl.federation.message.Roster.check",
    ),
    "add": (
        "securefl.exchange.one_time.OneTimeSum.plus",
        "securefl.exchange.one_time.OneTimeSum.total",
        "securefl.exchange.plain.PlainSum.plus",
        "securefl.exchange.plain.PlainSum.total",
    ),
    "open": (
        "securefl.exchange.officer.OneTimeOpener.open",
        "securefl.exchange.plain.PlainChannel.open",
    ),
    "log": (
        "securefl.federation.round.Entry",
        "securefl.federation.server.Entry",
        "securefl.federation.opening.Opening.of",
    ),
    OTHER: ("securefl.runs.loop.Rounds.step",),
}
AIMS: Mapping[str, float] = {"statistics": 2.0, "model": 2.3}
"""Most that a run with so much sealed should take, as a multiple of the plain one's time."""
ENCRYPT = ("none", *AIMS)
MOMENTS = ("two-pass", "fused")


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Cost of encryption in one way of exchanging moments."""

    moments: str
    encrypt: str
    """Part of the messages that is sealed."""
    rounds: int
    plain_s: float
    """Median of the runs."""
    encrypted_s: float
    ratio: float
    """Median over pairs of runs, one after the other."""
    ratio_least: float
    ratio_most: float
    plain_phase_s: Mapping[str, float]
    """A round's seconds by phase, of runs with timers in them."""
    encrypted_phase_s: Mapping[str, float]


class Stopwatch:
    """Stopwatch of seconds and calls by phase, each without the phases called from within it.

    For one thread: whatever else runs while it waits counts for what it waits in.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._clock = clock or time.perf_counter
        self._phases: list[str] = []
        self._since = 0.0

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, its time charged to `phase`."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._charge()
            self.calls[phase] += 1
            self._phases.append(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self._charge()
                self._phases.pop()

        return wrapper

    def _charge(self) -> None:
        now = self._clock()
        if self._phases:
            self.seconds[self._phases[-1]] += now - self._since
        self._since = now


@contextmanager
def timers(watch: Stopwatch, phases: Mapping[str, tuple[str, ...]] = PHASES) -> Iterator[None]:
    """Time every function of `phases` within; each is itself again afterwards."""
    with ExitStack() as stack:
        for phase, names in phases.items():
            for name in names:
                function = watch.timed(phase, pkgutil.resolve_name(name))
                stack.enter_context(mock.patch(name, function))
        yield


def config(moments: str, encrypt: str, rounds: int, model: str) -> securefl.Config:
    """Return the demo's settings but for these four."""
    return securefl.Config.model_validate(
        {
            "run": {"rounds": rounds, "engine": "sequential"},
            "model": {"name": model},
            "algorithm": {"moments": moments},
            "exchange": {"encrypt": encrypt},
        }
    )


def run_seconds(settings: securefl.Config, task: Task) -> float:
    """Return the processor's seconds of all rounds of one run."""
    began = list[float]()
    securefl.run(settings, task, on_start=lambda _: began.append(time.process_time()))
    return time.process_time() - began[0]


def phase_seconds(settings: securefl.Config, task: Task) -> dict[str, float]:
    """Return seconds of a round by phase."""
    watch = Stopwatch()
    with timers(watch):
        securefl.run(settings, task)
    return {phase: watch.seconds[phase] / settings.run.rounds for phase in PHASES}


def compare(rounds: int, repeats: int, model: str) -> list[Slowdown]:
    """Measure both ways of moments, in the clear and encrypted, in turn; then with timers."""
    jobs = {
        (moments, encrypt): config(moments, encrypt, rounds, model)
        for moments in MOMENTS
        for encrypt in ENCRYPT
    }
    task = configured_task(next(iter(jobs.values())))
    for moments, encrypt in jobs:
        run_seconds(config(moments, encrypt, 1, model), task)  # warms torch up
    runs: dict[tuple[str, str], list[float]] = defaultdict(list)
    phases: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for _ in range(repeats):
        for job, settings in jobs.items():
            runs[job].append(run_seconds(settings, task))
    for _ in range(repeats):
        for job, settings in jobs.items():
            phases[job].append(phase_seconds(settings, task))
    return [
        _slowdown((moments, sealed), rounds, runs, phases) for moments in MOMENTS for sealed in AIMS
    ]


def _slowdown(
    job: tuple[str, str],
    rounds: int,
    runs: Mapping[tuple[str, str], Sequence[float]],
    phases: Mapping[tuple[str, str], Sequence[Mapping[str, float]]],
) -> Slowdown:
    moments, sealed = job
    plain, encrypted = (runs[moments, encrypt] for encrypt in ("none", sealed))
    ratios = [e / p for p, e in zip(plain, encrypted, strict=True)]
    plain_phase, encrypted_phase = (
        {phase: median(p[phase] for p in phases[moments, encrypt]) for phase in PHASES}
        for encrypt in ("none", sealed)
    )
    return Slowdown(
        moments,
        sealed,
        rounds,
        median(plain),
        median(encrypted),
        median(ratios),
        min(ratios),
        max(ratios),
        plain_phase,
        encrypted_phase,
    )


def show_slowdowns(results: Sequence[Slowdown], title: str) -> None:
    """Print the runs' times, then where a round's time goes."""
    show(
        title,
        ("moments", "sealed", "plain", "encrypted", "ratio", "of pairs", "at most"),
        [
            [
                r.moments,
                r.encrypt,
                ms_text(r.plain_s),
                ms_text(r.encrypted_s),
                f"{r.ratio:.2f}",
                f"{r.ratio_least:.2f}..{r.ratio_most:.2f}",
                f"{AIMS[r.encrypt]:.1f}",
            ]
            for r in results
        ],
    )
    for r in results:
        plain_s, encrypted_s = sum(r.plain_phase_s.values()), sum(r.encrypted_phase_s.values())
        rows = [
            [phase, ms_text(p), f"{p / plain_s:.1%}", ms_text(e), f"{e / encrypted_s:.1%}"]
            for phase, p, e in (
                (phase, r.plain_phase_s[phase], r.encrypted_phase_s[phase]) for phase in PHASES
            )
        ]
        rows.append(["all", ms_text(plain_s), "100%", ms_text(encrypted_s), "100%"])
        title = f"A round with {r.moments} moments, {r.encrypt} sealed"
        show(title, ("phase", "plain", "", "encrypted", ""), rows)


def main(argv: Sequence[str] | None = None) -> list[Slowdown]:
    """Measure, print, and write what the arguments ask for."""
    keep_freed_memory()  # as the command line does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", choices=("mlp", "cnn", "resnet20"), default="mlp")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    print(Machine.here())
    results = compare(args.rounds, args.repeats, args.model)
    show_slowdowns(results, f"FedTAN, {args.model}, 5 clients, {args.rounds} rounds")
    if args.json:
        write_json(args.json, results)
    return results


if __name__ == "__main__":
    main()

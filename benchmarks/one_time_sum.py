"""One sealed sum under one-time keys, beside the shared CKKS key that SecureFL had before them.

    git worktree add ../before COMMIT
    python benchmarks/one_time_sum.py --before ../before

A worker for each checkout makes one sum in turn, of the same values. Times are of the processor, so
that other work on the machine counts little, and roles work one after the other. Messages have no
signatures, and nobody keeps what another one has worked out: each client, and the authority,
derives common polynomials for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from measure import Cost, Machine, bytes_text, ms_text, show, typical, write_json

HERE = Path(__file__).parent
NOW, BEFORE = "now", "before"


@dataclass(frozen=True, slots=True)
class Aim:
    """Most that a sum should cost; times as shares of those before."""

    client_bytes: float
    client: float
    server: float
    error: float = 1e-7


@dataclass(frozen=True, slots=True)
class Job:
    """A sum to measure."""

    n_values: int
    n_clients: int
    aim: Aim

    def __str__(self) -> str:
        return f"{self.n_values:,} values, {self.n_clients} clients"


STATISTICS, MODEL = Aim(14.4e3, 0.7, 0.2), Aim(1.95e6, 0.4, 0.05)
JOBS = (
    *(Job(1376, n_clients, STATISTICS) for n_clients in (5, 50, 500)),
    Job(269_722, 5, MODEL),
)
"""Jobs of ResNet-20's statistics, and of its parameters."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One sum under one-time keys, and before."""

    job: Job
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """Costs by `NOW`, and `BEFORE` where there is a checkout: medians, and the largest error."""


class Worker:
    """Process that makes sums of one checkout."""

    def __init__(self, root: Path, job: Job) -> None:
        command = [
            sys.executable,
            str(HERE / "sum_worker.py"),
            str(job.n_values),
            str(job.n_clients),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        )

    def sum(self) -> Cost:
        """Return the cost of one sum more."""
        asked, answers = self._process.stdin, self._process.stdout
        if not (asked and answers):
            raise RuntimeError("a worker without pipes")
        asked.write("\n")
        asked.flush()
        if not (line := answers.readline()):
            raise RuntimeError(f"a worker has ended with {self._process.wait()}")
        return Cost(**json.loads(line))

    def end(self) -> None:
        """Let it go."""
        self._process.communicate()


@contextmanager
def workers(roots: Mapping[str, Path], job: Job) -> Iterator[dict[str, Worker]]:
    """Give a worker of each checkout."""
    made = {name: Worker(root, job) for name, root in roots.items()}
    try:
        yield made
    finally:
        for worker in made.values():
            worker.end()


def compare(job: Job, roots: Mapping[str, Path], repeats: int) -> Compared:
    """Measure sums of each checkout in turn, after a rehearsal."""
    costs: dict[str, list[Cost]] = {name: [] for name in roots}
    with workers(roots, job) as made:
        for _ in range(repeats + 1):
            for name, worker in made.items():
                costs[name].append(worker.sum())
    return Compared(job, {name: typical(of[1:]) for name, of in costs.items()})


def show_compared(result: Compared) -> None:
    """Print a row for each cost, with its share of that before, and the aim."""
    now, before, aim = result.costs[NOW], result.costs.get(BEFORE), result.job.aim
    rows = []
    for what, name, text, most in (
        ("bytes per client", "client_bytes", bytes_text, bytes_text(aim.client_bytes)),
        ("client: seal", "client_s", ms_text, f"{aim.client} of before"),
        ("server: add", "server_s", ms_text, f"{aim.server} of before"),
        ("authority: open", "authority_s", ms_text, ""),
        ("largest error", "max_error", "{:.1e}".format, f"{aim.error:.0e}"),
    ):
        found = getattr(now, name)
        old = getattr(before, name) if before else None
        beside = [text(old), text(found), f"{found / old:.3f}"] if old else ["", text(found), ""]
        rows.append([what, *beside, most])
    show(str(result.job), ("", "shared key", "one-time keys", "ratio", "at most"), rows)


def main(argv: Sequence[str] | None = None) -> list[Compared]:
    """Measure, print, and write what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, metavar="PATH", help="root of a checkout")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--jobs", type=int, nargs="+", default=range(len(JOBS)), metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    roots = {BEFORE: args.before} if args.before else {}
    roots |= {NOW: HERE.parent}
    print(Machine.here())
    results = []
    for number in args.jobs:
        results.append(compare(JOBS[number], roots, args.repeats))
        show_compared(results[-1])
    if args.json:
        write_json(args.json, results)
    return results


if __name__ == "__main__":
    main()

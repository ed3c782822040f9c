"""Peak memory of a process that takes some rounds of one federation of MLP clients, in MiB.

    python benchmarks/engine_memory.py --engine auto --clients 10000 --fraction 0.01

The processes that an engine starts are added, each with its own peak, so pages that they share
count in each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine_jobs import ENGINES, MANY, Job, task_of
from engine_ways import started

ROUNDS = 3


def peak_mib_of(job: Job, engine: str) -> float:
    """Measure in a process of its own, which this one waits for."""
    arguments = [f"--engine={engine}", f"--clients={job.n_clients}", f"--fraction={job.fraction}"]
    command = [sys.executable, str(Path(__file__)), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def peak_mib(pid: int) -> float:
    """Return the peak of a running process.

    Linux's VmHWM is of the process's own program. `getrusage` starts with the peak of the program
    that started it, and stands in where there is no /proc.
    """
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def main(argv: Sequence[str] | None = None) -> float:
    """Take the rounds, print the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument("--clients", type=int, default=MANY.n_clients)
    parser.add_argument("--fraction", type=float, default=MANY.fraction)
    args = parser.parse_args(argv)
    job = replace(MANY, n_clients=args.clients, fraction=args.fraction)
    with started(job, task_of(job), {args.engine: ENGINES[args.engine]}) as ours:
        if ours.refused:
            parser.error(ours.refused[args.engine])
        for _ in range(ROUNDS):
            ours.rounds[args.engine].step()
        others = [child.pid for child in multiprocessing.active_children() if child.pid]
        peak = sum(map(peak_mib, (os.getpid(), *others)))
    print(f"{peak:.1f}")
    return peak


if __name__ == "__main__":
    main()

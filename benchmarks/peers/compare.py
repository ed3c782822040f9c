"""Seconds a round of SecureFL and of its peers, on the same jobs on this machine's cores.

Each tool runs in a process of its own, one after the other in an order that changes, several times.
The first rounds of each process are not counted: compiling (FedJAX) and starting actors (Flower)
are left out, in the peers' favour, and so is evaluation: SecureFL alone scores its model, on one
batch. What each peer was set to stands at the top of its file.

Examples:
  python benchmarks/peers/compare.py                      all of it, about half an hour
  python benchmarks/peers/compare.py --jobs cnn --out docs/results/peers.md
  python benchmarks/peers/compare.py --jobs mlp lenet --peers fedjax --rounds 5 --repeats 1
  taskset -c 0,1 python benchmarks/peers/compare.py       on two cores of a larger machine

--out replaces the sections of these jobs in the page, and leaves the others as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_page import Grid, Part, circumstances, write_page
from environments import FOLDER, python_of
from jobs import JOBS, STEPS
from measure import ms_text, ratio_text, write_json

HERE = Path(__file__).parent
TITLE = "SecureFL beside Flower, pfl-research and FedJAX"
WARM_UP = 3
SECUREFL = "securefl"
OURS: dict[str, list[str]] = {SECUREFL: [], "securefl-parallel": ["parallel"]}
"""Arguments of its process beside the job and the rounds: the engine, where it is not `auto`."""
PEERS: dict[str, tuple[str, list[str]]] = {
    "flower": ("flower", []),
    "pfl": ("pfl", []),
    "pfl-per-core": ("pfl", [str(len(os.sched_getaffinity(0)))]),
    "fedjax": ("fedjax", []),
}
"""Environment, and what its process is told beside the job and the rounds."""
NOT_WRITTEN = {("fedjax", "resnet20")}


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of one job."""

    job: str
    seconds: Mapping[str, Sequence[float]]
    """Seconds of each counted round, by tool; all repeats, one after the other."""
    versions: Mapping[str, Mapping[str, str]]

    def median_s(self, tool: str) -> float:
        """Return the median of all counted rounds."""
        return median(self.seconds[tool])


def measured(job: str, peers: Sequence[str], rounds: int, repeats: int) -> Rounds:
    """Measure all tools in turn, `repeats` times."""
    tools = [*OURS, *(peer for peer in peers if (peer, job) not in NOT_WRITTEN)]
    seconds: dict[str, list[float]] = {tool: [] for tool in tools}
    versions = {}
    for _ in range(repeats):
        for tool in random.sample(tools, len(tools)):
            versions[tool], found = ran(tool, job, WARM_UP + rounds)
            seconds[tool] += found[WARM_UP:]
    return Rounds(job, seconds, versions)


def ran(tool: str, job: str, rounds: int) -> tuple[dict[str, str], list[float]]:
    """Run one process; return versions and seconds of rounds; RuntimeError where it fails."""
    environment = os.environ | {"FLWR_HOME": str(FOLDER / "flwr")}
    command: list[str | Path]
    if tool in OURS:
        command = [sys.executable, HERE / "securefl_job.py", job, str(rounds), *OURS[tool]]
    else:
        name, options = PEERS[tool]
        command = [python_of(name), HERE / f"{name}_job.py", job, str(rounds), *options]
        environment.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate()
    finally:  # Ray's processes, and pfl's
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    found = [line["seconds"] for line in told if "seconds" in line]
    if process.returncode or len(found) != rounds:
        raise RuntimeError(f"{tool}, {job}: {len(found)} rounds of {rounds}\n{err[-3000:]}")
    return told[0]["versions"], found


def main(arguments: Sequence[str] | None = None) -> list[Rounds]:
    """Measure and print; raises SystemExit where an argument is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=5, help="counted, of each process")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each tool and job")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--out", type=Path, help="a page, whose sections of these jobs are replaced"
    )
    chosen = parser.parse_args(arguments)
    before = circumstances()
    print(before)
    for peer in chosen.peers:
        python_of(PEERS[peer][0])
    results = []
    for job in chosen.jobs:
        results.append(measured(job, chosen.peers, chosen.rounds, chosen.repeats))
        part = part_of(results[-1])
        part.show()
        if chosen.json:  # after each job: an hour's figures are not lost to the next one's error
            write_json(chosen.json, results)
        if chosen.out:
            write_page(chosen.out, {job: part}, {job: _command(job, chosen)}, before, TITLE)
    return results


def _command(job: str, chosen: argparse.Namespace) -> str:
    peers = f" --peers {' '.join(chosen.peers)}" if chosen.peers != list(PEERS) else ""
    return (
        f"python benchmarks/peers/compare.py --jobs {job}{peers} --rounds {chosen.rounds} "
        f"--repeats {chosen.repeats}"
    )


def part_of(result: Rounds) -> Part:
    """Return the medians, fastest and slowest round, and the ratios to SecureFL's seconds."""
    job = JOBS[result.job]
    rows = [
        [
            tool,
            ms_text(result.median_s(tool)),
            ms_text(min(seconds)),
            ms_text(max(seconds)),
            ratio_text(result.median_s(tool), result.median_s(SECUREFL)),
        ]
        for tool, seconds in result.seconds.items()
    ]
    title = f"{result.job}, {job.cohort} of {job.n_clients} clients, {STEPS} steps of {job.batch}"
    columns = ["tool", "a round", "fastest", "slowest", "times SecureFL's"]
    notes = [
        f"{tool}: {', '.join(f'{name} {number}' for name, number in result.versions[tool].items())}"
        for tool in result.seconds
    ]
    return Part(title, {"Seconds a round": Grid(columns, rows)}, [result], notes)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through `ran`, which ends its process
    main()

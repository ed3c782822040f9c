"""Kills of server, authority and clients at random moments, and what a job ends with.

    python benchmarks/kill_and_resume.py --kills 30 --out docs/results/kill_and_resume.md

All parties are processes of the command line, on this machine. Whoever has been killed, or has
ended for want of another, is started again with the same command. `hiccups.py` has all else that
happens to sites; here settings are those that keep most from round to round.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from measure import Machine
from roles import (
    AUTHORITY,
    SERVER,
    Job,
    ceremony,
    largest_difference,
    model_of,
    n_repeated,
    record_of,
    releases,
)

from securefl.io.files import write_whole
from securefl.runs.folder_reader import read_run

CLIENTS = ("alice", "bob", "carol", "dora")
SPREAD_S = 6.0
JOB = f"""
[run]
rounds = {{rounds}}
reproducible = true
threads = 1
[data]
clients = {len(CLIENTS)}
names = {json.dumps(CLIENTS)}
partition = "classes:5"
[model]
name = "mlp"
[algorithm]
name = "fedavg"
local_steps = 50
[train]
momentum = 0.5
momentum_across_rounds = "local"
[solver]
name = "scaffold"
[selection]
name = "fedprof"
fraction = 0.75
[exchange]
encrypt = {{encrypt}}
"""
ABOUT = (
    "Jobs of {rounds} rounds, over processes of the command line: FedAvg of an MLP with SCAFFOLD, "
    "momentum that each client keeps, FedProf selection and `run.reproducible`; a server, clients "
    f"({', '.join(CLIENTS)}) and, where statistics and profiles are sealed, an authority. One of "
    f"them is killed (SIGKILL) at a random moment of the {SPREAD_S:g} seconds after all have "
    "joined. Who has been killed, or has ended for want of another, is started again with the same "
    "command. Each job is compared with one that nobody is killed in."
)
CLEAR = '"none"'
WAYS = {"in the clear": CLEAR, "sealed": '["statistics", "profiles"]'}


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill of a party so many seconds after all clients have joined."""

    party: str
    after_s: float


@dataclass(slots=True)
class Killing:
    """Kills, which are taken from the list while a job runs."""

    pending: list[Kill]
    killed: list[str] = field(default_factory=list)
    """Parties, in order."""
    _due: float = math.inf
    _seen: int = 0

    def __call__(self, job: Job, _done: int) -> None:
        """Kill the next party where its time has come."""
        now = time.monotonic()
        if self.pending and self._due == math.inf and job.n_sessions() > self._seen:
            self._due = now + self.pending[0].after_s
        if now >= self._due:
            if job.parties[self.pending[0].party].kill():
                self.killed.append(self.pending.pop(0).party)
            self._due, self._seen = math.inf, job.n_sessions()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the jobs of one way, beside a job that nobody was killed in."""

    killed: Mapping[str, int]
    """Number of kills by party."""
    n_jobs: int
    n_starts: int
    """Number of the servers' sessions."""
    largest_difference: float
    """Largest difference of two weights of the models; 0 where all bits are the same."""
    largest_score_difference: float
    """Largest difference of two of FedProf's scores, 0..1; noise is added to sealed ones."""
    n_same_records: int
    """Jobs whose ledger, metrics, participants and incidents are those of the unbroken job."""
    n_repeated: int
    """Rounds that were done, and were done again."""
    n_opened: int
    """Totals and scores."""
    n_opened_twice: int
    """Number of these in one session."""


def scores_of(job: Job) -> list[float]:
    """Return the clients' scores of all rounds, by round and name."""
    rounds = read_run(job.run_folder).participants
    return [score for each in rounds for _, score in sorted(each.scores.items())]


def outcome(folder: Path, way: str, pending: list[Kill], rounds: int) -> Outcome:
    """Run jobs until all kills are done, and compare each with one that nobody is killed in."""
    name, encrypt = way.replace(" ", "-"), WAYS[way]

    def job_called(name: str) -> Job:
        settings = JOB.format(rounds=rounds, encrypt=encrypt)
        patient = {"client": ("--wait", "20")}
        return Job(folder, name, settings, CLIENTS, encrypt != CLEAR, options=patient)

    whole = job_called(f"{name}-whole")
    whole.run()
    wanted, killed = model_of(whole), list[str]()
    jobs, largest, of_scores, n_same = list[Job](), 0.0, 0.0, 0
    while pending:
        job, killing = job_called(f"{name}-{len(jobs) + 1}"), Killing(pending)
        job.run(killing)
        killed += killing.killed
        jobs.append(job)
        largest = max(largest, largest_difference(model_of(job), wanted))
        pairs = zip(scores_of(job), scores_of(whole), strict=True)
        of_scores = max(of_scores, *(abs(a - b) for a, b in pairs))
        n_same += record_of(job) == record_of(whole)
        print(f"{job.name}: {len(killed)} killed, difference {largest:g}", flush=True)
    return Outcome(
        Counter(killed),
        len(jobs),
        sum(job.parties[SERVER].n_starts for job in jobs),
        largest,
        of_scores,
        n_same,
        sum(map(n_repeated, jobs)),
        *releases(folder / "keys"),
    )


def page(outcomes: Mapping[str, Outcome], command: str, rounds: int) -> str:
    """Return the page of results."""
    lines = [
        "# Killed and resumed",
        "",
        f"`{command}`. {Machine.here()}.",
        "",
        ABOUT.format(rounds=rounds),
        "",
        "| | " + " | ".join(outcomes) + " |",
        "|---" * (len(outcomes) + 1) + "|",
    ]
    rows: dict[str, Callable[[Outcome], object]] = {
        "kills": lambda o: sum(o.killed.values()),
        "of": lambda o: ", ".join(f"{name} {n}" for name, n in sorted(o.killed.items())),
        "jobs, and sessions of them": lambda o: f"{o.n_jobs}, {o.n_starts}",
        "largest difference of a weight": lambda o: f"{o.largest_difference:.3g}",
        "largest difference of a client's score": lambda o: f"{o.largest_score_difference:.3g}",
        "jobs with the unbroken job's ledger, metrics, participants and incidents": (
            lambda o: f"{o.n_same_records} of {o.n_jobs}"
        ),
        "rounds done twice": lambda o: o.n_repeated,
        "totals and scores opened": lambda o: o.n_opened or "–",
        "of these twice in a session": lambda o: o.n_opened_twice if o.n_opened else "–",
    }
    for title, of in rows.items():
        lines.append(f"| {title} | " + " | ".join(str(of(o)) for o in outcomes.values()) + " |")
    return "\n".join(lines) + "\n"


@click.command(epilog="Example: python benchmarks/kill_and_resume.py --kills 30")
@click.option("--kills", default=30, show_default=True, help="In each way.")
@click.option("--rounds", default=60, show_default=True, help="Of each job.")
@click.option("--seed", default=0, show_default=True, help="Of the moments.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the page there.")
def main(kills: int, rounds: int, seed: int, out: Path | None) -> None:
    """Kill and resume jobs in the clear and sealed, and print what has come of it."""
    rng, outcomes = random.Random(seed), dict[str, Outcome]()
    for way, encrypt in WAYS.items():
        parties = (SERVER, *CLIENTS, *((AUTHORITY,) if encrypt != CLEAR else ()))
        victims = islice(cycle(parties), kills)
        pending = [Kill(victim, rng.uniform(0, SPREAD_S)) for victim in victims]
        with TemporaryDirectory() as made:
            ceremony(Path(made), CLIENTS)
            outcomes[way] = outcome(Path(made), way, pending, rounds)
    words = f"python benchmarks/kill_and_resume.py --kills {kills} --rounds {rounds} --seed {seed}"
    found = page(outcomes, words, rounds)
    print(found)
    if out:
        write_whole(out, found.encode())


if __name__ == "__main__":
    main()

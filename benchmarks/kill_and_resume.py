"""Kills server, authority and clients of a job at random moments, and compares what it ends with.

    python benchmarks/kill_and_resume.py --kills 30 --out docs/results/kill_and_resume.md

All parties are processes of the command line, on this machine. Whoever has been killed, or has
ended for want of another, is started again with the same command.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import safetensors.torch
import torch
from measure import Machine

from securefl.io.files import write_whole
from securefl.network.authority import RELEASES
from securefl.runs.folder_reader import INCIDENTS, LEDGER, MODEL, read_run
from securefl_keys.rehearsal import make_consortium

CLIENTS = ("alice", "bob", "carol", "dora")
SERVER, AUTHORITY = "hub", "authority"
PASSPHRASE = "any words, for a federation that lasts minutes"
SECUREFL = (sys.executable, "-c", "from securefl_cli.main import main; main()")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SPREAD_S = 6.0
LIMIT_S = 120.0
"""Seconds without a new round, after which a run is stuck."""
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


class Stuck(Exception):
    """A job ends no round any more."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A party is killed so many seconds after all clients have joined."""

    party: str
    after_s: float


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        port: int = at.getsockname()[1]
    return port


def ceremony(folder: Path) -> None:
    """Make keys, members and bundles."""
    make_consortium(folder, CLIENTS, SERVER, PASSPHRASE, name="Nord")


@dataclass(slots=True)
class Party:
    """One party's process, started again with the same command."""

    name: str
    command: Sequence[str]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    n_starts: int = 0

    @property
    def log(self) -> Path:
        """File of all that its processes have said."""
        return self.folder / f"{self.name}.log"

    def said(self) -> str:
        """Return all that its processes have said."""
        return self.log.read_text()

    def start(self) -> None:
        """Start it, once more."""
        self.n_starts += 1
        with self.log.open("ab") as log:
            log.write(f"start {self.n_starts}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                [*SECUREFL, *self.command], cwd=self.folder, env=ENVIRONMENT, stdout=log, stderr=log
            )

    def is_alive(self) -> bool:
        """Return whether its process runs."""
        return self.process is not None and self.process.poll() is None

    def is_done(self) -> bool:
        """Return whether it has ended well; start it again where it has ended otherwise."""
        if self.process is None or self.process.poll() not in {None, 0}:
            self.start()
        return not self.is_alive()

    def kill(self) -> bool:
        """Kill it with SIGKILL; False where it had ended."""
        if self.process is None or not self.is_alive():
            return False
        self.process.kill()
        self.process.wait()
        return True


@dataclass(slots=True)
class Job:
    """One job, over processes."""

    folder: Path
    name: str
    rounds: int
    encrypt: str
    parties: dict[str, Party] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = f"{self.name}.toml"
        (self.folder / settings).write_text(JOB.format(rounds=self.rounds, encrypt=self.encrypt))
        at = f"127.0.0.1:{free_port()}"
        words = ("--passphrase-file", "passphrase")
        server = ["server", "serve", settings, "--bundle", "bundles/server", "--identity", SERVER]
        server += ["--listen", at, "--out", f"run-{self.name}", *words]
        if self.encrypt != CLEAR:
            serve = ["authority", "serve", settings, "--keys", "keys", "--server", at, *words]
            self._party(AUTHORITY, serve)
        self._party(SERVER, server)
        for name in CLIENTS:
            join = ["client", "join", settings, "--bundle", "bundles/client", "--identity", name]
            self._party(name, [*join, "--server", at, "--wait", "20", *words])

    def _party(self, name: str, command: Sequence[str]) -> None:
        self.parties[name] = Party(f"{self.name}-{name}", command, self.folder)

    @property
    def run_folder(self) -> Path:
        """Folder of the run."""
        return self.folder / f"run-{self.name}"

    def rounds_done(self) -> list[int]:
        """Return the rounds that the server has said are done, in the order of its words."""
        said = self.parties[SERVER].said()
        return [int(number) for number in re.findall(r"^Round (\d+)/", said, re.MULTILINE)]

    def n_sessions(self) -> int:
        """Return how often the last of all clients has joined."""
        return self.parties[SERVER].said().count(f"{len(CLIENTS)} of {len(CLIENTS)}")

    def run(self, pending: list[Kill]) -> list[tuple[str, int]]:
        """Run the job to its end, and take kills from the list while it runs.

        Returns who was killed, and the rounds that were done then.

        Raises:
            Stuck: no round ends any more.
        """
        killed: list[tuple[str, int]] = []
        due, seen, n_done, since = math.inf, 0, 0, time.monotonic()
        try:
            while not self._ended():
                now = time.monotonic()
                if len(self.rounds_done()) > n_done:
                    n_done, since = len(self.rounds_done()), now
                if now > since + LIMIT_S and self.parties[SERVER].is_alive():
                    said = "".join(f"\n{p.name}: {p.said()[-400:]}" for p in self.parties.values())
                    raise Stuck(f"{self.name}: no round within {LIMIT_S:g} s{said}")
                if pending and due == math.inf and self.n_sessions() > seen:
                    due = now + pending[0].after_s
                if now >= due and self.parties[SERVER].is_alive():
                    if self.parties[pending[0].party].kill():
                        killed.append((pending.pop(0).party, n_done))
                    due, seen = math.inf, self.n_sessions()
                time.sleep(0.01)
        finally:
            for party in self.parties.values():
                party.kill()
        return killed

    def _ended(self) -> bool:
        """Return whether all rounds are done; start those again that have ended before.

        A client that is killed with the server's last words under way does not hear them.
        """
        if self.parties[SERVER].is_done():
            return not any(self.parties[name].is_alive() for name in CLIENTS)
        for party in self.parties.values():
            party.is_done()
        return False


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the jobs of one way, beside a job that nobody was killed in."""

    killed: Mapping[str, int]
    """Number of kills by party."""
    n_jobs: int
    n_starts: int
    """Number of the servers' sessions."""
    largest_difference: float
    """Between two weights of the models; 0 where all bits are the same."""
    largest_score_difference: float
    """Between two of FedProf's scores of clients, 0..1; noise is added to sealed ones."""
    n_same_records: int
    """Jobs whose ledger, metrics, participants and incidents are those of the unbroken job."""
    n_repeated: int
    """Rounds that were done, and were done again."""
    n_opened: int
    """Totals and scores."""
    n_opened_twice: int
    """Of these, in one session."""


def model_of(job: Job) -> dict[str, torch.Tensor]:
    """Return the trained model."""
    return safetensors.torch.load_file(job.run_folder / MODEL)


def record_of(job: Job) -> tuple[object, ...]:
    """Return what a run's folder tells, without times: they differ from run to run."""
    record = read_run(job.run_folder)
    entries = (job.run_folder / LEDGER).read_text().splitlines()
    return (
        Counter(entries),
        [(m.round, m.score, m.loss, m.dropped) for m in record.metrics],
        [(p.selected, p.present, p.lost) for p in record.participants],
        (job.run_folder / INCIDENTS).read_text(),
    )


def scores_of(job: Job) -> list[float]:
    """Return the clients' scores of all rounds, by round and name."""
    rounds = read_run(job.run_folder).participants
    return [score for each in rounds for _, score in sorted(each.scores.items())]


def outcome(folder: Path, way: str, pending: list[Kill], rounds: int) -> Outcome:
    """Run jobs until all kills are done, and compare each with one that nobody is killed in."""
    name, encrypt = way.replace(" ", "-"), WAYS[way]
    whole = Job(folder, f"{name}-whole", rounds, encrypt)
    whole.run([])
    wanted, killed = model_of(whole), list[tuple[str, int]]()
    jobs, largest, of_scores, n_same, n_repeated = list[Job](), 0.0, 0.0, 0, 0
    while pending:
        job = Job(folder, f"{name}-{len(jobs) + 1}", rounds, encrypt)
        killed += job.run(pending)
        jobs.append(job)
        differences = [(value - wanted[key]).abs().max() for key, value in model_of(job).items()]
        largest = max(largest, *(float(each) for each in differences))
        pairs = zip(scores_of(job), scores_of(whole), strict=True)
        of_scores = max(of_scores, *(abs(a - b) for a, b in pairs))
        n_same += record_of(job) == record_of(whole)
        done = job.rounds_done()
        n_repeated += len(done) - len({*done})
        print(f"{job.name}: {len(killed)} killed, difference {largest:g}", flush=True)
    return Outcome(
        Counter(name for name, _ in killed),
        len(jobs),
        sum(job.parties[SERVER].n_starts for job in jobs),
        largest,
        of_scores,
        n_same,
        n_repeated,
        *releases(folder),
    )


def releases(folder: Path) -> tuple[int, int]:
    """Return how many totals and scores the authority has opened, and how many of them again."""
    path = folder / "keys/authority/log" / RELEASES
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    totals = Counter((row[0], row[1], row[2]) for row in rows if len(row) == 5)
    scores = Counter((row[0], row[1], of) for row in rows if len(row) == 4 for of in row[3])
    opened = (totals + scores).values()
    return sum(opened), sum(opened) - len(opened)


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
            ceremony(Path(made))
            outcomes[way] = outcome(Path(made), way, pending, rounds)
    words = f"python benchmarks/kill_and_resume.py --kills {kills} --rounds {rounds} --seed {seed}"
    found = page(outcomes, words, rounds)
    print(found)
    if out:
        write_whole(out, found.encode())


if __name__ == "__main__":
    main()

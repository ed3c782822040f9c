"""Hiccups: killed parties, cut connections, stepped clocks and full disks while sites train.

    python benchmarks/hiccups.py --out docs/results/hiccups.md

All parties are processes of the command line, on this machine; a supervisor starts whoever has
ended again with the same command. Each job is compared with one that nothing happens to: the same
settings in one process, with the clients in each round that the job's folder has counted there.
"""

from __future__ import annotations

import csv
import json
import math
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import torch
from faults import Clock, Disk, Proxy, disks, environment
from measure import Machine
from roles import (
    AUTHORITY,
    OF_TABLES,
    SERVER,
    Job,
    ceremony,
    free_port,
    largest_difference,
    model_of,
    n_repeated,
    opened_totals,
    releases,
)

from securefl import load_config, task_of_sites
from securefl.build.simulation import simulated
from securefl.federation.incidents import Incident
from securefl.io.files import write_whole
from securefl.runs.folder_files import INCIDENTS
from securefl.runs.folder_reader import read_rows, read_run
from securefl.selection.round_participants import RoundParticipants

CLIENTS = ("amiens", "bremen", "cadiz", "derby", "emden", "faro", "ghent", "hull")
COLUMNS = ("age", "pressure", "dose", "weight", "height", "pulse")
PAUSE_S = 0.5
"""Least seconds between two hiccups."""
MOST_A_ROUND = 6
"""Hiccups until a round is done: a machine on which processes take long to start gets on, too."""
FULL_S = (1.0, 3.0)
"""Seconds that a disk stays full, at least and at most."""
JOB = (
    OF_TABLES
    + """
seed = {seed}
reproducible = {reproducible}
[algorithm]
name = "{algorithm}"
local_steps = {steps}
[train]
batch_size = 1000
lr = 0.001
momentum = 0.5
momentum_across_rounds = "local"
[solver]
name = "{solver}"
[exchange]
encrypt = "{encrypt}"
[sites]
quorum = {quorum}
wait_s = 60.0
"""
)
OPTIONS = {
    "server": ("--joining", "40", "--timeout", "30"),
    "client": ("--wait", "90"),
}


@dataclass(frozen=True, slots=True)
class Way:
    """Kind of a job."""

    encrypt: str
    reproducible: bool = False
    algorithm: str = "fedavg"
    solver: str = "sgd"

    @property
    def sealed(self) -> bool:
        """True where there is an authority."""
        return self.encrypt != "none"


WAYS = {
    "in the clear": Way("none"),
    "sealed": Way("model"),
    "FedTAN, sealed": Way("statistics", algorithm="fedtan"),
    "reproducible, in the clear": Way("none", reproducible=True, solver="scaffold"),
    "reproducible, FedTAN, sealed": Way("statistics", reproducible=True, algorithm="fedtan"),
}
"""Ways of jobs. In the last two a run goes on with all clients or not at all: none go for good."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of hiccups by kind."""

    kills: int = 30
    cuts: int = 30
    steps: int = 10
    full_disks: int = 5

    def shuffled(self, parties: Sequence[str], rng: random.Random) -> list[tuple[str, str]]:
        """Return hiccups by kind and party: all parties in turn, in a random order."""
        callers = [name for name in parties if name != SERVER]
        whom = {"kill": (self.kills, parties), "cut": (self.cuts, callers)}
        whom |= {"step": (self.steps, parties), "full disk": (self.full_disks, parties)}
        found = list[tuple[str, str]]()
        for kind, (number, among) in whom.items():
            # All roles in turn: by names alone, nine of ten hiccups would be sites'.
            roles = [name for name in among if name in {SERVER, AUTHORITY}]
            sites = [name for name in among if name not in roles]
            rng.shuffle(sites)
            order = [*roles, *sites]
            found += [(kind, order[i % len(order)]) for i in range(number)]
        rng.shuffle(found)
        return found


@dataclass(frozen=True, slots=True)
class Pace:
    """Length of a job, and how dense hiccups are."""

    rounds: int = 20
    steps: int = 1500
    """Local steps of a round."""
    mean_s: float = 0.6
    """Mean seconds between two hiccups, beside `PAUSE_S`."""


@dataclass(slots=True)
class Hiccups:
    """Hiccups, which are taken from the list while a job runs; one client goes for good."""

    pending: list[tuple[str, str]]
    rng: random.Random
    mean_s: float
    """Mean seconds between two."""
    proxy: Proxy
    clocks: Mapping[str, Clock]
    disks: Mapping[str, Disk]
    goes: tuple[str, int] | None
    """Client, and the round after which it goes."""
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Hiccups that have happened, by kind and party."""
    _due: float = math.inf
    _n_done: int = 0
    _n_since: int = 0
    """Hiccups since the last round."""
    _full: dict[str, float] = field(default_factory=dict)
    """Party whose disk is full, and until when."""

    def __call__(self, job: Job, n_done: int) -> None:
        """Do what is due."""
        now = time.monotonic()
        for name in [name for name, until in self._full.items() if now > until]:
            self.disks[name].empty()
            del self._full[name]
        if self.goes and n_done >= self.goes[1]:
            job.gone.add(self.goes[0])
            job.parties[self.goes[0]].kill()
            self.goes = None
        if self._due == math.inf and n_done:  # the first round waits for all
            self._due = now + self._pause_s()
        if n_done > self._n_done:
            self._n_done, self._n_since = n_done, 0
        if self.pending and now >= self._due and self._n_since < MOST_A_ROUND:
            kind, name = self.pending.pop(0)
            if name not in job.gone and self._happens(job, kind, name, now):
                self.done[kind, name] += 1
                self._n_since += 1
                self._due = now + self._pause_s()
            else:  # another comes first
                self.pending.append((kind, name))

    def _pause_s(self) -> float:
        return PAUSE_S + self.rng.expovariate(1 / self.mean_s)

    def _happens(self, job: Job, kind: str, name: str, now: float) -> bool:
        """Do it to a party; False where it is not there to have it."""
        if kind == "kill":
            return job.parties[name].is_up() and job.parties[name].kill()
        if kind == "cut":
            return self.proxy.cut(name)
        if kind == "step":
            self.clocks[name].step(forwards=self.rng.random() < 0.5)
            return True
        if name in self._full or not job.parties[name].is_up():
            return False
        self.disks[name].fill()
        self._full[name] = now + self.rng.uniform(*FULL_S)
        return True

    def over(self) -> None:
        """Empty all disks."""
        for disk in self.disks.values():
            disk.empty()


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of one job, beside one with the same clients in each round that nothing happens to."""

    hiccups: Mapping[tuple[str, str], int]
    n_sessions: int
    n_starts: int
    seconds: float
    difference: float
    """Largest difference of two weights of the models; 0 where all bits are the same."""
    n_absences: int
    """Clients by rounds that do not count them."""
    n_unnamed: int
    """Number of these without an incident that has name and reason."""
    n_repeated: int
    """Rounds that were done, and were done again."""
    rounds: int
    """Rounds in the record."""
    n_tracebacks: int


@dataclass(frozen=True, slots=True)
class Federation:
    """Consortium, data and disks of all jobs of one way."""

    folder: Path
    clients: Sequence[str]
    disks: Mapping[str, Disk]

    @classmethod
    def made(cls, folder: Path, clients: Sequence[str], stack: ExitStack) -> Federation:
        """Make keys and tables, each party's on a disk of its own."""
        ceremony(folder, clients)
        names = (SERVER, AUTHORITY, *clients)
        own = stack.enter_context(disks(folder / "disks", names))
        for name, disk in own.items():
            made = "keys" if name == AUTHORITY else name
            # The same place: whoever moves a folder to another disk copies it.
            _moved(folder / made, disk.folder / made)
        for number, name in enumerate(clients):
            _write_table(own[name].folder / name, number)
        return cls(folder, clients, own)

    @property
    def keys(self) -> Path:
        """Key folder of the authority."""
        return self.disks[AUTHORITY].folder / "keys"

    @property
    def files(self) -> dict[str, Path]:
        """Each client's site.toml."""
        return {name: self.disks[name].folder / name / "site.toml" for name in self.clients}

    def job(self, way: Way, name: str, settings: str, proxy: Proxy, at: str) -> Job:
        """Return a job of theirs, whose callers call the proxy."""
        parties = (SERVER, AUTHORITY, *self.clients)
        return Job(
            self.folder,
            name,
            settings,
            self.clients,
            way.sealed,
            homes={party: str(self.disks[party].folder) for party in parties},
            own_data=True,
            options=OPTIONS,
            environments={
                party: environment(self.clock(party), self.disks[party]) for party in parties
            },
            calls=proxy.addresses,
            at=at,
        )

    def clock(self, party: str) -> Clock:
        """Return a party's clock."""
        return Clock(self.folder / f"{party}.clock")


def _moved(here: Path, there: Path) -> None:
    shutil.copytree(here, there)
    shutil.rmtree(here)


def _write_table(folder: Path, number: int) -> None:
    """Write a site's table, whose size and means are its own, and its site.toml."""
    rng = np.random.default_rng(number)
    with (folder / "patients.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*COLUMNS, "ill"])
        for _ in range(60 + 10 * number):
            x = rng.normal(number / 4, 1, len(COLUMNS))
            ill = x[:3].sum() + 0.5 * rng.normal() > 3 * number / 4
            rows.writerow([*(f"{value:.6f}" for value in x), "yes" if ill else "no"])
    (folder / "site.toml").write_text('train = "patients.csv"\ntest = 0.2\n')


def settings_of(way: Way, clients: Sequence[str], pace: Pace, seed: int) -> str:
    """Return a job's settings; each job has its own seed, as the authority asks for."""
    return JOB.format(
        rounds=pace.rounds,
        seed=seed,
        reproducible=json.dumps(way.reproducible),
        names=json.dumps(clients),
        columns=json.dumps(COLUMNS),
        model='dtype = "{}"'.format("float32" if way.reproducible else "float64"),
        algorithm=way.algorithm,
        steps=pace.steps,
        solver=way.solver,
        encrypt=way.encrypt,
        quorum=max(3 if way.sealed else 2, len(clients) * 5 // 8),
    )


def absences(job: Job) -> tuple[list[RoundParticipants], int, int]:
    """Return the clients that each round counts, and how many it does not; and how many unnamed.

    Whose messages of the update stand in the ledger, and who is in no incident of the round but
    one of its scores, counts.
    """
    record, sent = read_run(job.run_folder), defaultdict[int, set[str]](set)
    for entry in record.ledger:
        if entry.name.startswith("update/") and entry.sender in job.clients:
            sent[entry.round].add(entry.sender)
    named = defaultdict[int, set[str]](set)
    for incident in read_rows(job.run_folder / INCIDENTS, Incident):
        if not incident.name.startswith("score/") and incident.reason:
            named[incident.round].add(incident.client)
    found, n_away, n_unnamed = list[RoundParticipants](), 0, 0
    for metrics in record.metrics:
        number = metrics.round
        counted = [name for name in job.clients if name in sent[number] - named[number]]
        away = {*job.clients} - {*counted}
        n_away, n_unnamed = n_away + len(away), n_unnamed + len(away - named[number])
        found.append(RoundParticipants(number, dict.fromkeys(counted, 1), tuple(counted)))
    return found, n_away, n_unnamed


def unbroken(
    job: Job, files: Mapping[str, Path], participants: Sequence[RoundParticipants]
) -> dict[str, torch.Tensor]:
    """Return the model of the same rounds in one process that nothing happens to."""
    settings = ["run.engine=sequential", "run.reproducible=false"]  # ephemeral keys have no seed
    config = load_config(job.settings_file, settings)
    rounds = simulated(config, task_of_sites(config, files))
    rounds.follow(participants)
    with closing(rounds):
        return dict(rounds.run(None).model.state_dict())


def outcome(
    federation: Federation,
    way: Way,
    pending: list[tuple[str, str]],
    rng: random.Random,
    pace: Pace,
) -> list[Ended]:
    """Run jobs until all hiccups are done, and compare each with one that nothing happens to."""
    ended = list[Ended]()
    parties = (SERVER, AUTHORITY, *federation.clients)
    while pending:
        number, at = len(ended) + 1, f"127.0.0.1:{free_port()}"
        settings = settings_of(way, federation.clients, pace, number)
        with closing(Proxy(at, parties)) as proxy:
            job = federation.job(way, f"job-{number}", settings, proxy, at)
            goes = None
            if not way.reproducible:
                goes = (
                    rng.choice(federation.clients),
                    rng.randrange(pace.rounds // 3, pace.rounds - 2),
                )
            clocks = {party: federation.clock(party) for party in parties}
            hiccups = Hiccups(pending, rng, pace.mean_s, proxy, clocks, federation.disks, goes)
            start = time.monotonic()
            try:
                job.run(hiccups)
            finally:
                hiccups.over()
        ended.append(_ended(job, federation.files, hiccups, time.monotonic() - start))
        print(f"{job.name}: {len(pending)} left, {ended[-1]}", flush=True)
    return ended


def _ended(job: Job, files: Mapping[str, Path], hiccups: Hiccups, seconds: float) -> Ended:
    participants, n_away, n_unnamed = absences(job)
    return Ended(
        hiccups.done,
        job.parties[SERVER].n_starts,
        sum(party.n_starts for party in job.parties.values()),
        seconds,
        largest_difference(model_of(job), unbroken(job, files, participants)),
        n_away,
        n_unnamed,
        n_repeated(job),
        len(read_run(job.run_folder).metrics),
        sum(party.said().count("Traceback") for party in job.parties.values()),
    )


@dataclass(frozen=True, slots=True)
class Result:
    """Result of all jobs of one way."""

    jobs: Sequence[Ended]
    opened: tuple[int, int]
    """Totals, and those opened twice in a session."""
    n_again: int
    """Totals of a round in flight, which were opened again in a later session."""
    mounted: bool

    def hiccups(self, kind: str) -> str:
        """Return how many of a kind there were, by role."""
        by = Counter[str]()
        for (of, name), number in sum((Counter(j.hiccups) for j in self.jobs), Counter()).items():
            if of == kind:
                by[name if name in {SERVER, AUTHORITY} else "sites"] += number
        roles = ", ".join(f"{role} {number}" for role, number in sorted(by.items()))
        return f"{sum(by.values())} ({roles})" if by else "0"


def n_opened_again(keys: Path) -> int:
    """Return how many totals were opened in a second session, of one job."""
    totals = Counter((row[3], row[1], row[2]) for row in opened_totals(keys))
    return sum(totals.values()) - len(totals)


ROWS: dict[str, Callable[[Result], object]] = {
    "SIGKILLs": lambda r: r.hiccups("kill"),
    "connections cut": lambda r: r.hiccups("cut"),
    "clocks stepped by an hour": lambda r: r.hiccups("step"),
    "full disks": lambda r: r.hiccups("full disk"),
    "jobs, and sessions of them": lambda r: f"{len(r.jobs)}, {sum(j.n_sessions for j in r.jobs)}",
    "starts of processes": lambda r: sum(j.n_starts for j in r.jobs),
    "seconds": lambda r: round(sum(j.seconds for j in r.jobs)),
    "largest difference of a weight": lambda r: f"{max(j.difference for j in r.jobs):.3g}",
    "rounds in the record of each job": lambda r: ", ".join(str(j.rounds) for j in r.jobs),
    "rounds done twice": lambda r: sum(j.n_repeated for j in r.jobs),
    "totals opened": lambda r: r.opened[0] or "–",
    "of these twice in a session": lambda r: r.opened[1] if r.opened[0] else "–",
    "of these again in a later session, their round being in flight": (
        lambda r: r.n_again if r.opened[0] else "–"
    ),
    "absences of a client from a round": lambda r: sum(j.n_absences for j in r.jobs),
    "of these without name and reason": lambda r: sum(j.n_unnamed for j in r.jobs),
    "tracebacks": lambda r: sum(j.n_tracebacks for j in r.jobs),
}


def page(results: Mapping[str, Result], command: str) -> str:
    """Return the page of results."""
    lines = ["# Hiccups", "", f"`{command}`. {Machine.here()}.", ""]
    lines += ["| | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    for title, of in ROWS.items():
        lines.append(f"| {title} | " + " | ".join(str(of(r)) for r in results.values()) + " |")
    return "\n".join(lines) + "\n"


def result_of(
    way: Way,
    counts: Counts,
    rng: random.Random,
    clients: Sequence[str] = CLIENTS,
    pace: Pace = Pace(),
    within: Path | None = None,
) -> Result:
    """Run all jobs of one way."""
    with ExitStack() as stack:
        folder = within or Path(stack.enter_context(TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        federation = Federation.made(folder, clients, stack)
        parties = (SERVER, *((AUTHORITY,) if way.sealed else ()), *clients)
        pending = counts.shuffled(parties, rng)
        jobs = outcome(federation, way, pending, rng, pace)
        opened, again = releases(federation.keys), n_opened_again(federation.keys)
        if within:
            shutil.copytree(folder / "disks", folder / "left")
        return Result(jobs, opened, again, all(d.mounted for d in federation.disks.values()))


@click.command(epilog="Example: python benchmarks/hiccups.py --out docs/results/hiccups.md")
@click.option("--kills", default=30, show_default=True, help="In each way.")
@click.option("--cuts", default=30, show_default=True, help="In each way.")
@click.option("--steps", default=10, show_default=True, help="Of clocks, in each way.")
@click.option("--full-disks", default=5, show_default=True, help="In each way.")
@click.option("--rounds", default=20, show_default=True, help="Of each job.")
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), help="All if absent.")
@click.option("--seed", default=0, show_default=True, help="Of what happens, to whom, and when.")
@click.option("--keep", type=click.Path(path_type=Path), help="Leave folders and logs there.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the table there.")
def main(  # noqa: PLR0913, PLR0917
    kills: int,
    cuts: int,
    steps: int,
    full_disks: int,
    rounds: int,
    ways: tuple[str, ...],
    seed: int,
    keep: Path | None,
    out: Path | None,
) -> None:
    """Let everything happen to jobs, and print what has come of it."""
    counts, results = Counts(kills, cuts, steps, full_disks), dict[str, Result]()
    for number, way in enumerate(ways or WAYS):
        within = keep / str(number) if keep else None
        about = WAYS[way], counts, random.Random(seed), CLIENTS, Pace(rounds)
        results[way] = result_of(*about, within)
    words = f"python benchmarks/hiccups.py --kills {kills} --cuts {cuts} --steps {steps} "
    words += f"--full-disks {full_disks} --rounds {rounds} --seed {seed}"
    words += "".join(f' --way "{way}"' for way in ways)
    found = page(results, words)
    print(found)
    if out:
        write_whole(out, found.encode())


if __name__ == "__main__":
    main()

"""Parties of a job as processes of the command line on this machine, and what they end with.

Whoever has ended before the job, for whatever reason, is started again with the same command.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import safetensors.torch
import torch

from securefl.federation.incidents import Incident
from securefl.federation.message import CARD
from securefl.federation.opening_history import ModelRow, ScoresRow
from securefl.network.authority import RELEASES
from securefl.runs.folder_files import INCIDENTS, MODEL
from securefl.runs.folder_reader import read_rows, read_run
from securefl_cli.demo_sites import make_consortium

SERVER, AUTHORITY = "hub", "authority"
PASSPHRASE = "any words, for a federation that lasts minutes"
SECUREFL = (sys.executable, "-c", "from securefl_cli.main import main; main()")
OF_TABLES = """
[data]
names = {names}
[samples]
columns = {columns}
target = "ill"
classes = ["no", "yes"]
most = 200
[model]
name = "mlp"
{model}
[run]
rounds = {rounds}
threads = 1
"""
"""Head of the settings of sites that each have a table; more of `[run]` may follow."""
LIMIT_S = 240.0
"""Seconds without a new round, after which a run is stuck."""
LAST_WORDS_S = 5.0
"""Seconds that clients have to end once the server has."""


class Stuck(Exception):
    """A job ends no round any more."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        port: int = at.getsockname()[1]
    return port


def ceremony(folder: Path, clients: Sequence[str]) -> None:
    """Make keys, members and bundles."""
    make_consortium(folder, clients, SERVER, PASSPHRASE, name="Nord")


@dataclass(slots=True)
class Party:
    """Process of one party, started again with the same command."""

    name: str
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside this process's own."""
    process: subprocess.Popen[bytes] | None = None
    n_starts: int = 0

    @property
    def log(self) -> Path:
        """File of all that its processes have said."""
        return self.folder / f"{self.name}.log"

    def said(self) -> str:
        """Return all that its processes have said."""
        return self.log.read_text() if self.log.exists() else ""

    def start(self) -> None:
        """Start it, once more."""
        self.n_starts += 1
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
        with self.log.open("ab") as log:
            log.write(f"start {self.n_starts}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                [*SECUREFL, *self.command], cwd=self.folder, env=environment, stdout=log, stderr=log
            )

    def is_alive(self) -> bool:
        """Return whether its process runs."""
        return self.process is not None and self.process.poll() is None

    def is_up(self) -> bool:
        """Return whether its process runs, and has said something."""
        return self.is_alive() and not self.said().endswith(f"start {self.n_starts}\n")

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
    """Folder with the consortium's files, of the settings and of what is said."""
    name: str
    settings: str
    """TOML that all parties have."""
    clients: Sequence[str]
    sealed: bool
    homes: Mapping[str, str] = field(default_factory=dict)
    """Folder of what a party itself writes, by its name, where it is not `folder`."""
    own_data: bool = False
    """True where each client has a `site.toml` beside its identity."""
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further words of the commands: of `server`, `client` and `authority`."""
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further variables, by party."""
    calls: Mapping[str, str] = field(default_factory=dict)
    """Address that a party calls, by its name, where it is not the server's."""
    at: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    """Address of the server."""
    parties: dict[str, Party] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Clients that are not started again."""

    def __post_init__(self) -> None:
        self.settings_file.write_text(self.settings)
        job, words = self.settings_file.name, ("--passphrase-file", "passphrase")
        serve = ["server", "serve", job, "--bundle", "bundles/server", "--listen", self.at]
        serve += ["--identity", self._home(SERVER, SERVER), "--out", str(self.run_folder)]
        if self.sealed:
            keys = self._home(AUTHORITY, "keys")
            call = ["--keys", keys, "--server", self.calls.get(AUTHORITY, self.at)]
            more = self.options.get("authority", ())
            self._party(AUTHORITY, ["authority", "serve", job, *call, *words, *more])
        self._party(SERVER, [*serve, *words, *self.options.get("server", ())])
        for name in self.clients:
            own = self._home(name, name)
            join = ["site", "join", job, "--bundle", "bundles/client", "--identity", own]
            join += ["--data", f"{own}/site.toml"] if self.own_data else []
            join += ["--server", self.calls.get(name, self.at)]
            self._party(name, [*join, *words, *self.options.get("client", ())])

    def _party(self, name: str, command: Sequence[str]) -> None:
        environment = self.environments.get(name, {})
        self.parties[name] = Party(f"{self.name}-{name}", command, self.folder, environment)

    def _home(self, party: str, name: str) -> str:
        return str(Path(self.homes.get(party, "")) / name)

    @property
    def settings_file(self) -> Path:
        """File of the settings."""
        return self.folder / f"{self.name}.toml"

    @property
    def run_folder(self) -> Path:
        """Folder of the run."""
        return self.folder / self.homes.get(SERVER, "") / f"run-{self.name}"

    def rounds_done(self) -> list[int]:
        """Return the rounds that the server has said are done, in the order of its words."""
        return rounds_in(self.parties[SERVER].said())

    def n_sessions(self) -> int:
        """Return how often the last of all clients has joined."""
        return self.parties[SERVER].said().count(f"{len(self.clients)} of {len(self.clients)}")

    def run(self, meddle: Callable[[Job, int], None] = lambda _job, _done: None) -> None:
        """Run the job to its end; `meddle` is called again and again, with the rounds done so far.

        Raises:
            Stuck: no round ends any more.
        """
        n_done, since, over = 0, time.monotonic(), math.inf
        try:
            while not self._ended(over):
                now, done = time.monotonic(), len(self.rounds_done())
                if done > n_done:
                    n_done, since = done, now
                if now > since + LIMIT_S:
                    said = "".join(f"\n{p.name}: {p.said()[-600:]}" for p in self.parties.values())
                    raise Stuck(f"{self.name}: no round within {LIMIT_S:g} s{said}")
                if self.parties[SERVER].is_alive():
                    meddle(self, n_done)
                elif over == math.inf and self._is_over():
                    over = now + LAST_WORDS_S
                time.sleep(0.01)
        finally:
            self.stop()

    def stop(self) -> None:
        """Kill all processes."""
        for party in self.parties.values():
            party.kill()

    def _is_over(self) -> bool:
        process = self.parties[SERVER].process
        return process is not None and process.poll() == 0

    def _ended(self, over: float) -> bool:
        """Return whether all rounds are done; start those again that have ended before.

        A client that is killed with the server's last words under way does not hear them.
        """
        if self.parties[SERVER].is_done():
            waited_for = any(self.parties[name].is_alive() for name in self.clients)
            return not waited_for or time.monotonic() > over
        for name, party in self.parties.items():
            if name not in self.gone:
                party.is_done()
        return False


def rounds_in(said: str) -> list[int]:
    """Return the rounds that a server says are done, each on a line after time and session."""
    return [int(number) for number in re.findall(r"^\S+ \S+ Round (\d+)/", said, re.MULTILINE)]


def model_of(job: Job) -> dict[str, torch.Tensor]:
    """Return the trained model."""
    return safetensors.torch.load_file(job.run_folder / MODEL)


def largest_difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Return the largest between two weights of models; 0 where all bits are the same."""
    return max(float((value - other[key]).abs().max()) for key, value in one.items())


def record_of(job: Job) -> tuple[object, ...]:
    """Return what a run's folder tells, without times: they differ from run to run.

    Without cards as well, which clients give in each session.
    """
    record = read_run(job.run_folder)
    return (
        Counter(entry for entry in record.ledger if entry.name != CARD),
        [(m.round, m.score, m.loss, m.dropped) for m in record.metrics],
        [(p.selected, p.present, p.lost) for p in record.participants],
        read_rows(job.run_folder / INCIDENTS, Incident),
    )


def n_repeated(job: Job) -> int:
    """Return the number of rounds that were done, and done again."""
    done = job.rounds_done()
    return len(done) - len({*done})


def releases(keys: Path) -> tuple[int, int]:
    """Return how many totals and scores the authority has opened, and how many of them again.

    Again is in the same session; `keys` is its key folder.
    """
    scores = Counter((row[0], row[1], of) for row in _rows(keys, ScoresRow) for of in row[5])
    opened = (Counter(tuple(row[:3]) for row in opened_totals(keys)) + scores).values()
    return sum(opened), sum(opened) - len(opened)


def opened_totals(keys: Path) -> list[Any]:
    """Return the rows of totals that the authority has opened, and not refused afterwards."""
    return [row for row in _rows(keys, ModelRow) if not row[6]]


def _rows(keys: Path, kind: Any) -> list[Any]:
    """Return the rows of one kind in the authority's history of releases."""
    path, n_fields = keys / "authority/log" / RELEASES, len(get_args(kind))
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if len(row) == n_fields]

"""Any job as processes run it, its parties tasks of one event loop, beside the same job simulated.

Ceremony, identities and bundles are made once; the task is one of a blink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import safetensors.torch
import torch
from key_folders import cheap
from processes import SERVER, Loop, Site
from torch import nn

import securefl
from securefl import Config, Task
from securefl.build.job import job_of
from securefl.network.identity import ProcessIdentity
from securefl.network.party import ClientParty
from securefl.network.server import ServerProcess
from securefl.runs.folder_files import INCIDENTS, OPENINGS
from securefl.runs.folder_reader import RunRecord, read_run
from securefl.task import own_settings
from securefl_keys.bundle import VerifiedBundle

NAMES = ("alice", "bob", "carol", "dora", "eve")
SIZES = (9, 12, 18, 10, 14)
"""Sizes of the clients' data: unequal, and all more than a batch."""
SHORT = (
    "run.rounds=2",
    "run.reproducible=true",
    "run.engine=sequential",
    "algorithm.name=fedavg",
    "algorithm.local_steps=2",
    "train.batch_size=8",
    "train.lr=0.1",
    "exchange.encrypt=none",
    "sites.wait_s=0",
    "sites.scores=each",
    f"data.names={list(NAMES)}".replace("'", '"'),
)


def made_up_task(*, own_tests: bool = False) -> Task:
    """Make two BN layers, clients that differ in size and mean, public samples."""
    rng = torch.Generator().manual_seed(1)

    def drawn(n: int, shift: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 4, generator=rng) + shift
        return x, torch.randint(3, (n,), generator=rng)

    clients = [drawn(n, 0.2 * i) for i, n in enumerate(SIZES)]
    test, public = drawn(24), drawn(24)
    tests = [drawn(8, 0.2 * i) for i in range(len(SIZES))] if own_tests else []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()),
            *(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)),
        )
    return Task(model, clients, test, client_tests=tests, public=public)


class Consortium:
    """Five clients, a server and an authority, for all tests of a module."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder, names=NAMES)
        self._identities: dict[str, ProcessIdentity] = {}
        self._bundles: dict[str, VerifiedBundle] = {}

    def identity(self, name: str, role: str = "client") -> ProcessIdentity:
        """See `Site.identity`; read once."""
        if name not in self._identities:
            self._identities[name] = self.site.identity(name, role)
        return self._identities[name]

    def bundle(self, role: str) -> VerifiedBundle:
        """See `Site.bundle`; read once."""
        if role not in self._bundles:
            self._bundles[role] = self.site.bundle(role)
        return self._bundles[role]


@dataclass
class Job:
    """One job of a consortium, in a folder of its own; what `Loop` reads of a site."""

    consortium: Consortium
    folder: Path
    settings: Sequence[str]
    task: Task = field(default_factory=made_up_task)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)

    @cached_property
    def config(self) -> Config:
        """Settings that all parties have."""
        return own_settings(securefl.load_config(None, [*SHORT, *self.settings]), self.task)

    names = NAMES
    server_file = None
    """The server's own file; None without."""

    @property
    def sealed(self) -> bool:
        return bool(self.config.exchange.encrypt)

    @property
    def keys(self) -> Path:
        return self.consortium.site.keys

    @property
    def openings(self) -> Path:
        """Openings of this job alone."""
        return self.folder / "authority" / OPENINGS

    @property
    def record(self) -> RunRecord:
        return read_run(self.folder / "run")

    def identity(self, name: str, role: str = "client") -> ProcessIdentity:
        return self.consortium.identity(name, role)

    def bundle(self, role: str) -> VerifiedBundle:
        return self.consortium.bundle(role)

    def party(self, name: str) -> ClientParty:
        """Return a client's part, with what it keeps in a folder of this job."""
        job = job_of(self.config, self.task)
        return ClientParty(job, self.identity(name), self.folder / name)

    def over_loopback(self) -> Path:
        """Run it; the folder of the run."""
        loop = OnTask(self)
        with cheap():  # a rotation in between
            loop.run()
        assert loop.ended == dict.fromkeys(NAMES), loop.said
        assert not list(self.folder.glob("*/runs/*")), "clients keep what nobody asks for any more"
        return self.folder / "run"

    def simulated(self, key_set=None) -> Path:
        """Run it in one process, one client after the other; the folder of the run."""
        out, config = self.folder / "alone", self.config
        securefl.run(config, self.task, keys=key_set if config.needs_cards else None, out=out)
        return out


class OnTask(Loop):
    """A loop whose parties train a task that is given."""

    def _server(self) -> ServerProcess:
        return ServerProcess(
            self.site.identity(SERVER, "server"),
            self.site.bundle("server"),
            job_of(self.config, self.site.task),
            self.patience,
            self.said.append,
        )


def model_of(run: Path) -> dict[str, torch.Tensor]:
    """Return the trained model in a run's folder."""
    return safetensors.torch.load_file(run / "model.safetensors")


def incidents_of(run: Path) -> str:
    return (run / INCIDENTS).read_text()

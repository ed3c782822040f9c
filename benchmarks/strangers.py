"""Seconds per round of a federation while strangers besiege its server, and while nobody does.

    python benchmarks/strangers.py

A server and sites are processes of the command line; strangers are tasks of one more process, which
with `--yielding` has what the others leave of the cores. With `--apart` the server has a core, the
sites another, as they have machines of their own, and strangers what the server leaves of its
core. Quiet and besieged stretches of one run take turns.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

import click
from faults import Proxy
from measure import Machine
from roles import PASSPHRASE, SERVER, Job, ceremony, free_port

from securefl.errors import PeerError
from securefl.network.connect import Address, connected
from securefl.network.frames import Frame
from securefl.network.identity import ProcessIdentity
from securefl.runs.round_metrics import read_metrics
from securefl_keys.bundle import VerifiedBundle, process_identity

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

SITES = ("amiens", "bremen", "cadiz")
MEMBER = "mallory"
"""Name of a member of the consortium, in no job."""
SPAWN = multiprocessing.get_context("spawn")
JOB = """
[run]
rounds = 100000
threads = 1
[data]
clients = {n}
names = {names}
partition = "classes:5"
[model]
name = "mlp"
[algorithm]
name = "fedavg"
local_steps = {steps}
[exchange]
encrypt = "none"
"""
Told: TypeAlias = "Queue[tuple[float, int]]"
Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Siege:
    """Strangers of one kind after the other, so many of each."""

    at: str
    each: int
    handshake: bytes
    """Bytes with which an honest site has begun."""
    folder: Path
    yields: bool
    """True where the strangers have what nobody else wants of their cores, as strangers on another
    machine would take nothing of it."""
    cores: Collection[int]
    again_s: float
    """Seconds after which a stranger that was hung up on calls again."""
    calls: Counter[str] = field(default_factory=Counter)
    """Connections so far, by kind."""

    def run(self, said: Told) -> None:
        """Besiege until this process is ended; tell seconds of CPU and calls, each second."""
        os.sched_setaffinity(0, self.cores)
        if self.yields:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        _allow_all_descriptors()
        asyncio.run(self._run(said))

    async def _run(self, said: Told) -> None:
        bundle = VerifiedBundle.load(self.folder / "bundles/client", "client")
        own = process_identity(self.folder / MEMBER, PASSPHRASE, bundle.ca, "client")
        strangers = [self._speaking(speak) for speak in self._kinds() for _ in range(self.each)]
        strangers += [self._member(own, bundle) for _ in range(self.each)]
        tasks = [asyncio.ensure_future(stranger) for stranger in strangers]
        while not any(task.done() for task in tasks):
            said.put((time.process_time(), self.calls.total()))
            await asyncio.sleep(1)
        raise RuntimeError(next(task for task in tasks if task.done()))

    def _kinds(self) -> Sequence[Speak]:
        async def garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(os.urandom(4096))

        async def half_open(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"")

        async def replayed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(self.handshake)

        async def slow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for i in range(len(self.handshake)):
                writer.write(self.handshake[i : i + 1])
                await writer.drain()
                await asyncio.sleep(1)

        return garbage, half_open, replayed, slow

    async def _speaking(self, speak: Speak) -> None:
        host, _, port = self.at.rpartition(":")
        await asyncio.sleep(random.uniform(0, self.again_s))
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                self.calls[speak.__name__] += 1
                try:
                    await speak(reader, writer)
                    await reader.read()
                finally:
                    writer.close()
            await asyncio.sleep(self.again_s)

    async def _member(self, own: ProcessIdentity, bundle: VerifiedBundle) -> None:
        """Send a megabyte where a small frame is due, under a certificate that is sound."""
        host, _, port = self.at.rpartition(":")
        while True:
            await asyncio.sleep(random.uniform(0, 2 * self.again_s))
            with suppress(PeerError, OSError):
                link = await connected(own, bundle, "server", Address(host, int(port)), 0)
                self.calls["member"] += 1
                with closing(link):
                    await link.send(Frame.HELLO, bytes(2**20))
                    await link.receive(dict.fromkeys(Frame, 4096))


def _allow_all_descriptors() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds per round, by pairs of stretches."""

    quiet_s: Sequence[float]
    besieged_s: Sequence[float]
    server_cpu: Sequence[float]
    """Share of one core that the server took, quiet and besieged: medians."""
    cpu_share: float
    """Share of one core that the strangers took themselves."""
    calls_per_s: float
    n_incidents: int

    @property
    def ratios(self) -> list[float]:
        """Besieged over quiet, by pair."""
        return [b / q for b, q in zip(self.besieged_s, self.quiet_s, strict=True)]


def rounds_within(job: Job, seconds: float) -> tuple[float, float]:
    """Return the median of the rounds' seconds in a stretch, and the server's share of a core."""
    before, cpu_s, start = len(read_metrics(job.run_folder)), _server_cpu_s(job), time.monotonic()
    time.sleep(seconds)
    share = (_server_cpu_s(job) - cpu_s) / (time.monotonic() - start)
    return median(m.seconds for m in read_metrics(job.run_folder)[before + 1 :]), share


def _server_cpu_s(job: Job) -> float:
    process = job.parties[SERVER].process
    assert process is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system


@contextmanager
def on(cores: Collection[int]) -> Iterator[None]:
    """Have what is started within run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def besieged(  # noqa: PLR0913
    folder: Path,
    pairs: int,
    stretch_s: float,
    each: int,
    steps: int,
    again_s: float,
    *,
    yields: bool,
    apart: bool,
) -> Found:
    """Run a federation, and besiege it in every second stretch."""
    own, *others = cores = sorted(os.sched_getaffinity(0))
    of_server, of_sites = ({own}, set(others)) if apart else (set(cores), set(cores))
    ceremony(folder, [*SITES, MEMBER])
    at = f"127.0.0.1:{free_port()}"
    with closing(Proxy(at, SITES)) as proxy:
        settings = JOB.format(n=len(SITES), names=json.dumps(SITES), steps=steps)
        job = Job(folder, "job", settings, SITES, sealed=False, calls=proxy.addresses, at=at)
        try:
            for name, party in job.parties.items():
                with on(of_server if name == SERVER else of_sites):
                    party.start()
            while len(job.rounds_done()) < 5:
                if not job.parties[SERVER].is_alive():
                    raise RuntimeError(job.parties[SERVER].said())
                time.sleep(0.1)
            siege = Siege(at, each, proxy.heard[SITES[0]], folder, yields, of_server, again_s)
            return _in_turns(job, siege, pairs, stretch_s)
        finally:
            job.stop()


def _in_turns(job: Job, siege: Siege, pairs: int, stretch_s: float) -> Found:
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    cpu_s, calls = list[float](), list[float]()
    for _ in range(pairs):
        for under_siege in random.sample([False, True], 2):
            if not under_siege:
                found[False].append(rounds_within(job, stretch_s))
                continue
            said: Told = SPAWN.Queue()
            process = SPAWN.Process(target=siege.run, args=(said,))
            process.start()
            first = said.get()
            time.sleep(2)  # until all have called
            start = time.monotonic()
            found[True].append(rounds_within(job, stretch_s))
            last = first
            while not said.empty():
                last = said.get()
            lasted_s = time.monotonic() - start + 2
            cpu_s.append((last[0] - first[0]) / lasted_s)
            calls.append(last[1] / lasted_s)
            process.kill()
            process.join()
            time.sleep(1)
    incidents = job.run_folder / "incidents.jsonl"
    n_incidents = len(incidents.read_text().splitlines()) if incidents.exists() else 0
    assert "Traceback" not in job.parties[SERVER].said()
    (quiet_s, quiet_cpu), (besieged_s, besieged_cpu) = (
        zip(*found[under_siege], strict=True) for under_siege in (False, True)
    )
    server_cpu = median(quiet_cpu), median(besieged_cpu)
    return Found(quiet_s, besieged_s, server_cpu, median(cpu_s), median(calls), n_incidents)


def told(values: Sequence[float], unit: str = "") -> str:
    """Return median and quartiles in words."""
    low, _, high = quantiles(values, n=4)
    return f"{median(values):.3g}{unit} ({low:.3g} to {high:.3g})"


@click.command()
@click.option("--pairs", default=12, show_default=True, help="Of stretches.")
@click.option("--seconds", default=10.0, show_default=True, help="Of a stretch.")
@click.option("--strangers", default=200, show_default=True, help="Of five kinds, as many of each.")
@click.option("--steps", default=400, show_default=True, help="Of local training in a round.")
@click.option(
    "--again", default=1.0, show_default=True, help="Seconds until the next call of each."
)
@click.option("--yielding", is_flag=True, help="Strangers run on what others leave of the cores.")
@click.option("--apart", is_flag=True, help="Server and sites have cores of their own.")
def main(  # noqa: PLR0913
    pairs: int,
    seconds: float,
    strangers: int,
    steps: int,
    again: float,
    *,
    yielding: bool,
    apart: bool,
) -> None:
    """Print seconds per round, with strangers and without."""
    with TemporaryDirectory() as made:
        of = Path(made), pairs, seconds, strangers // 5, steps, again
        found = besieged(*of, yields=yielding or apart, apart=apart)
    print(f"{Machine.here()}; {strangers} strangers, {pairs} pairs of {seconds:g} s")
    print(f"quiet    {told(found.quiet_s, ' s')} a round")
    print(f"besieged {told(found.besieged_s, ' s')} a round")
    print(f"ratio    {told(found.ratios)}, of each pair")
    print("server   {:.2f} of a core quiet, {:.2f} besieged".format(*found.server_cpu))
    print(f"{found.calls_per_s:.0f} connections a second, for {found.cpu_share:.2f} of a core")
    print(f"{found.n_incidents} incidents")


if __name__ == "__main__":
    main()

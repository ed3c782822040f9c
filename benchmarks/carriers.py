"""One call of three sites, each a process of this machine, by each transport.

Each site is sent so many bytes, all at once, and answers with as many; nothing is trained, sealed
or parsed. Over gRPC and NVIDIA FLARE they go in TLS, as to sites on other machines; to worker
processes and actors of Ray in the clear, as in simulations.

    pip install 'securefl[nvflare,ray]' && python benchmarks/carriers.py
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from measure import Machine
from roles import SERVER

from securefl.errors import PeerError
from securefl.federation.site import Kept
from securefl.federation.transport import Lost, Parts, Transport
from securefl.network.connect import Address, Destination, Entrance, connected, listening
from securefl.network.frames import Frame, Link
from securefl.network.identity import ProcessIdentity, name_of
from securefl.network.limits import Room
from securefl.network.loop_work import LoopWork
from securefl.network.members import Members
from securefl.network.site_transport import SiteTransport
from securefl.network.trust import Role
from securefl.simulation.processes.machines import Machines, Wanted
from securefl.simulation.processes.transport import WorkerTransport
from securefl.simulation.processes.worker_process import ThisMachine
from securefl_cli.demo_sites import make_consortium
from securefl_keys.bundle import VerifiedBundle, process_identity

SIZES = (1_000, 100_000, 1_000_000)
"""Bytes each way."""
REPEATS = 50
WITHIN_S = 60
"""Seconds for all sites to be there."""
SPAWN = multiprocessing.get_context("spawn")


def party(folder: Path, name: str, role: Role) -> tuple[ProcessIdentity, VerifiedBundle]:
    """Return a member's identity and bundle from the consortium's folder."""
    bundle = VerifiedBundle.load(folder / "bundles" / role, role)
    passphrase = (folder / "passphrase").read_text().strip()
    return process_identity(folder / name, passphrase, bundle.ca, role), bundle


@dataclass
class Told:
    """`SiteCall` of so many bytes, which as many answer."""

    message: bytes
    unanswered: None = None

    def request(self, _connection: object) -> Parts:
        """Return the request."""
        return bytes([Frame.ROUND]), self.message

    def begins(self, _beginning: Parts, n_bytes: int) -> None:
        """Refuse another answer: see `SiteCall.begins`."""
        if n_bytes != 1 + len(self.message):
            raise PeerError("another answer")

    def read(self, _message: Parts) -> Kept:
        """Take the answer."""
        return Kept()


def timed(transport: Transport, names: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
    """Call all sites at once; return the median milliseconds by size."""

    def heard(site: str, outcome: Kept | Lost) -> None:
        if isinstance(outcome, Lost):
            raise PeerError(f"{site}: {outcome.reason}")

    found = {}
    for size in sizes:
        times = []
        for _ in range(REPEATS):
            calls = {name: Told(bytes(size)) for name in names}
            start = time.perf_counter()
            transport.call(calls, heard)
            times.append(time.perf_counter() - start)
        found[size] = 1000 * median(times)
    return found


class Echo:
    """A site that answers with the bytes that came."""

    def handle(self, message: Parts) -> Parts:
        """Return them."""
        return bytes([Frame.MESSAGE]), *message[1:]


async def asked(
    folder: Path, at: Entrance, sizes: Sequence[int], ready: Callable[[str], None]
) -> dict[int, float]:
    """Call all sites, once all have joined; return the median milliseconds by size."""
    hub, trust = party(folder, SERVER, "server")
    names = sorted(trust.clients().names)
    members = Members("", "", "", {}, names, WITHIN_S, print)

    async def hold(link: Link) -> None:
        members.links[link.name] = link
        await link.ended()

    admitted = partial(name_of, trust.transport_holder, role="client")
    door = await listening(hub, admitted, at, hold, print, len(names))
    ready(door.at)
    async with asyncio.timeout(WITHIN_S):
        while len(members.links) < len(names):
            await asyncio.sleep(0.05)
    transport = SiteTransport(members, LoopWork(asyncio.get_running_loop()), Room())
    found = await asyncio.to_thread(timed, transport, names, sizes)
    for link in members.links.values():
        link.close()
    await door.stop()
    return found


async def answer(folder: Path, name: str, to: Destination, most: int) -> None:
    """Answer with as many bytes as come, until the server hangs up."""
    own, trust = party(folder, name, "client")
    link, end = await connected(own, trust, "server", to, WITHIN_S), Echo()
    with suppress(PeerError):
        while True:
            received = await link.receive({Frame.ROUND: most})
            kind, *parts = end.handle((bytes([received.frame]), received.body))
            await link.send(Frame(kind[0]), *parts)


def _grpc_site(folder: Path, name: str, at: str, most: int) -> None:
    asyncio.run(answer(folder, name, Address.parse(at), most))


def over_grpc(folder: Path, names: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
    """Return milliseconds over gRPC, by size."""
    sites = []

    def start(at: str) -> None:
        for name in names:
            site = SPAWN.Process(target=_grpc_site, args=(folder, name, at, max(sizes)))
            site.start()
            sites.append(site)

    try:
        return asyncio.run(asked(folder, Address("127.0.0.1", 0), sizes, start))
    finally:
        for site in sites:
            site.kill()


def over_nvflare(folder: Path, names: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
    """Return milliseconds over NVIDIA FLARE's simulator, by size."""
    import nvflare_calls  # noqa: PLC0415 (an extra)

    return nvflare_calls.over_nvflare(folder, names, sizes)


def _by_workers(machines: Machines, names: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
    with closing(WorkerTransport(machines, lambda _site: Echo)) as transport:
        return timed(transport, names, sizes)


def over_pipes(_folder: Path, names: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
    """Return milliseconds with worker processes, by size."""
    return _by_workers(ThisMachine(Wanted(len(names), 1, len(names))), names, sizes)


def over_ray(_folder: Path, names: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
    """Return milliseconds with actors of a local Ray cluster, by size."""
    from securefl.simulation.ray.cluster import Cluster  # noqa: PLC0415 (an extra)

    return _by_workers(Cluster(Wanted(len(names), 1, len(names))), names, sizes)


CARRIERS: Mapping[str, Callable[[Path, Sequence[str], Sequence[int]], dict[int, float]]] = {
    "worker processes, pipes": over_pipes,
    "gRPC": over_grpc,
    "Ray, actors": over_ray,
    "NVIDIA FLARE, simulator": over_nvflare,
}


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[int, float]]:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--by", nargs="+", choices=CARRIERS, default=[*CARRIERS])
    options = parser.parse_args(arguments)
    names = [f"client-{i}" for i in range(1, options.clients + 1)]
    # Those who start processes of their own find this module there.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    passphrase = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_consortium(folder, names, SERVER, passphrase, name="Loopback")
        (folder / "passphrase").write_text(passphrase)
        found = {carrier: CARRIERS[carrier](folder, names, options.sizes) for carrier in options.by}
    print(Machine.here())
    print("| ms | " + " | ".join(f"{size:,} bytes" for size in options.sizes) + " |")
    print("|---|" + "---:|" * len(options.sizes))
    for carrier, times in found.items():
        print(f"| {carrier} | " + " | ".join(f"{ms:,.1f}" for ms in times.values()) + " |")
    return found


if __name__ == "__main__":
    main()

"""One exchange of a server with its sites, each a process of this machine, by who carries it.

Each site is sent so many bytes, and answers with as many; nothing is trained, sealed or parsed.
Over gRPC and NVIDIA FLARE these are frames in TLS, as sites on other machines have them; between
worker processes and actors of Ray, a tensor and its pickle, as simulations have them.

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
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from measure import Machine
from numpy.typing import NDArray
from roles import SERVER

from securefl.errors import PeerError
from securefl.network.connect import Address, Destination, Entrance, connected, listening
from securefl.network.frames import Frame, Link
from securefl.network.identity import ProcessIdentity
from securefl.network.trust import Role
from securefl.simulation.processes import ipc
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


async def asked(
    folder: Path, at: Entrance, sizes: Sequence[int], ready: Callable[[str], None]
) -> dict[int, float]:
    """Ask all sites at once, once all have called; return the median milliseconds by size."""
    links = list[Link]()
    hub, trust = party(folder, SERVER, "server")
    n_sites = len(trust.clients().names)

    async def hold(link: Link) -> None:
        links.append(link)
        await link.ended()

    async def ask(link: Link, size: int) -> None:
        await link.send(Frame.ROUND, bytes(size))
        await link.receive({Frame.MESSAGE: size})

    door = await listening(hub, lambda _: "a site", at, hold, print, n_sites)
    ready(door.at)
    async with asyncio.timeout(WITHIN_S):
        while len(links) < n_sites:
            await asyncio.sleep(0.05)
    found = {}
    for size in sizes:
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            await asyncio.gather(*(ask(link, size) for link in links))
            times.append(time.perf_counter() - start)
        found[size] = 1000 * median(times)
    for link in links:
        link.close()
    await door.stop()
    return found


async def answer(folder: Path, name: str, to: Destination, most: int) -> None:
    """Answer with as many bytes as come, until the server hangs up."""
    own, trust = party(folder, name, "client")
    link = await connected(own, trust, "server", to, WITHIN_S)
    with suppress(PeerError):
        while True:
            received = await link.receive({Frame.ROUND: most})
            await link.send(Frame.MESSAGE, received.body)


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


def _by_size(
    sizes: Sequence[int], tell: Callable[[torch.Tensor], None], hear: Callable[[], None]
) -> dict[int, float]:
    """Time telling all sites and hearing from all."""
    found = {}
    for size in sizes:
        value, times = torch.zeros(size, dtype=torch.uint8), []
        for _ in range(REPEATS):
            start = time.perf_counter()
            tell(value)
            hear()
            times.append(time.perf_counter() - start)
        found[size] = 1000 * median(times)
    return found


def _worker(pipe: Connection) -> None:
    with suppress(ipc.Gone):
        while True:
            ipc.send(pipe, ipc.receive(pipe))


def over_pipes(_folder: Path, names: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
    """Return milliseconds between worker processes, by size."""
    pipes = []
    for _ in names:
        pipe, theirs = SPAWN.Pipe()
        SPAWN.Process(target=_worker, args=(theirs,), daemon=True).start()
        theirs.close()
        pipes.append(pipe)

    def tell(value: torch.Tensor) -> None:
        for pipe in pipes:
            ipc.send(pipe, value)

    def hear() -> None:
        for pipe in pipes:
            ipc.receive(pipe)

    try:
        return _by_size(sizes, tell, hear)
    finally:
        for pipe in pipes:
            pipe.close()


class Echo:
    """Actor's class, which answers with the value that came."""

    def take(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the value in a frame of its own."""
        return ipc.framed(ipc.unframed(frame))


def over_ray(_folder: Path, names: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
    """Return milliseconds with actors of a local Ray cluster, by size."""
    import ray  # noqa: PLC0415 (an extra)

    from securefl.simulation.processes.machines import Wanted  # noqa: PLC0415
    from securefl.simulation.ray.cluster import Cluster  # noqa: PLC0415

    with closing(Cluster(Wanted(len(names), 1, len(names)))):
        actor_class: Any = ray.remote(Echo)
        actors = [actor_class.options(num_cpus=1).remote() for _ in names]
        replies = list[Any]()

        def tell(value: torch.Tensor) -> None:
            replies.extend(actor.take.remote(ipc.framed(value)) for actor in actors)

        def hear() -> None:
            while replies:
                ipc.unframed(ray.get(replies.pop(0)))

        return _by_size(sizes, tell, hear)


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

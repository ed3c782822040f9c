"""One exchange of a server with three sites over NVIDIA FLARE's simulator, beside gRPC.

Each site is sent so many bytes, and answers with as many. Both carry the same frames; nothing is
trained, sealed for an authority, or parsed. Here each site is a process, as NVIDIA FLARE has it:
    pip install 'securefl[nvflare]' && python benchmarks/nvflare_calls.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

from nvflare.collab import collab
from roles import SERVER
from transport import exchanges

from securefl.errors import PeerError
from securefl.network.connect import connected, listening
from securefl.network.frames import Frame, Link
from securefl.nvflare.calls import ByCalls, CalledHere
from securefl_cli.nvflare_job import Published, ServersCalls
from securefl_keys.rehearsal import make_consortium
from securefl_keys.sound_bundle import SoundBundle, process_identity

SIZES = (1_000, 100_000, 1_000_000)
"""Bytes each way."""
REPEATS = 30
WITHIN_S = 60
"""For all sites to be there."""


def _party(folder: Path, name: str, role: Any) -> tuple[Any, SoundBundle]:
    bundle = SoundBundle.load(folder / "bundles" / role, role)
    passphrase = (folder / "passphrase").read_text().strip()
    return process_identity(folder / name, passphrase, bundle.ca, role), bundle


class MeasuringServer(Published):
    """Server's side of the job: asks all sites at once, and writes the medians down."""

    def __init__(self, folder: str, sizes: Sequence[int]) -> None:
        super().__init__()
        self.folder = folder
        self.sizes = sizes

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """Measure."""
        found = asyncio.run(self._measured())
        (Path(self.folder) / "found.json").write_text(json.dumps(found))

    async def _measured(self) -> dict[int, float]:
        links = dict[str, Link]()
        hub, _ = _party(Path(self.folder), SERVER, "server")

        async def hold(link: Link) -> None:
            links[str(len(links))] = link
            await link.ended()

        n_sites = len(json.loads((Path(self.folder) / "sites.json").read_text()))
        door = await listening(
            hub, lambda _: "a site", CalledHere(self.listens), hold, print, n_sites
        )
        async with asyncio.timeout(WITHIN_S):
            while len(links) < n_sites:
                await asyncio.sleep(0.05)
        found = {size: await _median_ms(links, size) for size in self.sizes}
        for link in links.values():
            link.close()
        await door.stop()
        return found


async def _median_ms(links: Mapping[str, Link], size: int) -> float:
    body, times = bytes(size), []

    async def ask(link: Link) -> None:
        await link.send(Frame.ROUND, body)
        await link.receive({Frame.MESSAGE: size})

    for _ in range(REPEATS):
        start = time.perf_counter()
        await asyncio.gather(*map(ask, links.values()))
        times.append(1000 * (time.perf_counter() - start))
    return median(times)


class AnsweringSite:
    """A site's side of the job: answers with as many bytes as come."""

    def __init__(self, folder: str, sizes: Sequence[int]) -> None:
        self.folder = folder
        self.sizes = sizes

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """Call the server, in a thread of its own."""
        own, trust = _party(Path(self.folder), collab.site_name, "client")
        to, most = ByCalls(ServersCalls()), max(self.sizes)

        async def answer() -> None:
            link = await connected(own, trust, "server", to, WITHIN_S)
            while True:
                received = await link.receive({Frame.ROUND: most})
                await link.send(Frame.MESSAGE, received.body)

        Thread(target=_until_gone, args=(answer,), daemon=True).start()


def _until_gone(work: Callable[[], Any]) -> None:
    try:
        asyncio.run(work())
    except PeerError as error:
        print(error)


def over_nvflare(folder: Path, names: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
    """Return the milliseconds of an exchange over NVIDIA FLARE, the median, by its size."""
    args = {"folder": str(folder), "sizes": list(sizes)}
    runtime, app = "nvflare.collab.runtime", folder / "job/app/config"
    controller = {"path": f"{runtime}.controller.CollabController", "id": "controller"}
    executor = {"path": f"{runtime}.executor.CollabExecutor", "args": {"client_obj_id": "own"}}
    files = {
        folder / "sites.json": list(names),
        folder / "job/meta.json": {
            "name": "calls",
            "resource_spec": {},
            "min_clients": len(names),
            "deploy_map": {"app": ["@ALL"]},
        },
        app / "config_fed_server.json": {
            "format_version": 2,
            "workflows": [controller | {"args": {"server_obj_id": "own"}}],
            "components": [{"id": "own", "path": "nvflare_calls.MeasuringServer", "args": args}],
        },
        app / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [{"id": "own", "path": "nvflare_calls.AnsweringSite", "args": args}],
        },
    }
    app.mkdir(parents=True)
    for path, content in files.items():
        path.write_text(json.dumps(content))
    resources = {"format_version": 2, "class_allow_list": ["nvflare_calls.", f"{runtime}."]}
    command: list[str | Path] = [Path(sys.executable).parent / "nvflare", "simulator"]
    command += [folder / "job", "-w", folder / "work", "-c", ",".join(names)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])
    }
    local = folder / "work/local"
    local.mkdir(parents=True)
    (local / "resources.json").write_text(json.dumps(resources))
    with (folder / "simulator.log").open("wb") as log:
        subprocess.run(
            [*command, "-t", str(len(names))], env=environment, stdout=log, stderr=log, check=False
        )
    found = folder / "found.json"
    if not found.exists():
        raise SystemExit((folder / "simulator.log").read_text()[-4000:])
    return {int(size): ms for size, ms in json.loads(found.read_text()).items()}


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[int, float]]:
    """Measure both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args(arguments)
    names = [f"client-{i}" for i in range(1, options.clients + 1)]
    passphrase = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_consortium(folder, names, SERVER, passphrase, name="Loopback")
        (folder / "passphrase").write_text(passphrase)
        found = {
            "gRPC": asyncio.run(exchanges(folder, names, options.sizes, passphrase)),
            "NVIDIA FLARE": over_nvflare(folder, names, options.sizes),
        }
    print("| ms | " + " | ".join(f"{size:,} bytes" for size in options.sizes) + " |")
    print("|---|" + "---:|" * len(options.sizes))
    for carrier, times in found.items():
        print(f"| {carrier} | " + " | ".join(f"{ms:,.1f}" for ms in times.values()) + " |")
    return found


if __name__ == "__main__":
    main()

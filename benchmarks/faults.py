"""Faults of machines and networks that a script brings about: cut connections, clocks, disks."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
STEP_S = 3600
"""Seconds by which clocks are stepped."""
DISK_BYTES = 2**24
MOST_HEARD = 2**14
MACHINE_FAULTS = Path(__file__).parent / "machine_faults"
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Carrier of bytes between callers, each of which has an address, and one server."""

    def __init__(self, to: str, callers: Sequence[str]) -> None:
        self._host, _, port = to.rpartition(":")
        self._port = int(port)
        self._loop = asyncio.new_event_loop()
        self._live: dict[str, set[asyncio.StreamWriter]] = {name: set() for name in callers}
        self.heard: dict[str, bytes] = {}
        """Bytes with which each caller has begun its last connection."""
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.addresses = {name: self._now(self._listen(name)) for name in callers}

    def _now(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self, name: str) -> str:
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry(name, reader, writer)

        server = await asyncio.start_server(carry, "127.0.0.1", 0)
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _carry(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        live, ends = self._live[name], {writer}
        try:
            there, back = await asyncio.open_connection(self._host, self._port)
            ends.add(back)
            live |= ends
            self.heard[name] = b""

            def hear(chunk: bytes) -> None:
                self.heard[name] = (self.heard[name] + chunk)[:MOST_HEARD]

            await asyncio.gather(_copy(reader, back, hear), _copy(there, writer))
        except OSError:
            pass
        finally:
            live -= ends
            for end in ends:
                end.close()

    def cut(self, name: str) -> bool:
        """Reset a caller's connections; False where it has none."""
        return self._now(self._cut(name))

    async def _cut(self, name: str) -> bool:
        ends = [(end.get_extra_info("socket"), end.transport) for end in self._live[name]]
        open_ends = [(own, transport) for own, transport in ends if own.fileno() >= 0]
        for own, transport in open_ends:  # others have closed by themselves this moment
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        return bool(open_ends)

    def close(self) -> None:
        """Carry nothing any more."""
        self._now(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        carrying = asyncio.all_tasks() - {asyncio.current_task()}
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)
        await asyncio.sleep(0.1)  # transports close in the loop's next steps


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    hear: Callable[[bytes], None] = lambda _chunk: None,
) -> None:
    with suppress(OSError):
        while chunk := await reader.read(2**16):
            hear(chunk)
            writer.write(chunk)
            await writer.drain()
    writer.close()


@dataclass(frozen=True, slots=True)
class Clock:
    """Clock of a party, which a file steps (`machine_faults/sitecustomize.py`)."""

    file: Path

    def step(self, *, forwards: bool) -> None:
        """Step it an hour: forwards, or backwards; never further than an hour off."""
        now = int(self.file.read_text()) if self.file.exists() else 0
        there = now + STEP_S if forwards else now - STEP_S
        if abs(there) > STEP_S:
            there = 2 * now - there
        new = self.file.with_suffix(".new")
        new.write_text(str(there))
        new.replace(self.file)


@dataclass(frozen=True, slots=True)
class Disk:
    """Disk of a party's own; or, where nothing may be mounted, one that says that it is full."""

    folder: Path
    mounted: bool
    flag: Path
    """While this file exists, nothing gets to the disk."""

    def fill(self) -> None:
        """Leave no room."""
        if not self.mounted:
            self.flag.touch()
            return
        with suppress(OSError), (self.folder / "full").open("wb", buffering=0) as file:
            for size in (2**20, 2**12):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def empty(self) -> None:
        """Give the room back."""
        (self.folder / "full").unlink(missing_ok=True)
        self.flag.unlink(missing_ok=True)


def environment(clock: Clock, disk: Disk) -> dict[str, str]:
    """Return the variables of a process that has this clock, and this disk."""
    paths = [str(MACHINE_FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "STEPPED_CLOCK": str(clock.file),
        "FULL_DISK": str(disk.flag),
    }


@contextmanager
def disks(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Disk]]:
    """Yield a disk for each party, in a folder of its own."""
    made: dict[str, Disk] = {}
    try:
        for name in names:
            own = folder / name
            own.mkdir(parents=True)
            words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(own)]
            mounted = _runs(words)
            made[name] = Disk(own, mounted, folder / f"{name}.full")
        yield made
    finally:
        for disk in made.values():
            if disk.mounted:
                _runs(["umount", str(disk.folder)])


def _runs(words: Sequence[str], run: Callable[..., Any] = subprocess.run) -> bool:
    try:
        return bool(run(words, capture_output=True, check=False).returncode == 0)
    except OSError:
        return False

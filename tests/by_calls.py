"""A listener whose functions are called in this process, and whoever stands in between."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from processes import SERVER

from securefl.network.connect import listening
from securefl.network.identity import name_of
from securefl.network.stream import FINISH_S
from securefl.nvflare.calls import ByCalls, CalledHere

__all__ = ["FINISH_S", "Between", "federation_by_calls", "heard"]


@dataclass
class Between:
    """Carrier of one site's calls, which sees all that it carries, and may do as it likes."""

    name: str
    desk: object = None
    given: list[tuple[str, bytes]] = field(default_factory=list)
    taken: list[tuple[str, bytes]] = field(default_factory=list)
    on_give: object = None
    """Function of a chunk that gives those in its place."""
    on_take: object = None
    """Function of a chunk that takes the one in its place."""
    down: bool = False

    def begin(self, connection, chunk):
        self._require_up()
        self.given.append((connection, chunk))
        return self.desk.begin(self.name, connection, chunk)

    def give(self, connection, chunk):
        self._require_up()
        self.given.append((connection, chunk))
        said = "taken"
        for each in self.on_give(chunk) if self.on_give else [chunk]:
            said = self.desk.give(self.name, connection, each)
        return said

    def take(self, connection):
        self._require_up()
        chunk = self.desk.take(self.name, connection)
        if chunk:
            self.taken.append((connection, chunk))
            if self.on_take:
                return self.on_take(chunk)
        return chunk

    def leave(self, connection):
        self._require_up()
        self.desk.leave(self.name, connection)

    def _require_up(self):
        if self.down or self.desk is None:
            raise RuntimeError("no callback is registered")


@asynccontextmanager
async def heard(site, serve, said, role="client", admitted=None, between=None, own=None):
    """Start a server that listens, as `Between` reaches it for one site."""
    between, bundle = between or Between("alice"), site.bundle("server")

    def named(certificate):
        return name_of(bundle.transport_holder, certificate, role)

    def publish(desk):
        between.desk = desk

    listener = own or site.identity(SERVER, "server")
    door = await listening(listener, admitted or named, CalledHere(publish), serve, said.append)
    try:
        yield between
    finally:
        await door.stop()


async def federation_by_calls(loop, folder, officers=None):
    """Run all parts of a `processes.Loop`, each site over calls of its own; return who carried.

    `officers` are parts that more sites do, by name (`nvflare_site.party`).
    """
    officers = officers or {}
    # Each caller waits in a thread of its own process's; here they share one.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
    betweens = {name: Between(name) for name in (*loop.clients, "authority", *officers)}

    def publish(desk):
        for between in betweens.values():
            between.desk = desk

    serving = asyncio.create_task(loop.server.run(CalledHere(publish), folder))
    tasks = {
        name: asyncio.create_task(client.run(ByCalls(betweens[name]), 20.0))
        for name, client in loop.clients.items()
    }
    opening = []
    if loop.keeper:
        process = loop.authority()
        own = loop.site.identity("authority", "authority")
        opening.append(asyncio.create_task(process.run(own, ByCalls(betweens["authority"]))))
    for name, part in officers.items():
        opening.append(asyncio.create_task(part(ByCalls(betweens[name]))))
    try:
        await serving
        await asyncio.gather(*tasks.values())
    finally:
        for task in (serving, *tasks.values(), *opening):
            task.cancel()
        await asyncio.gather(serving, *tasks.values(), *opening, return_exceptions=True)
    return betweens

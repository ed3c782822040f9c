"""Both sides of a job, as NVIDIA FLARE builds and calls them in its job processes.

It carries the sites' calls to the server, and sees sealed chunks. Lines go to its log below ERROR:
errors it may pass on to the server, with a site's paths in them.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from securefl.errors import ConfigError, SecureFLError
from securefl.io.text import printable
from securefl.nvflare.calls import FULL, HELD_S, OVER, ByCalls, CalledHere, Desk
from securefl.settings.digests import Digests
from securefl_cli.nvflare_site import party, server, site_file

try:
    from nvflare.collab import collab
except ImportError as error:
    raise ConfigError(
        "NVIDIA FLARE 2.9 or later is not installed here: pip install 'securefl[nvflare]'"
    ) from error

CALL_S = 60.0
"""Seconds after which a call that nobody answers has not come through."""
STOP_S = 10.0
"""Seconds for a site's part to end."""
LOOK_S = 0.5
"""Seconds between two looks whether the job was aborted."""
_log = logging.getLogger("securefl")


def _say(line: str) -> None:
    _log.info("%s", printable(line))


class Published:
    """Functions of the server that sites may call, once it listens."""

    def __init__(self) -> None:
        self._desk: Desk | None = None
        self._opened = Event()

    def listens(self, desk: Desk) -> None:
        """Take the desk that answers from now on."""
        self._desk = desk
        self._opened.set()

    @collab.publish  # type: ignore[untyped-decorator]
    def begin(self, connection: str, chunk: bytes) -> str:
        """Begin a chunk, see `Calls.begin`; until the server listens, it is to be tried again."""
        self._opened.wait(HELD_S)
        return self._desk.begin(collab.caller, connection, chunk) if self._desk else FULL

    @collab.publish  # type: ignore[untyped-decorator]
    def give(self, connection: str, chunk: bytes) -> str:
        """Give a chunk: see `Calls.give`."""
        return self._desk.give(collab.caller, connection, chunk) if self._desk else OVER

    @collab.publish  # type: ignore[untyped-decorator]
    def take(self, connection: str) -> bytes | None:
        """Take a chunk: see `Calls.take`."""
        return self._desk.take(collab.caller, connection) if self._desk else b""

    @collab.publish  # type: ignore[untyped-decorator]
    def leave(self, connection: str) -> None:
        """Leave: see `Calls.leave`."""
        if self._desk:
            self._desk.leave(collab.caller, connection)


class ServerSide(Published):
    """Server's part, in the process of the job at NVIDIA FLARE's server."""

    def __init__(self, settings: str, by_setting: Digests) -> None:
        """Take the job's settings as digests, see `nvflare_site.server`."""
        super().__init__()
        self.settings = settings
        self.by_setting = by_setting

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """Run all rounds that are left; NVIDIA FLARE ends the job with what this raises."""
        file, aborted = site_file(_local()), collab.context.is_aborted
        with server(file, self.settings, self.by_setting, _say) as work:
            if work:
                asyncio.run(_until(aborted, work(CalledHere(self.listens))))


class ServersCalls:
    """Functions of the server, called over NVIDIA FLARE, in any thread."""

    def __init__(self) -> None:
        self._server = collab.server(timeout=CALL_S)

    def begin(self, connection: str, chunk: bytes) -> str:
        """Begin a chunk at the server: see `Calls.begin`."""
        return str(self._server.begin(connection, chunk))

    def give(self, connection: str, chunk: bytes) -> str:
        """Give a chunk to the server: see `Calls.give`."""
        return str(self._server.give(connection, chunk))

    def take(self, connection: str) -> bytes | None:
        """Take a chunk from the server: see `Calls.take`."""
        chunk: bytes | None = self._server.take(connection)
        return chunk

    def leave(self, connection: str) -> None:
        """Leave the server: see `Calls.leave`."""
        self._server.leave(connection)


class SiteSide:
    """Part of a client, the authority or an officer, in the process of the job at its site."""

    def __init__(self, settings: str, by_setting: Digests) -> None:
        """Take the job's settings as digests, see `nvflare_site.party`."""
        self.settings = settings
        self.by_setting = by_setting
        self._ended = Event()
        self._thread: Thread | None = None

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """Read the site's files, and begin; a site that cannot take part fails the job."""
        with ExitStack() as stack:
            try:
                file = site_file(_local())
                work = stack.enter_context(party(file, self.settings, self.by_setting, _say))
            except SecureFLError as error:
                _say(f"This site does not take part: {error}")
                raise RuntimeError("this site does not take part; its own log says why") from None
            job, calls = stack.pop_all(), ByCalls(ServersCalls())
        self._thread = Thread(target=self._run, args=(job, work(calls)), daemon=True)
        self._thread.start()

    def _run(self, job: ExitStack, work: Coroutine[Any, Any, None]) -> None:
        with job:
            try:
                asyncio.run(_until(self._ended.is_set, work))
            except SecureFLError as error:
                _say(f"This site takes no further part: {error}")

    @collab.final  # type: ignore[untyped-decorator]
    def end(self) -> None:
        """End this site's part with the job."""
        self._ended.set()
        if self._thread:
            self._thread.join(STOP_S)


async def _until(over: Callable[[], bool], work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or cancel it once it is over."""
    task = asyncio.ensure_future(work)
    while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
        if over():
            task.cancel()
    with suppress(asyncio.CancelledError):
        task.result()


def _local() -> Path:
    """Return the folder of the startup kit in which a site has files of its own."""
    return Path(collab.workspace.get_site_config_dir())

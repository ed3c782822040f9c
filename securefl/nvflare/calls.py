"""Connections as functions that a caller calls: `begin`, `give`, `take` and `leave`.

The system in between calls the listener's functions in threads, each call of which ends after
seconds, and is asked again: so chunks go both ways, though one end alone can call.
"""

import asyncio
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from securefl.errors import PeerError
from securefl.network import stream
from securefl.network.connect import HANDSHAKE_S, MOST_OF_ONE, Door, NobodyAnswers
from securefl.network.frames import Link
from securefl.network.identity import ProcessIdentity, host_of
from securefl.network.stream import CLOSED
from securefl.network.trust import Role, Trust
from securefl.nvflare.handshake import callers_tls, greeted, introduced, listeners_tls
from securefl.nvflare.stream import PIECE_BYTES, TlsStream

TAKEN, FULL, OVER = "taken", "full", "over"
"""Answers to `give`: to a chunk that was not taken, FULL says that it may be given again."""
HELD_S = 5.0
"""Most seconds that a call waits, for a chunk or for room."""
Result = TypeVar("Result")


class Calls(Protocol):
    """Functions of the listener, as a caller reaches them; any error is the end of a connection."""

    def begin(self, connection: str, chunk: bytes) -> str:
        """Begin a connection with its first chunk; see `give`."""

    def give(self, connection: str, chunk: bytes) -> str:
        """Hand the next chunk over; return TAKEN, FULL or OVER."""

    def take(self, connection: str) -> bytes | None:
        """Return the next chunk; None where none has come yet, empty where none will."""

    def leave(self, connection: str) -> None:
        """End a connection."""


class _Unreachable(PeerError):
    """A call that has not come through."""


class CallersWay:
    """Caller's end; a `Way`. It waits for answers in threads."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.connection = secrets.token_hex(16)
        self._begun = asyncio.Event()

    async def give(self, chunk: bytes) -> None:
        """Give a chunk: see `Way.give`."""
        give = self.calls.give if self._begun.is_set() else self.calls.begin
        while (said := await _through(give, self.connection, chunk)) == FULL:
            pass
        if said != TAKEN:
            raise PeerError(CLOSED)
        self._begun.set()

    async def take(self) -> bytes:
        """Take a chunk: see `Way.take`."""
        await self._begun.wait()  # a call may overtake another, and a chunk is the first
        while (chunk := await _through(self.calls.take, self.connection)) is None:
            pass
        return chunk

    async def leave(self) -> None:
        """Leave: see `Way.leave`."""
        with suppress(PeerError):
            await _through(self.calls.leave, self.connection)


async def _through(call: Callable[..., Result], *what: object) -> Result:
    try:
        return await asyncio.to_thread(call, *what)
    except Exception as error:  # whatever the system in between raises
        raise _Unreachable(f"the connection is lost ({type(error).__name__})") from error


@dataclass(frozen=True, slots=True)
class ByCalls:
    """Listener that is reached by calls; a `Destination`."""

    calls: Calls
    name: str = "NVIDIA FLARE"

    def __str__(self) -> str:
        return self.name

    async def called(self, identity: ProcessIdentity, trust: Trust, role: Role) -> Link:
        """Begin a connection: see `Destination.called`."""
        end = TlsStream(CallersWay(self.calls), callers_tls(identity), host_of(role))
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                name, certificate = await introduced(identity, trust, role, end)
        except TimeoutError:
            end.close()
            raise NobodyAnswers(f"nothing came within {HANDSHAKE_S:g} s") from None
        except _Unreachable as error:
            end.close()
            raise NobodyAnswers(str(error)) from error
        except BaseException:
            end.close()
            raise
        return Link(name, end, certificate)


class Lane:
    """Chunks in one direction, of which few wait."""

    def __init__(self) -> None:
        self._chunks = deque[bytes]()
        self._changed = asyncio.Event()
        self.ended = False
        """True once nothing more comes in."""

    async def put(self, chunk: bytes) -> bool:
        """Put a chunk in, once there is room; return False where the lane has ended."""
        await self._until(lambda: len(self._chunks) < stream.AHEAD)
        if not self.ended:
            self._chunks.append(chunk)
            self._changed.set()
        return not self.ended

    async def take(self) -> bytes:
        """Return the next chunk, once there is one; empty where none will come."""
        await self._until(lambda: bool(self._chunks))
        self._changed.set()
        return self._chunks.popleft() if self._chunks else b""

    def end(self) -> None:
        """Let nothing more in; what is there can be taken."""
        self.ended = True
        self._changed.set()

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not (self.ended or ready()):
            self._changed.clear()
            await self._changed.wait()


class ListenersWay:
    """Listener's end of one connection; a `Way`."""

    def __init__(self) -> None:
        self.there, self.back = Lane(), Lane()
        self._heard_at = 0.0
        self.hear()

    def hear(self) -> None:
        """Take note that the caller has called."""
        self._heard_at = time.monotonic()

    @property
    def silent(self) -> bool:
        """True where the caller does not even ask."""
        return time.monotonic() - self._heard_at > stream.SILENT_S

    async def give(self, chunk: bytes) -> None:
        """Give a chunk: see `Way.give`."""
        if not await self.back.put(chunk):
            raise PeerError(CLOSED)

    async def take(self) -> bytes:
        """Take a chunk: see `Way.take`."""
        while not self.silent:
            with suppress(TimeoutError):
                async with asyncio.timeout(stream.BEAT_S):
                    return await self.there.take()
        await self.leave()
        raise PeerError(f"silent for {stream.SILENT_S:g} s, the connection is lost")

    async def leave(self) -> None:
        """Leave: see `Way.leave`."""
        self.there.end()
        self.back.end()


class Desk:
    """Connections of all callers, at the listener's; its functions are called in threads."""

    def __init__(self, door: Door, most: int) -> None:
        self._door = door
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._ways: dict[tuple[str, str], ListenersWay] = {}
        self._tls = listeners_tls(door.identity)
        self._serving = dict[asyncio.Task[None], TlsStream]()
        self._told = asyncio.Event()
        self._closing = False

    def begin(self, caller: str, connection: str, chunk: bytes) -> str:
        """Begin as `Calls.begin`; `caller` is a name that the system in between vouches for."""
        return self._waited(self._begin((caller, connection), chunk), OVER)

    def give(self, caller: str, connection: str, chunk: bytes) -> str:
        """Give a chunk: see `Calls.give`."""
        return self._waited(self._give((caller, connection), chunk), OVER)

    def take(self, caller: str, connection: str) -> bytes | None:
        """Take a chunk: see `Calls.take`."""
        return self._waited(self._take((caller, connection)), b"")

    def leave(self, caller: str, connection: str) -> None:
        """Leave: see `Calls.leave`."""
        self._waited(self._left((caller, connection)), None)

    def _waited(self, work: Coroutine[Any, Any, Result], after: Result) -> Result:
        """Do the work in the listener's loop; where that has ended, the answer is `after`."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            return after
        try:
            return future.result(stream.SILENT_S)
        except (TimeoutError, CancelledError):
            return after

    async def _give(self, key: tuple[str, str], chunk: bytes) -> str:
        way = self._ways.get(key)
        if way is None or not 0 < len(chunk) <= PIECE_BYTES:
            return OVER
        way.hear()
        try:
            async with asyncio.timeout(HELD_S):
                return TAKEN if await way.there.put(chunk) else OVER
        except TimeoutError:
            return FULL

    async def _take(self, key: tuple[str, str]) -> bytes | None:
        if (way := self._ways.get(key)) is None:
            return b""
        way.hear()
        try:
            async with asyncio.timeout(HELD_S):
                chunk = await way.back.take()
        except TimeoutError:
            return None
        if not chunk:
            self._forget(key)
        return chunk

    async def _left(self, key: tuple[str, str]) -> None:
        if way := self._ways.get(key):
            await way.leave()
            self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        self._ways.pop(key, None)
        self._told.set()

    async def _begin(self, key: tuple[str, str], chunk: bytes) -> str:
        self._ways = {k: w for k, w in self._ways.items() if not (w.back.ended and w.silent)}
        of_each = Counter(caller for caller, _ in self._ways)
        full = len(self._ways) >= self._most or of_each[key[0]] >= MOST_OF_ONE
        if self._closing or full or key in self._ways:
            return OVER
        self._ways[key] = way = ListenersWay()
        end = TlsStream(way, self._tls)
        work = self._door.arrived(end, greeted(self._door.identity, end))
        self._serving[task := asyncio.ensure_future(work)] = end
        task.add_done_callback(self._serving.pop)
        return await self._give(key, chunk)

    async def stop(self) -> None:
        """End all connections, of which each has a moment more to be told."""
        self._closing = True
        for end in self._serving.values():
            end.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(stream.FINISH_S):
                while self._ways:
                    self._told.clear()
                    await self._told.wait()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


@dataclass(slots=True)
class CalledHere:
    """Entrance of this process, whose functions are called."""

    publish: Callable[[Desk], None]
    """Function that takes the functions that may be called from now on."""
    name: str = "NVIDIA FLARE"

    async def opened(
        self, door: Door, most: int
    ) -> tuple[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Open the entrance: see `Entrance.opened`."""
        desk = Desk(door, most)
        self.publish(desk)
        return self.name, desk.stop

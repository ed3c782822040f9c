"""Ends of a connection, and those by gRPC: chunks that come and go, and their end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc

from securefl.errors import PeerError

CHUNK_BYTES = 2**20
"""Most bytes of one chunk; what is longer travels in several."""
AHEAD = 2
"""Number of chunks that are read before anybody asks for them."""
WINDOW_BYTES = 2**21
"""Window in bytes that gRPC takes from a peer before anybody reads: 40 MB/s where an answer takes
50 ms. Left to itself it takes 30 MiB from each peer that is not read.
"""
BEAT_S = 5.0
"""Seconds between two pings of each end."""
SILENT_S = 30.0
"""Seconds without an answer to a ping, after which a connection is lost."""
FINISH_S = 2.0
"""Seconds for the peer to take what was written last."""
CLOSED = "has closed the connection"
_ENDED = (asyncio.InvalidStateError, grpc.aio.BaseError)
"""Errors of gRPC's where a stream that has ended is read or written."""


class Chunks(Protocol):
    """One end of a connection, whatever carries it."""

    closed: asyncio.Event
    """Set once this end has hung up."""

    @property
    def over(self) -> bool:
        """True once one of the two ends has hung up; what came before can still be read."""

    async def read(self) -> bytes:
        """Return the next chunk, which is never empty; raises PeerError where none will come."""

    async def write(self, chunk: bytes) -> None:
        """Send a chunk, once there is room for it; raises PeerError where the peer is gone."""

    def close(self) -> None:
        """Hang up, without waiting for what is still under way; safe to call twice."""

    async def finish(self) -> None:
        """Hang up once the peer has taken what was written."""


class ReadAhead:
    """Chunks of one end that are read before anybody asks for them.

    What the peer has said last is so here when a write finds the stream ended.
    """

    def __init__(self) -> None:
        self._chunks = asyncio.Queue[bytes](AHEAD)
        self._gone = asyncio.Event()
        self._why = PeerError(CLOSED)
        """Reason why no chunk comes any more."""
        self.closed = asyncio.Event()
        """Event of the end: see `Chunks.closed`."""

    async def _read_ahead(self, next_chunk: Callable[[], Awaitable[bytes]]) -> None:
        """Read until a chunk is empty, where the peer has hung up, or PeerError is raised."""
        try:
            while chunk := await next_chunk():
                await self._chunks.put(chunk)
        except PeerError as error:
            self._why = error
        finally:
            self._gone.set()
            if self._chunks.empty():
                self._chunks.put_nowait(b"")  # whoever waits is told

    @property
    def over(self) -> bool:
        """True once one end has hung up: see `Chunks.over`."""
        return self._gone.is_set()

    async def read(self) -> bytes:
        """Return the next chunk: see `Chunks.read`."""
        if not (self._gone.is_set() and self._chunks.empty()) and (
            chunk := await self._chunks.get()
        ):
            return chunk
        raise self._why

    async def gone(self) -> None:
        """Wait until one of the two ends has hung up."""
        await self._gone.wait()


class Stream:
    """One end by gRPC: `rpc` is the call, or its handler's context, which ends with `close`."""

    def __init__(self, rpc: Any) -> None:
        self._rpc = rpc
        self._closed = False
        self.error: grpc.RpcError | None = None
        """Reason why the stream was lost, in gRPC's words."""

    async def read(self) -> bytes:
        """See `Chunks.read`; one at a time."""
        try:
            chunk: bytes = await self._rpc.read()
        except grpc.RpcError as error:
            self.error = error
            raise PeerError(why_lost(error)) from error
        except _ENDED as error:
            raise PeerError(CLOSED) from error
        if chunk is grpc.aio.EOF:
            raise PeerError(CLOSED)
        return chunk

    async def write(self, chunk: bytes) -> None:
        """Write a chunk, one at a time: see `Chunks.write`."""
        if self._closed:
            raise PeerError(CLOSED)
        try:
            await self._rpc.write(chunk)
        except grpc.RpcError as error:
            raise PeerError(why_lost(error)) from error
        except _ENDED as error:
            raise PeerError(CLOSED) from error

    def close(self) -> None:
        """Close: see `Chunks.close`."""
        self._closed = True


class CallersStream(Stream):
    """End of whoever has called."""

    def __init__(self, call: Any, channel: Any) -> None:
        super().__init__(call)
        self._channel = channel
        self._closing: asyncio.Future[None] | None = None

    def close(self) -> None:
        """Close: see `Chunks.close`."""
        super().close()
        if self._closing is None:
            self._rpc.cancel()
            self._closing = asyncio.ensure_future(self._channel.close())


def why_lost(error: grpc.RpcError) -> str:
    """Return why a stream is over, as a message has it after the peer's name."""
    code, details = error.code(), error.details() or ""
    if "ping" in details.lower() or "keepalive" in details.lower():
        return f"silent for {SILENT_S:g} s, the connection is lost"
    if code in {grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL}:
        return CLOSED
    return f"the connection is lost ({details})" if details else "the connection is lost"

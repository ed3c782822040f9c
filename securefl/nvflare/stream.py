"""A stream of chunks on a way that is not trusted: sealed by keys of its own once both ends agree.

ChaCha20-Poly1305, with the number of the chunk as the nonce and a key for each direction. A chunk
that was changed, left out, repeated or moved is the end of the connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from securefl.errors import PeerError
from securefl.network import stream

TAG_BYTES = 16
"""Bytes by which a sealed chunk is longer."""
CLOSED = "has closed the connection"
_NUMBER_BYTES = 12


class Way(Protocol):
    """One end of whatever carries chunks, in order."""

    async def give(self, chunk: bytes) -> None:
        """Hand a chunk over, once there is room for it; raises PeerError where that is over."""

    async def take(self) -> bytes:
        """Return the next chunk, empty where the peer has hung up; raises PeerError if lost."""

    async def leave(self) -> None:
        """Hang up; what was given can still be taken."""


class Seal:
    """Key of one direction; it numbers the chunks."""

    def __init__(self, key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(key)
        self._n_chunks = 0

    def _next(self) -> bytes:
        self._n_chunks += 1
        return self._n_chunks.to_bytes(_NUMBER_BYTES, "big")

    def close(self, chunk: bytes) -> bytes:
        """Return the next chunk, sealed."""
        return self._cipher.encrypt(self._next(), chunk, None)

    def open(self, sealed: bytes) -> bytes:
        """Return the next chunk; raises PeerError where it is not the peer's next one."""
        try:
            return self._cipher.decrypt(self._next(), sealed, None)
        except InvalidTag:
            raise PeerError("a chunk came that is not the peer's next one") from None


class SealedStream:
    """One end, a `Chunks`; chunks travel as they are until `seal`.

    It reads ahead, as `network.stream.Stream` does.
    """

    def __init__(self, way: Way) -> None:
        self._way = way
        self._chunks = asyncio.Queue[bytes](stream.AHEAD)
        self._gone = asyncio.Event()
        self._why = PeerError(CLOSED)
        self._seals: tuple[Seal, Seal] | None = None
        self._leaving: asyncio.Future[None] | None = None
        self.closed = asyncio.Event()
        """See `Chunks.closed`."""
        self._reading = asyncio.ensure_future(self._read_ahead())

    def seal(self, sending: bytes, receiving: bytes) -> None:
        """Seal what is written from now on, and expect it of what is read, by these keys."""
        self._seals = Seal(sending), Seal(receiving)

    async def _read_ahead(self) -> None:
        try:
            while chunk := await self._way.take():
                await self._chunks.put(chunk)
        except PeerError as error:
            self._why = error
        finally:
            self._gone.set()
            if self._chunks.empty():
                self._chunks.put_nowait(b"")  # whoever waits is told

    @property
    def over(self) -> bool:
        """See `Chunks.over`."""
        return self._gone.is_set()

    async def read(self) -> bytes:
        """See `Chunks.read`."""
        if self._gone.is_set() and self._chunks.empty():
            raise self._why
        chunk = await self._chunks.get()
        if not chunk:
            raise self._why
        if not self._seals:
            return chunk
        try:
            return self._seals[1].open(chunk)
        except PeerError as error:
            self._why = error
            self.close()
            raise

    async def write(self, chunk: bytes) -> None:
        """See `Chunks.write`."""
        if self.closed.is_set():
            raise PeerError(CLOSED)
        try:
            await self._way.give(self._seals[0].close(chunk) if self._seals else chunk)
        except PeerError:
            with suppress(TimeoutError):  # what the peer has said last is on its way
                async with asyncio.timeout(stream.FINISH_S):
                    await self._gone.wait()
            raise

    def close(self) -> None:
        """See `Chunks.close`."""
        self.closed.set()
        self._gone.set()
        self._reading.cancel()
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(self._way.leave())

    async def finish(self) -> None:
        """See `Chunks.finish`: what was written can be taken after this end has left."""
        self.close()
        if self._leaving:
            await self._leaving

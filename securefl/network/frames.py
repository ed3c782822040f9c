"""Frames on a TLS stream. What comes next and how large it may be is known before it is read.

kind, 1 byte | length, 4 bytes, big-endian | body
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

from securefl.errors import PeerError

_HEAD = struct.Struct(">BI")
_CHUNK = 2**16
SMALL = 4096
"""Bytes of a JSON body that says one thing."""
BEAT_S = 5.0
"""Between two heartbeats of each end."""
SILENT_S = 30.0
"""Without a byte of the peer's, after which a connection is lost."""


class Frame(IntEnum):
    """Kind of a frame: the meaning of its body."""

    HELLO = 1
    """Client to server, first of all: who it is, and what settings it has."""
    WELCOME = 2
    """Server to client: the run."""
    ROUND = 3
    """Server to client: a round begins, from these tensors."""
    MESSAGE = 5
    """Client to server: one signed contribution (`federation.message`)."""
    TOTAL = 6
    """Server to client: a total in the middle of a round."""
    COUNTED = 7
    """Server to client: its contributions of this round count."""
    LEAVE = 8
    """Either way: this client is out of this round, and why."""
    GOODBYE = 9
    """From whoever listens, or to the authority: it is over, and why if that is a failure."""
    OPEN = 10
    """Server to authority: what is to be opened, and who has signed."""
    CIPHERTEXT = 11
    """Server to authority: the sum."""
    OPENED = 12
    """Authority to server: the total."""
    REFUSED = 13
    """Authority to server: why it does not open that."""
    READY = 14
    """Server to authority: a round is to begin, and what it will open."""
    STANDING = 15
    """Authority to server: what holds in that round; with bundles where these are news."""
    BUNDLE = 16
    """Server to client, before a round: the files of another epoch."""
    QUESTION = 21
    """Server to client: what it is asked beside its training, under these tensors."""
    DONE = 22
    """Client to server: it has trained, in a round to whose end nobody sends anything."""
    BEAT = 17
    """Either way, at any time: this end is alive. It has no body."""
    SCORES = 18
    """Server to authority: which profiles' scores are to be opened, and who has signed them."""
    SCORE_BYTES = 19
    """Server to authority: the scores' ciphertexts, one after the other."""
    OPENED_SCORES = 20
    """Authority to server: the scores, NaN in the place of what is none."""


@dataclass(frozen=True, slots=True)
class Received:
    """One frame, its body untrusted."""

    frame: Frame
    body: bytes


class Ear(asyncio.StreamReader):
    """A stream that knows when it has last heard of the peer, also where nobody reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.heard_at = time.monotonic()

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        """Take what has come."""
        self.heard_at = time.monotonic()
        super().feed_data(data)


class Link:
    """A connection to the one peer whose certificate bears this name."""

    def __init__(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer
        self._ended = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._silent = False

    @classmethod
    def alive(
        cls, transport: asyncio.Transport, protocol: asyncio.StreamReaderProtocol, ear: Ear
    ) -> Link:
        """Return a connection whose ends hear each other's heartbeats, or it is lost."""
        loop = asyncio.get_running_loop()
        link = cls("a peer", ear, asyncio.StreamWriter(transport, protocol, ear, loop))
        link._beating = loop.create_task(link._beat(transport, ear))
        return link

    async def _beat(self, transport: asyncio.Transport, ear: Ear) -> None:
        while not self.lost:
            await asyncio.sleep(BEAT_S)
            if not transport.is_reading():  # more has come than this end has read yet
                ear.heard_at = time.monotonic()
            if time.monotonic() - ear.heard_at > SILENT_S:
                self._silent = True
                transport.abort()  # whoever reads or writes here hears of it
            elif not (self.lost or transport.get_write_buffer_size()):
                self._writer.write(_HEAD.pack(Frame.BEAT, 0))

    async def send(self, frame: Frame, body: bytes = b"") -> None:
        """Send one frame; raises PeerError where the peer is gone, or this end has hung up."""
        if self.lost:  # asyncio fails in its own ways where a closed stream is written to
            raise self._loss()
        try:
            self._writer.write(_HEAD.pack(frame, len(body)) + body)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise self._loss(error) from error

    async def receive(self, allowed: Mapping[Frame, int]) -> Received:
        """Return the next frame: one of the `allowed` kinds, of at most so many bytes.

        Raises:
            PeerError: another kind, a larger one, or the peer is gone. Nothing was kept.
        """
        kind, length = await self._head()
        if kind not in allowed:
            names = " or ".join(frame.name for frame in allowed)
            raise PeerError(f"{self.name}: sent a frame of kind {kind}, expected {names}")
        frame = Frame(kind)
        if length > allowed[frame]:
            raise PeerError(
                f"{self.name}: {frame.name} of {length} bytes, at most {allowed[frame]} fit"
            )
        return Received(frame, await self._read(length))

    async def discard(self, frame: Frame) -> None:
        """Read a frame of this kind and keep nothing of it; raises PeerError as `receive`."""
        kind, length = await self._head()
        if kind != frame:
            raise PeerError(f"{self.name}: sent a frame of kind {kind}, expected {frame.name}")
        while length:
            length -= len(await self._read(min(length, _CHUNK)))

    async def _head(self) -> tuple[int, int]:
        """Kind and length of the next frame that says more than that the peer is alive."""
        while True:
            kind, length = _HEAD.unpack(await self._read(_HEAD.size))
            if (kind, length) != (Frame.BEAT, 0):
                return kind, length

    async def _read(self, n_bytes: int) -> bytes:
        try:
            return await self._reader.readexactly(n_bytes)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise self._loss(error) from error

    def _loss(self, error: Exception | None = None) -> PeerError:
        if self._silent:
            return PeerError(f"{self.name}: silent for {SILENT_S:g} s, the connection is lost")
        if error is None or isinstance(error, asyncio.IncompleteReadError):
            return PeerError(f"{self.name}: has closed the connection")
        return PeerError(f"{self.name}: the connection is lost ({_reason(error)})")

    def close(self) -> None:
        """Hang up, without waiting for what is still under way; safe to call twice."""
        if not self.lost:  # a TLS stream that is closed twice cannot be written to any more
            self._writer.close()
        if self._beating:
            self._beating.cancel()
        self._ended.set()

    async def gone(self) -> None:
        """Wait until a connection that was closed has let go of its descriptor."""
        with suppress(OSError):
            await self._writer.wait_closed()

    @property
    def lost(self) -> bool:
        """True once one of the two ends has hung up."""
        return self._writer.is_closing()

    async def hung_up(self) -> None:
        """Wait until the peer hangs up; whatever it still sends is let go."""
        with suppress(OSError):
            while await self._reader.read(2**16):
                pass

    @property
    def tls(self) -> ssl.SSLObject:
        """The encrypted connection, which knows the peer's certificate."""
        found: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        return found

    async def ended(self) -> None:
        """Wait until somebody closes this end."""
        await self._ended.wait()


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

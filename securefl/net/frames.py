"""Frames on a TLS stream. What comes next and how large it may be is known before it is read.

kind, 1 byte | length, 4 bytes, big-endian | body
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

from securefl.errors import PeerError

_HEAD = struct.Struct(">BI")
_CHUNK = 2**16
SMALL = 4096
"""Bytes of a JSON body that says one thing."""


class Frame(IntEnum):
    """What a frame's body is."""

    HELLO = 1
    """Client to server, first of all: who it is, and what settings it has."""
    WELCOME = 2
    """Server to client: the run."""
    ROUND = 3
    """Server to client: a round begins; the model follows."""
    MODEL = 4
    """Server to client: the global tensors, as safetensors."""
    MESSAGE = 5
    """Client to server: one signed contribution (`roles.wire`)."""
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


@dataclass(frozen=True, slots=True)
class Received:
    """One frame, its body untrusted."""

    frame: Frame
    body: bytes


class Link:
    """A connection to the one peer whose certificate bears this name."""

    def __init__(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer
        self._ended = asyncio.Event()

    async def send(self, frame: Frame, body: bytes = b"") -> None:
        """Send one frame; raises PeerError where the peer is gone."""
        try:
            self._writer.write(_HEAD.pack(frame, len(body)) + body)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise PeerError(f"{self.name}: the connection is lost ({_reason(error)})") from error

    async def receive(self, allowed: Mapping[Frame, int]) -> Received:
        """The next frame: one of the `allowed` kinds, of at most so many bytes.

        Raises:
            PeerError: another kind, a larger one, or the peer is gone. Nothing was kept.
        """
        try:
            kind, length = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            if kind not in allowed:
                names = " or ".join(frame.name for frame in allowed)
                raise PeerError(f"{self.name}: sent a frame of kind {kind}, expected {names}")
            frame = Frame(kind)
            if length > allowed[frame]:
                raise PeerError(
                    f"{self.name}: {frame.name} of {length} bytes, at most {allowed[frame]} fit"
                )
            return Received(frame, await self._reader.readexactly(length))
        except asyncio.IncompleteReadError as error:
            raise PeerError(f"{self.name}: has closed the connection") from error
        except OSError as error:
            raise PeerError(f"{self.name}: the connection is lost ({_reason(error)})") from error

    async def discard(self, frame: Frame) -> None:
        """Read a frame of this kind and keep nothing of it; raises PeerError as `receive`."""
        try:
            kind, length = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            if kind != frame:
                raise PeerError(f"{self.name}: sent a frame of kind {kind}, expected {frame.name}")
            while length:
                length -= len(await self._reader.readexactly(min(length, _CHUNK)))
        except asyncio.IncompleteReadError as error:
            raise PeerError(f"{self.name}: has closed the connection") from error
        except OSError as error:
            raise PeerError(f"{self.name}: the connection is lost ({_reason(error)})") from error

    def close(self) -> None:
        """Hang up, without waiting for what is still under way."""
        self._writer.close()
        self._ended.set()

    @property
    def lost(self) -> bool:
        """Whether one of the two ends has hung up."""
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

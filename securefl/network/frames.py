"""Frames on a stream of chunks. What comes next and how large it may be is known before it is read.

kind, 1 byte | length, 4 bytes, big-endian | body

A frame begins with a chunk of its own; what does not fit goes on in further chunks.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from io import BytesIO

from cryptography import x509

from securefl.errors import PeerError
from securefl.network.stream import CHUNK_BYTES, Chunks

_HEAD = struct.Struct(">BI")
SMALL = 4096
"""Bytes of a JSON body that says one thing."""
Keep = Callable[[bytes], Awaitable[None]]
"""Function that returns once a chunk of a body may be kept."""


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
    """Server to client or officer, before a round: the files of another epoch."""
    QUESTION = 21
    """Server to client: what it is asked beside its training, under these tensors."""
    DONE = 22
    """Client to server: it has trained, in a round to whose end nobody sends anything."""
    LOG = 23
    """Server to authority: which rows of its log the run's folder lacks."""
    LOG_ROWS = 24
    """Authority to server: these rows, a line each; none where the folder has all."""
    CARDS = 25
    """Server to authority: clients' cards of a session."""
    CARDS_TAKEN = 26
    """Authority to server: the clients whose cards it refuses, and why."""
    KEY_SUMS = 27
    """Server to officer: what is to be opened, and who has signed; no ciphertext follows."""
    KEY_SUMS_ANSWER = 28
    """Officer to server: the sum of keys of each of its groups, one after the other."""
    SCORE_PARTS = 29
    """Officer to server: its parts of scores, a number for each of its groups."""
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


@dataclass(frozen=True, slots=True)
class Beginning:
    """First chunk of a frame, untrusted."""

    kind: int
    length: int
    """Bytes of the body, as its head says."""
    start: bytes
    """Beginning of the body."""


@dataclass(slots=True)
class Traffic:
    """Bytes of frames that have gone over connections."""

    sent_bytes: int = 0
    received_bytes: int = 0


class Link:
    """Connection to the one peer whose certificate bears this name."""

    def __init__(self, name: str, stream: Chunks, certificate: x509.Certificate) -> None:
        self.name = name
        self.certificate = certificate
        """Certificate of the peer by which it was let in: its transport's where it has called."""
        self.traffic = Traffic()
        """Bytes that are counted here; several connections may share one."""
        self._stream = stream
        self._sending = asyncio.Lock()

    async def send(self, frame: Frame, *body: bytes | memoryview) -> None:
        """Send one frame, whose body may come in parts, so that nobody has to join them.

        Raises:
            PeerError: the peer is gone, or this end has hung up.
        """
        length = sum(map(len, body))
        try:
            async with self._sending:  # no other frame between two chunks of this one
                for chunk in _chunks(_HEAD.pack(frame, length), *body):
                    await self._stream.write(chunk)
            self.traffic.sent_bytes += _HEAD.size + length
        except PeerError as error:
            raise self._loss(error) from error

    async def receive(self, allowed: Mapping[Frame, int]) -> Received:
        """Return the next frame: one of the `allowed` kinds, of at most so many bytes.

        Raises:
            PeerError: another kind, a larger one, or the peer is gone. Nothing was kept.
        """
        begun = await self.begun()
        frame = require_allowed(self.name, begun.kind, begun.length, allowed)
        return Received(frame, await self.rest(begun))

    async def discard(self, frame: Frame) -> None:
        """Read a frame of this kind and keep nothing of it; raises PeerError as `receive`."""
        begun = await self.begun()
        if begun.kind != frame:
            raise PeerError(
                f"{self.name}: sent a frame of kind {begun.kind}, expected {frame.name}"
            )
        async for _ in self._rest(begun.length - len(begun.start)):
            pass

    async def begun(self) -> Beginning:
        """Return the beginning of the next frame; raises PeerError where there is none."""
        chunk = await self._read()
        if len(chunk) < _HEAD.size:
            raise PeerError(f"{self.name}: sent a chunk of {len(chunk)} bytes, which is no frame")
        kind, length = _HEAD.unpack_from(chunk)
        return Beginning(kind, length, chunk[_HEAD.size :])

    async def rest(self, begun: Beginning, keep: Keep | None = None) -> bytes:
        """Return the body of a frame that has begun, once the rest has come.

        Where `keep` waits with a chunk, no further one is read, and the peer has to wait as well.

        Raises:
            PeerError: it is longer than it says, or the peer is gone.
        """
        body = BytesIO()  # whose value, unlike a list's joined chunks, is no second copy
        if keep:
            await keep(begun.start)
        body.write(begun.start)
        async for chunk in self._rest(begun.length - len(begun.start)):
            if keep:
                await keep(chunk)
            body.write(chunk)
        return body.getvalue()

    async def _rest(self, n_bytes: int) -> AsyncIterator[bytes]:
        """Yield the chunks of a body of which so many bytes are still to come."""
        while n_bytes > 0:
            chunk = await self._read()
            n_bytes -= len(chunk)
            yield chunk
        if n_bytes:
            raise PeerError(f"{self.name}: sent {-n_bytes} bytes more than a frame has")

    async def _read(self) -> bytes:
        try:
            chunk = await self._stream.read()
        except PeerError as error:
            raise self._loss(error) from error
        self.traffic.received_bytes += len(chunk)
        return chunk

    def _loss(self, error: PeerError) -> PeerError:
        return PeerError(f"{self.name}: {error}")

    def close(self) -> None:
        """Hang up, without waiting for what is still under way; safe to call twice."""
        self._stream.close()

    async def finish(self) -> None:
        """Hang up once the peer has taken what was sent."""
        await self._stream.finish()

    async def ended(self) -> None:
        """Wait until this end has hung up."""
        await self._stream.closed.wait()

    @property
    def lost(self) -> bool:
        """True once one of the two ends has hung up."""
        return self._stream.over


def _chunks(*parts: bytes | memoryview) -> Iterator[bytes]:
    """Yield parts in chunks, all but the last of which are full."""
    chunk = bytearray()
    for part in parts:
        view = memoryview(part)
        while len(chunk) + len(view) > CHUNK_BYTES:
            fits = CHUNK_BYTES - len(chunk)
            yield bytes(chunk) + view[:fits]
            chunk, view = bytearray(), view[fits:]
        chunk += view
    yield bytes(chunk)


def require_allowed(name: str, kind: int, length: int, allowed: Mapping[Frame, int]) -> Frame:
    """Return the kind of a frame of so many bytes; raises PeerError where it is not allowed."""
    if kind not in allowed:
        names = " or ".join(frame.name for frame in allowed)
        raise PeerError(f"{name}: sent a frame of kind {kind}, expected {names}")
    frame = Frame(kind)
    if length > allowed[frame]:
        raise PeerError(f"{name}: {frame.name} of {length} bytes, at most {allowed[frame]} fit")
    return frame

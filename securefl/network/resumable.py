"""Connections that outlive a cut: the caller calls anew, and both ends go on where they were.

Chunks are numbered in each direction, and kept until the peer has taken them. After a cut those
that have not arrived are sent again, byte for byte: whoever listens on the line learns nothing new.
A connection is the caller's certificate and a token that the listener has given it, over TLS.

chunk: number of chunks that its sender has taken, 8 bytes, big-endian | bytes, or none
place: token, 32 bytes | number of chunks that have arrived, 8 bytes, big-endian
"""

import asyncio
import secrets
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cryptography import x509

from securefl.errors import PeerError, SecureFLError
from securefl.network import stream as streams
from securefl.network.stream import CHUNK_BYTES, CLOSED, FINISH_S, Stream

GRACE_S = 5.0
"""For a caller to come back after a cut. One that was killed holds a round up for as long."""
PAUSE_S = 0.2
"""Before each call after a cut."""
KEPT_BYTES = 2**22
"""Bytes that the peer has not taken, above which nothing more is sent: 80 MB/s where an answer
takes 50 ms. Each end so holds at most that and a chunk, in each direction."""
UNTOLD_BYTES = 2**20
"""Bytes after which a peer is told that they were taken, where there is nothing to send it."""
_TAKEN, _PLACE = struct.Struct(">Q"), struct.Struct(">32sQ")
HEAD_BYTES = _TAKEN.size
_HUNG_UP = _TAKEN.pack(2**64 - 1)
_NEW = bytes(32)
"""In the place of a token: a caller has none yet, or the listener knows none."""
_REFUSED = _PLACE.pack(_NEW, 0)
_EACH_BYTES = 64
"""Memory that a chunk takes beside its bytes."""
_MOST_IDLE = 2
"""Chunks of one stream that say nothing new: one does, after a cut."""
_MOST_UNREAD_BYTES = KEPT_BYTES + CHUNK_BYTES + HEAD_BYTES + _EACH_BYTES


class Broken(PeerError):
    """An end that has no place to go on from: the connection is over, without a grace."""


class _HungUp(Broken):
    """The peer has hung up: all that it had to say has arrived."""


class Resumable:
    """One end of a connection, a `Chunks` over one stream after the other."""

    def __init__(self, token: bytes = _NEW) -> None:
        self.token = token
        self.closed = asyncio.Event()
        """Set once the connection is over: an end has hung up, or has not come back."""
        self.parted = False
        """True once nothing is sent any more, and no cut is waited out: the peer has hung up, too,
        or has not come back for what was said last."""
        self._why = PeerError(CLOSED)
        """Reason why it is over."""
        self._stream: Stream | None = None
        """The newest one, while it is not cut."""
        self._receiving: asyncio.Future[PeerError] | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._kept, self._kept_bytes = deque[bytes](), 0
        """Chunks that the peer has not taken."""
        self._n_taken_there = 0
        """Chunks that it has: the first that is kept has the number after it."""
        self._n_sent = 0
        """Chunks that have arrived there or are under way on this stream."""
        self._unread, self._unread_bytes = deque[bytes](), 0
        self._n_arrived = self._n_taken = self._untold_bytes = self._n_idle = 0
        self._listener: x509.Certificate | None = None
        """The one that a caller has called."""
        self._keeping: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """See `Chunks.over`."""
        return self.closed.is_set()

    @property
    def is_cut(self) -> bool:
        """True while the caller may come back."""
        return self._stream is None and not self.parted

    async def read(self) -> bytes:
        """See `Chunks.read`."""
        await self._until(lambda: bool(self._unread) or self.over)
        if not self._unread:
            raise self._why
        chunk = self._unread.popleft()
        self._unread_bytes -= len(chunk) + _EACH_BYTES
        self._n_taken += 1
        self._untold_bytes += len(chunk) + HEAD_BYTES + _EACH_BYTES  # as its sender counts them
        if self._untold_bytes >= UNTOLD_BYTES:
            self._wake()
        return chunk

    async def write(self, chunk: bytes) -> None:
        """See `Chunks.write`: there is room where the peer has taken enough of what was sent."""
        if len(chunk) > streams.CHUNK_BYTES:
            raise PeerError(f"is sent a chunk of {len(chunk)} bytes, which none has")
        await self._until(lambda: self._kept_bytes < KEPT_BYTES or self.over)
        if self.over:
            raise self._why
        self._kept.append(self._says_taken() + chunk)
        self._kept_bytes += len(self._kept[-1]) + _EACH_BYTES
        self._wake()

    def close(self) -> None:
        """See `Chunks.close`; what was written, and that this end hangs up, is sent meanwhile."""
        self.end(PeerError(CLOSED))

    async def finish(self) -> None:
        """See `Chunks.finish`; a peer whose connection is cut has its time to come back."""
        self.close()
        if self.is_cut and self._has_said_all:
            self.part(self._why)
        await self._until(lambda: self.parted or self._receiving is None)

    def end(self, why: PeerError) -> None:
        """Let the connection be over; what has arrived can still be read."""
        if not self.over:
            self._why = why
            self.closed.set()
            self._wake()

    def part(self, why: PeerError) -> None:
        """End, and wait for no caller any more."""
        self.end(why)
        self.parted = True
        self._wake()

    # Beginning, and going on.

    @property
    def place(self) -> bytes:
        """Place of this end, as it is said to the other."""
        return _PLACE.pack(self.token, self._n_arrived)

    def introduce(self, stream: Stream, listener: x509.Certificate, place: bytes) -> None:
        """Have a caller's end go on where the listener says that it is.

        Raises:
            Broken: the listener has not this connection, or is elsewhere in it; it is over.
        """
        try:
            token, n_there = read_place(place)
            self._require_same(token, listener)
            self.token, self._listener = token, listener
            self.go_on(stream, n_there)
        except Broken as error:
            self.part(error)
            raise

    def _require_same(self, token: bytes, listener: x509.Certificate) -> None:
        if token == _NEW or self.token not in {_NEW, token}:
            raise Broken("has this connection no more")
        if self._listener not in {None, listener}:
            raise Broken("has another certificate than before the cut")

    def go_on(self, stream: Stream, n_there: int) -> None:
        """Take up a stream, in the place of an older one, where so many chunks have arrived there.

        Raises:
            Broken: the two places do not fit; the connection is over.
        """
        if not self._n_taken_there <= n_there <= self._n_sent:
            why = Broken(
                f"says that {n_there} chunks have arrived, of {self._n_sent} that were sent and "
                f"{self._n_taken_there} that it had taken: the connection cannot go on"
            )
            self.part(why)
            raise why
        if self._receiving:
            self._receiving.cancel()  # which ends an older stream
            self._untold_bytes = UNTOLD_BYTES  # what was told last may be lost
        if self._grace and not self.over:  # for last words there is one grace
            self._grace.cancel()
            self._grace = None
        self._stream, self._n_sent, self._n_idle = stream, n_there, 0

    async def carry(self, stream: Stream, place: bytes = b"") -> None:
        """Carry chunks both ways, after this end's place, until one end hangs up, or a cut."""
        sending = asyncio.ensure_future(self._send_over(stream, place))
        self._receiving = receiving = asyncio.ensure_future(self._receive_over(stream))
        closed, why = asyncio.ensure_future(self.closed.wait()), PeerError(CLOSED)
        try:
            work = {sending, receiving, closed}
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            # What either end has said last is on its way.
            await asyncio.wait({receiving}, timeout=FINISH_S)
            if not receiving.done() and self.over:
                why = Broken(CLOSED)  # a peer that is there and says nothing
            elif receiving.done() and not receiving.cancelled():
                why = receiving.result()
            if isinstance(why, _HungUp):
                await self._said_last(sending, stream)
        finally:
            for task in (sending, receiving, closed):
                task.cancel()
            stream.close()
            if stream is self._stream:
                self._stream = None
                self._lose(why)
                self._wake()

    async def _said_last(self, sending: asyncio.Future[None], stream: Stream) -> None:
        """Wait until a peer that has hung up has heard the same of this end."""
        with suppress(PeerError, TimeoutError):
            async with asyncio.timeout(FINISH_S):
                await asyncio.wait({sending})
                if self._listener:  # which ends the stream; a caller's end would take words back
                    await stream.read()

    @property
    def _has_said_all(self) -> bool:
        """True for a listener's end of which the caller has taken all, and need not come back."""
        return self._listener is None and not self._kept

    def _lose(self, why: PeerError) -> None:
        if isinstance(why, Broken) or (self.over and self._has_said_all):
            self.part(why)
        elif not (self.parted or self._grace):
            late = PeerError(f"{why}, and was not made anew within {GRACE_S:g} s")
            self._grace = asyncio.get_running_loop().call_later(GRACE_S, self.part, late)

    def keep_up(self, stream: Stream, again: Callable[[], Awaitable[Stream]]) -> None:
        """Have a caller's chunks carried from now on, after each cut over what `again` returns.

        It introduces this end there, and raises PeerError where that fails.
        """
        self._keeping = asyncio.ensure_future(self._kept_up(stream, again))

    async def _kept_up(self, stream: Stream, again: Callable[[], Awaitable[Stream]]) -> None:
        await self.carry(stream)
        while not self.parted:
            await asyncio.sleep(PAUSE_S)
            with suppress(PeerError, TimeoutError):  # there may be time for another try
                async with asyncio.timeout(GRACE_S):
                    stream = await again()
                await self.carry(stream)

    # On one stream.

    async def _send_over(self, stream: Stream, place: bytes) -> None:
        with suppress(PeerError):  # the other direction says why
            if place:
                await stream.write(place)
            while stream is self._stream:
                if (at := self._n_sent - self._n_taken_there) < len(self._kept):
                    self._n_sent += 1
                    await stream.write(self._kept[at])
                elif self.over:
                    await stream.write(_HUNG_UP)
                    break
                elif self._untold_bytes >= UNTOLD_BYTES:
                    await stream.write(self._says_taken())
                else:
                    await self._until(self._has_to_say)

    def _has_to_say(self) -> bool:
        unsent = self._n_sent - self._n_taken_there < len(self._kept)
        return unsent or self.over or self._untold_bytes >= UNTOLD_BYTES

    def _says_taken(self) -> bytes:
        self._untold_bytes = 0
        return _TAKEN.pack(self._n_taken)

    async def _receive_over(self, stream: Stream) -> PeerError:
        """Receive until the stream is over; return why."""
        try:
            while (chunk := await stream.read()) != _HUNG_UP and stream is self._stream:
                self._arrive(chunk)
        except PeerError as error:
            return error
        why = _HungUp(CLOSED)
        if stream is self._stream:
            self.end(why)
        return why

    def _arrive(self, chunk: bytes) -> None:
        if len(chunk) < HEAD_BYTES:
            raise Broken(f"sent {len(chunk)} bytes, which are no chunk")
        (n_taken,) = _TAKEN.unpack_from(chunk)
        if n_taken > self._n_sent:
            raise Broken(f"says that it has taken {n_taken} chunks, of {self._n_sent} sent")
        if len(chunk) == HEAD_BYTES and n_taken <= self._n_taken_there:
            self._n_idle += 1
            if self._n_idle > _MOST_IDLE:
                raise Broken("says again and again what it has taken")
        while self._n_taken_there < n_taken:  # fewer stand in chunks that are sent again
            self._n_taken_there += 1
            self._kept_bytes -= len(self._kept.popleft()) + _EACH_BYTES
        if len(chunk) > HEAD_BYTES:
            self._n_arrived += 1
            self._unread.append(chunk[HEAD_BYTES:])
            self._unread_bytes += len(self._unread[-1]) + _EACH_BYTES
        if self._unread_bytes > _MOST_UNREAD_BYTES:
            raise Broken("sends more than it is told that was taken")
        self._wake()

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Connections:
    """Those of a listener, which their callers may take up again."""

    def __init__(
        self,
        serve: Callable[[Resumable, x509.Certificate], Awaitable[None]],
        admitted: Callable[[x509.Certificate], str],
        note: Callable[[str, str], None],
    ) -> None:
        """Take who serves a new connection, names a caller or raises, and notes a line on one."""
        self._serve, self._admitted, self._note = serve, admitted, note
        self._of: dict[bytes, tuple[Resumable, x509.Certificate]] = {}
        self._serving = set[asyncio.Task[None]]()

    async def arrived(self, stream: Stream, certificate: x509.Certificate, place: bytes) -> None:
        """Begin a connection, or go on with one, until the stream is over.

        Raises:
            PeerError: there is none of this caller's at that place.
        """
        try:
            token, n_there = read_place(place)
            end = self._found(token, certificate) if token != _NEW else self._begun(certificate)
            end.go_on(stream, n_there)
        except SecureFLError:
            with suppress(PeerError):
                await stream.write(_REFUSED)
            raise
        await end.carry(stream, end.place)

    def _begun(self, certificate: x509.Certificate) -> Resumable:
        for end, of in self._of.values():
            if end.is_cut and of.subject == certificate.subject and self._is_admitted(certificate):
                end.part(PeerError("its connection was cut, and it has begun another"))
        end = Resumable(secrets.token_bytes(len(_NEW)))
        self._of[end.token] = end, certificate
        self._serving.add(task := asyncio.ensure_future(self._served(end, certificate)))
        task.add_done_callback(self._serving.discard)
        return end

    def _is_admitted(self, certificate: x509.Certificate) -> bool:
        try:
            self._admitted(certificate)
        except SecureFLError:
            return False
        return True

    async def _served(self, end: Resumable, certificate: x509.Certificate) -> None:
        try:
            await self._serve(end, certificate)
            await end.finish()
        finally:
            del self._of[end.token]

    def _found(self, token: bytes, certificate: x509.Certificate) -> Resumable:
        name = self._admitted(certificate)
        end, of = self._of.get(token, (None, None))
        if end is None or end.parted:
            raise PeerError(f"{name}: goes on with a connection that is over")
        if of != certificate:
            raise PeerError(f"{name}: has the token of a connection that is not its own")
        self._note(f"{name}, cut", f"{name} has called again after a cut: its connection goes on")
        return end

    async def stop(self) -> None:
        """Hang up on all, each of whom has a moment to be told."""
        await asyncio.gather(*(end.finish() for end, _ in self._of.values()))
        await asyncio.gather(*self._serving, return_exceptions=True)


def read_place(chunk: bytes) -> tuple[bytes, int]:
    """Return a token and the number of chunks that have arrived; raises Broken."""
    if len(chunk) != _PLACE.size:
        raise Broken(
            f"says in {len(chunk)} bytes where its connection is, and not in {_PLACE.size}: "
            "install one release for all parties"
        )
    token, n_arrived = _PLACE.unpack(chunk)
    if token == _NEW and n_arrived:
        raise Broken(f"begins a connection of which {n_arrived} chunks have arrived")
    return token, n_arrived

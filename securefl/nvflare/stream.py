"""Stream of chunks on a way that is not trusted: TLS, whose records the way carries as they come.

chunk: length, 4 bytes, big-endian | bytes

A record that was changed, left out, repeated or moved is the end of the connection. So is the end
of the way: a peer that hangs up says so within TLS.
"""

import asyncio
import ssl
import struct
from contextlib import suppress
from typing import Protocol

from securefl.errors import PeerError
from securefl.network import stream

PIECE_BYTES = stream.CHUNK_BYTES + 2**12
"""Most bytes that are handed to a way at once: a chunk, and what its records add."""
CUT = "the connection was cut off"
NO_HANDSHAKE = "the handshake fails"
NOT_NEXT = "a chunk came that is not the peer's next one"
_LENGTH = struct.Struct(">I")


class Way(Protocol):
    """One end of whatever carries bytes in pieces, in order."""

    async def give(self, piece: bytes) -> None:
        """Hand a piece over, once there is room for it; raises PeerError where that is over."""

    async def take(self) -> bytes:
        """Return the next piece, empty where the peer has hung up; raises PeerError if lost."""

    async def leave(self) -> None:
        """Hang up; what was given can still be taken."""


class TlsStream(stream.ReadAhead):
    """One end, a `Chunks` from the moment that both have agreed."""

    def __init__(self, way: Way, context: ssl.SSLContext, listener: str | None = None) -> None:
        """Take the way and the context of this side; a caller names the host that must answer."""
        super().__init__()
        self._way = way
        # TLS reads and writes two buffers in memory; the way carries what comes out to the peer's.
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._going, listener is None, listener)
        self._sending = asyncio.Lock()
        self._torn = False
        self._reading: asyncio.Future[None] | None = None
        self._leaving: asyncio.Future[None] | None = None

    async def agree(self) -> bytes:
        """Shake hands, then read ahead; return the peer's certificate, in DER.

        Raises:
            PeerError: it has none of the CA's for its side, or is gone.
        """
        while not await self._agreed():
            self._coming.write(await self._taken())
        self._reading = asyncio.ensure_future(self._read_until_left())
        shown = self._tls.getpeercert(binary_form=True)
        if not shown:
            raise PeerError("a peer that shows no certificate")
        return shown

    async def _agreed(self) -> bool:
        """Go on with the handshake as far as what has come allows; return whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            await self._hand_over()
            return False
        except ssl.SSLError as error:
            with suppress(PeerError):  # the peer is told why
                await self._hand_over()
            raise PeerError(_reason(error, NO_HANDSHAKE)) from error
        await self._hand_over()
        return True

    async def _hand_over(self) -> None:
        """Give what TLS has to send; what was given in part is the end of all giving."""
        going = self._going.read()
        if self._torn:
            raise PeerError(stream.CLOSED)
        # Set meanwhile: a give that is cancelled leaves half a record, after which none can follow.
        self._torn = True
        for start in range(0, len(going), PIECE_BYTES):
            await self._way.give(going[start : start + PIECE_BYTES])
        self._torn = False

    async def _taken(self) -> bytes:
        if piece := await self._way.take():
            return piece
        raise PeerError(CUT)

    async def _read_until_left(self) -> None:
        await self._read_ahead(self._opened_chunk)
        self._leave()

    async def _opened_chunk(self) -> bytes:
        """Return the peer's next chunk; empty where it has hung up."""
        if not (head := await self._opened(_LENGTH.size)):
            return b""
        (n_bytes,) = _LENGTH.unpack(head)
        if not 0 < n_bytes <= stream.CHUNK_BYTES:
            raise PeerError(f"sent a chunk of {n_bytes} bytes, which none has")
        if chunk := await self._opened(n_bytes):
            return chunk
        raise PeerError(CUT)

    async def _opened(self, n_bytes: int) -> bytes:
        """Return so many bytes that the peer has sent; none where it hung up before the first."""
        found = bytearray()
        while len(found) < n_bytes:
            try:
                part = self._tls.read(n_bytes - len(found))
            except ssl.SSLWantReadError:
                if self._going.pending > PIECE_BYTES:  # answers, which go with the next chunk
                    raise PeerError("asks for new keys and for nothing else") from None
                self._coming.write(await self._taken())
                continue
            except ssl.SSLError as error:
                raise PeerError(_reason(error)) from error
            if not part and found:
                raise PeerError(CUT)
            if not part:
                break
            found += part
        return bytes(found)

    async def write(self, chunk: bytes) -> None:
        """Write a chunk: see `Chunks.write`."""
        async with self._sending:
            if self._gone.is_set():
                raise self._why
            self._seal(_LENGTH.pack(len(chunk)) + chunk)
            try:
                await self._hand_over()
            except PeerError as error:
                with suppress(TimeoutError):  # what the peer has said last is on its way
                    async with asyncio.timeout(stream.FINISH_S):
                        await self._gone.wait()
                if self._gone.is_set():
                    raise self._why from error
                raise

    def _seal(self, plain: bytes) -> None:
        left = memoryview(plain)
        try:
            while left:  # a record at a time
                left = left[self._tls.write(left) :]
        except ssl.SSLError as error:
            raise PeerError(_reason(error)) from error

    def close(self) -> None:
        """Close: see `Chunks.close`."""
        self.closed.set()
        self._gone.set()
        if self._reading:
            self._reading.cancel()
        self._leave()

    async def finish(self) -> None:
        """Finish as `Chunks.finish`: what was written can be taken after this end has left."""
        self.close()
        if self._leaving:
            await self._leaving

    def _leave(self) -> None:
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(self._left())

    async def _left(self) -> None:
        """Hang up within TLS, or send its alert, where there is room for it; then on the way."""
        with suppress(PeerError, TimeoutError):
            async with asyncio.timeout(stream.FINISH_S), self._sending:
                if self._reading:
                    with suppress(ssl.SSLError):  # the peer's own end is not waited for
                        self._tls.unwrap()
                    await self._hand_over()
        await self._way.leave()


def _reason(error: ssl.SSLError, otherwise: str = NOT_NEXT) -> str:
    """Return why TLS is over, as a message has it after the peer's name."""
    why = (error.reason or "no reason given").replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"no trusted peer ({error.verify_message})"
    if "alert" in why:
        about_us = "certificate" in why or "unknown ca" in why
        hint = "; has its consortium issued this certificate?" if about_us else ""
        return f"refuses the connection ({why}){hint}"
    return f"{otherwise} ({why})"

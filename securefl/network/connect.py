"""Connections: who listens, who calls, and that the peer is who it should be."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

from securefl.errors import ConfigError, PeerError, SecureFLError
from securefl.network.frames import Ear, Link
from securefl.network.identity import Identity, peer_name
from securefl.network.parting import part
from securefl.network.trust import Role, Trust

HANDSHAKE_S = 10.0
MOST_HANDSHAKES = 64
"""At once, with those that are being sent away: each holds a descriptor, and anybody may begin."""
MOST_OF_ONE = 4
"""Connections of one name: more than one, as a peer may call anew before its old one is gone."""
PAUSE_S = 0.3


@dataclass(frozen=True, slots=True)
class Address:
    """Where a role listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """`HOST:PORT`; raises ConfigError."""
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) < 2**16):
            raise ConfigError(f"{text!r:.100}: write HOST:PORT, for example 127.0.0.1:7443")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


async def connected(
    identity: Identity, trust: Trust, role: Role, to: Address, patience_s: float
) -> Link:
    """Connect to a peer of that role; nothing has been sent on the connection yet.

    Raises:
        PeerError: nobody listens there for `patience_s`, or somebody else does.
    """
    context, loop = identity.joining(), asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            link = await _called(to, context)
            break
        except ssl.SSLError as error:
            raise PeerError(f"{to}: no trusted peer ({error.reason or error})") from error
        except OSError as error:
            if loop.time() >= deadline:
                raise PeerError(
                    f"{to}: nobody answers ({error.strerror or error}); is the {role} running?"
                ) from error
            await asyncio.sleep(PAUSE_S)
    try:
        link.name = peer_name(link.tls, trust, role)
    except PeerError as error:
        link.close()
        raise PeerError(f"{to}: {error}") from error
    return link


async def _called(to: Address, context: ssl.SSLContext) -> Link:
    ear = Ear()
    transport, protocol = await asyncio.get_running_loop().create_connection(
        lambda: asyncio.StreamReaderProtocol(ear),
        to.host,
        to.port,
        ssl=context,
        ssl_handshake_timeout=HANDSHAKE_S,
    )
    return Link.alive(transport, protocol, ear)


async def listening(
    identity: Identity,
    admitted: Callable[[ssl.SSLObject], str],
    at: Address,
    serve: Callable[[Link], Awaitable[None]],
    say: Callable[[str], None],
) -> asyncio.Server:
    """Listen for peers of the consortium.

    `admitted` names the peer of a finished handshake, or raises why not. `serve` has the
    connection from then on; it is closed when `serve` ends. Whatever a peer does, listening goes
    on: it has at most `MOST_OF_ONE` connections until their descriptors are free again.

    Raises:
        ConfigError: the address cannot be had.
    """
    context = identity.serving()
    placeless: dict[asyncio.Transport, None] = {}
    placed: set[Link] = set()

    async def arrived(transport: asyncio.Transport) -> None:
        placeless[transport] = None
        if len(placeless) > MOST_HANDSHAKES:  # a peer's takes milliseconds: the oldest is none
            oldest = next(iter(placeless))
            del placeless[oldest]
            oldest.abort()
        try:
            link = await _shaken(transport, context)
        except OSError:
            placeless.pop(transport, None)
            return
        try:
            await served(link, transport)
        except SecureFLError as error:
            say(f"Refused: {error}")
        finally:
            link.close()
            await link.gone()  # a peer that does not close its end holds the descriptor until then
            placeless.pop(transport, None)
            placed.discard(link)

    async def served(link: Link, transport: asyncio.Transport) -> None:
        try:
            name = admitted(link.tls)
            if sum(other.name == name for other in placed) >= MOST_OF_ONE:
                raise PeerError(f"{name}: has {MOST_OF_ONE} connections already: close one")
        except SecureFLError as error:  # the CA vouches for it, so it may know why
            await part(link, str(error))
            raise
        link.name = name
        placed.add(link)
        placeless.pop(transport, None)
        await serve(link)

    try:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Arrival(arrived), at.host, at.port)
    except OSError as error:
        raise ConfigError(f"{at}: cannot listen there: {error.strerror or error}") from error


class _Arrival(asyncio.Protocol):
    """A connection before its handshake, which nothing is read of."""

    def __init__(self, arrived: Callable[[asyncio.Transport], Coroutine[Any, Any, None]]) -> None:
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with the handshake, before the first byte is read."""
        work = self._arrived(cast("asyncio.Transport", transport))
        self._task = asyncio.get_running_loop().create_task(work)


async def _shaken(transport: asyncio.Transport, context: ssl.SSLContext) -> Link:
    """Return the connection once it is encrypted; raises OSError."""
    ear, loop = Ear(), asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(ear)
    encrypted = await loop.start_tls(
        transport, protocol, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
    )
    if encrypted is None:
        raise ConnectionAbortedError
    protocol.connection_made(encrypted)
    return Link.alive(encrypted, protocol, ear)


def bound(server: asyncio.Server) -> str:
    """Where a server listens, its port found where it was given as 0."""
    host, port, *_ = server.sockets[0].getsockname()
    return f"{host}:{port}"

"""Connections: who listens, who calls, and that the peer is who it should be."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from securefl.errors import ConfigError, PeerError, SecureFLError
from securefl.net.frames import Link
from securefl.net.identity import Identity, peer_name
from securefl.net.parting import part
from securefl.net.trust import Role, Trust

HANDSHAKE_S = 10.0
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
    """A connection to a peer of that role; nothing has been sent on it yet.

    Raises:
        PeerError: nobody listens there for `patience_s`, or somebody else does.
    """
    context, loop = identity.joining(), asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            reader, writer = await asyncio.open_connection(
                to.host, to.port, ssl=context, ssl_handshake_timeout=HANDSHAKE_S
            )
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
        name = peer_name(writer.get_extra_info("ssl_object"), trust, role)
    except PeerError as error:
        writer.close()
        raise PeerError(f"{to}: {error}") from error
    return Link(name, reader, writer)


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
    on.

    Raises:
        ConfigError: the address cannot be had.
    """

    async def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            link = Link("a peer", reader, writer)
            try:
                link.name = admitted(link.tls)
            except SecureFLError as error:  # the CA vouches for it, so it may know why
                await part(link, str(error))
                raise
            await serve(link)
        except SecureFLError as error:
            say(f"Refused: {error}")
        finally:
            writer.close()

    try:
        return await asyncio.start_server(
            arrived,
            at.host,
            at.port,
            ssl=identity.serving(),
            ssl_handshake_timeout=HANDSHAKE_S,
        )
    except OSError as error:
        raise ConfigError(f"{at}: cannot listen there: {error.strerror or error}") from error


def bound(server: asyncio.Server) -> str:
    """Where a server listens, its port found where it was given as 0."""
    host, port, *_ = server.sockets[0].getsockname()
    return f"{host}:{port}"

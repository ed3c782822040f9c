"""Connections: listener and caller, and the proof that the peer is who it should be.

An address is called by gRPC over TLS 1.3, with certificates of the consortium on both sides. A
connection is one stream. Another `Destination` and `Entrance` may stand in its place.
"""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol

import grpc
from cryptography import x509

from securefl.errors import ConfigError, KeyFileError, PeerError, SecureFLError
from securefl.network import stream
from securefl.network.frames import Link
from securefl.network.identity import NONCE_BYTES, Challenge, ProcessIdentity, host_of
from securefl.network.refusals import Refusals, SentHome, part
from securefl.network.resumable import HEAD_BYTES, Connections, Resumable
from securefl.network.stream import CallersStream, Chunks, Stream
from securefl.network.trust import Role, Trust

HANDSHAKE_S = 10.0
FEWEST_STRANGERS, MOST_STRANGERS = 64, 8192
"""Connections beside those of members: each holds a descriptor, and anybody may open one."""
MOST_OF_ONE = 4
"""Connections of one name: more than one, as a peer may call anew before its old one is gone."""
STRANGER = "a stranger"
PAUSE_S, MOST_PAUSE_S = 0.3, 2.0
"""Seconds between two tries to connect, at first and at most."""
_SERVICE, _METHOD = "securefl.Party", "Connect"


class NobodyAnswers(Exception):
    """Lack of a connection; another try may have one."""


class Destination(Protocol):
    """Place where a peer is called, whatever carries the chunks."""

    async def called(self, identity: ProcessIdentity, trust: Trust, role: Role) -> Link:
        """Connect once to a peer, and have it prove that it has that role.

        Raises:
            NobodyAnswers: there is no connection.
            PeerError: it is somebody else.
        """


class Entrance(Protocol):
    """Place where callers arrive, whatever carries the chunks."""

    async def opened(self, door: "Door", most: int) -> tuple[str, Callable[[], Awaitable[None]]]:
        """Have callers arrive at the door, so many at once; return where, and how this ends.

        Raises:
            ConfigError: nobody can listen there.
        """


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a listening role: `Destination` and `Entrance` by gRPC."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `HOST:PORT`; raises ConfigError."""
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) < 2**16):
            raise ConfigError(f"{text!r:.100}: write HOST:PORT, for example 127.0.0.1:7443")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def called(self, identity: ProcessIdentity, trust: Trust, role: Role) -> Link:
        """Connect, see `Destination.called`; after a cut the same peer is called again."""
        end = Resumable()
        call, name, certificate = await self._reached(end, identity, trust, role)

        async def again() -> Stream:
            try:
                return (await self._reached(end, identity, trust, role))[0]
            except NobodyAnswers as error:
                raise PeerError(str(error)) from error

        end.keep_up(call, again)
        return Link(name, end, certificate)

    async def _reached(
        self, end: Resumable, identity: ProcessIdentity, trust: Trust, role: Role
    ) -> tuple[Stream, str, x509.Certificate]:
        """Return a stream to a peer that has proved that it has that role, and is where `end` is.

        With it, the peer's name and certificate.
        """
        credentials = grpc.ssl_channel_credentials(
            identity.ca_pem, identity.transport_key_pem(), identity.transport_pem
        )
        proxied = int(not _is_here(self.host))
        options = [
            *_options(),
            ("grpc.ssl_target_name_override", host_of(role)),
            ("grpc.enable_http_proxy", proxied),
        ]
        channel = grpc.aio.secure_channel(str(self), credentials, options)
        call = CallersStream(channel.stream_stream(f"/{_SERVICE}/{_METHOD}")(), channel)
        challenge = Challenge(identity.transport_certificate)
        try:
            proof = await _answered(call, challenge.nonce)
            name, certificate = challenge.check(proof, trust, role)
            end.introduce(call, certificate, await _answered(call, end.place))
        except BaseException:
            call.close()
            raise
        return call, name, certificate

    async def opened(self, door: "Door", most: int) -> tuple[str, Callable[[], Awaitable[None]]]:
        """Open the entrance: see `Entrance.opened`."""
        connections = Connections(door.serves, door.admitted, door.note)

        async def arrived(_: object, context: Any) -> None:
            stream = Stream(context)
            with door.refusing(STRANGER):
                try:
                    async with asyncio.timeout(HANDSHAKE_S):
                        certificate = await _greeted(door.identity, context, stream)
                        place = await stream.read()
                    await connections.arrived(stream, certificate, place)
                finally:
                    stream.close()

        async def stop() -> None:
            await connections.stop()
            with suppress(grpc.aio.BaseError):  # it says so where it has stopped by itself
                await server.stop(stream.FINISH_S)

        options = [*_options(), ("grpc.max_allowed_incoming_connections", most)]
        server = grpc.aio.server(options=options)
        handler = grpc.stream_stream_rpc_method_handler(arrived)
        service = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler})
        server.add_generic_rpc_handlers((service,))
        at = str(Address(self.host, _port(server, door.identity, self)))
        await server.start()
        return at, stop


def _is_here(host: str) -> bool:
    """Return whether a host is this machine, which no proxy is asked for."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _options() -> list[tuple[str, Any]]:
    """Return gRPC's options for both ends: small messages, and pings as often as needed."""
    beat, silent = int(1000 * stream.BEAT_S), int(1000 * stream.SILENT_S)
    return [
        ("grpc.max_receive_message_length", stream.CHUNK_BYTES + HEAD_BYTES),
        ("grpc.max_send_message_length", stream.CHUNK_BYTES + HEAD_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", stream.WINDOW_BYTES),
        ("grpc.keepalive_time_ms", beat),
        ("grpc.keepalive_timeout_ms", silent),
        ("grpc.http2.ping_timeout_ms", silent),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", beat // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_concurrent_streams", MOST_OF_ONE),
        ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE_S)),
        ("grpc.max_connection_idle_ms", int(1000 * HANDSHAKE_S)),
        ("grpc.so_reuseport", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


async def connected(
    identity: ProcessIdentity, trust: Trust, role: Role, to: Destination, patience_s: float
) -> Link:
    """Connect to a peer of that role; nothing has been sent on the connection yet.

    Raises:
        PeerError: nobody listens there for `patience_s`, or somebody else does.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + patience_s, PAUSE_S
    while True:
        try:
            return await to.called(identity, trust, role)
        except NobodyAnswers as error:
            if loop.time() >= deadline:
                raise PeerError(
                    f"{to}: nobody answers ({error}); is the {role} running, and has its "
                    "consortium issued this certificate?"
                ) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_S)
        except PeerError as error:
            raise PeerError(f"{to}: {error}") from error


async def _answered(call: CallersStream, said: bytes) -> bytes:
    """Return what the listener answers first to a number of the caller's, or to its place."""
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            await call.write(said)
            return await call.read()
    except TimeoutError:
        raise NobodyAnswers(f"nothing came within {HANDSHAKE_S:g} s") from None
    except PeerError:
        with suppress(PeerError):
            await call.read()  # then gRPC says more of it
        if reason := _not_connected(call.error):
            raise NobodyAnswers(reason) from call.error
        raise


def _not_connected(error: BaseException | None) -> str:
    """Return why there is no connection; empty where there was one.

    Raises:
        PeerError: whoever listens has no certificate of the consortium's for its role.
    """
    if not isinstance(error, grpc.RpcError) or error.code() is not grpc.StatusCode.UNAVAILABLE:
        return ""
    details = error.details() or "unavailable"
    if "CERTIFICATE" in details or "Peer name" in details:  # what was shown is refused here
        raise PeerError(f"no trusted peer ({details})") from error
    return details


@dataclass(slots=True)
class Door:
    """Door of a listener. Whatever a caller does, listening goes on."""

    identity: ProcessIdentity
    admitted: Callable[[x509.Certificate], str]
    """Function that names the caller with a transport certificate, or raises why not."""
    serve: Callable[[Link], Awaitable[None]]
    """Function that has a connection from then on; it is closed when this ends."""
    say: InitVar[Callable[[str], None]]
    at: str = ""
    """Address where callers arrive: HOST:PORT, its port found where it was given as 0."""
    stop: Callable[[], Awaitable[None]] = field(init=False)
    """Function that ends all connections, each after a moment more, and listens no longer."""
    shut_because: str = ""
    _placed: Counter[str] = field(default_factory=Counter)
    """Connections of each name."""
    _refusals: Refusals = field(init=False)

    def __post_init__(self, say: Callable[[str], None]) -> None:
        self._refusals = Refusals(say)

    async def arrived(self, end: Chunks, greeted: Awaitable[x509.Certificate]) -> None:
        """Serve a caller, `greeted` by its transport certificate, until one end has hung up."""
        with self.refusing(STRANGER):
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    certificate = await greeted
                await self.serves(end, certificate)
            finally:
                end.close()

    async def serves(self, end: Chunks, certificate: x509.Certificate) -> None:
        """Serve a caller with that transport certificate, until one end has hung up."""
        caller = certificate.subject.rfc4514_string()
        with self.refusing(caller):
            try:
                await self._heard(Link("a peer", end, certificate), end, caller)
            finally:
                end.close()

    @contextmanager
    def refusing(self, caller: str) -> Iterator[None]:
        """Say why a caller is refused within."""
        try:
            yield
        except TimeoutError:
            self._refusals.refuse(caller, "a peer that says nothing")
        except SecureFLError as error:
            self._refusals.refuse(caller, str(error))
        except asyncio.CancelledError:  # the caller is gone; gRPC prints what is raised here
            pass

    async def _heard(self, link: Link, end: Chunks, caller: str) -> None:
        try:
            await _until_closed(self._served(link), end)
        except SentHome as error:
            # First: if the caller leaves, this ends.
            self._refusals.refuse(caller, f"{link.name}: {error}")
            await part(link, str(error), error.frame, final=error.final)

    async def _served(self, link: Link) -> None:
        try:
            name = self.admitted(link.certificate)
            if self.shut_because:
                raise PeerError(self.shut_because)
            if self._placed[name] >= MOST_OF_ONE:
                raise PeerError(f"{name}: has {MOST_OF_ONE} connections already: close one")
        except SecureFLError as error:
            final = isinstance(error, ConfigError | KeyFileError)
            raise SentHome(str(error), final=final) from error
        link.name = name
        self._placed[name] += 1
        try:
            await self.serve(link)
        finally:
            self._placed[name] -= 1

    def note(self, caller: str, line: str) -> None:
        """Say a line on a caller, of whom a few are said."""
        self._refusals.note(caller, line)

    def shut(self, reason: str) -> None:
        """Let nobody in any more, and tell why; the connections that there are go on."""
        self.shut_because = reason


async def listening(
    identity: ProcessIdentity,
    admitted: Callable[[x509.Certificate], str],
    at: Entrance,
    serve: Callable[[Link], Awaitable[None]],
    say: Callable[[str], None],
    n_peers: int = 1,
) -> Door:
    """Listen for peers of the consortium; for `admitted` and `serve` see `Door`.

    Each has at most `MOST_OF_ONE` connections, and all have as many as `n_peers` members may, and
    as many again as half of the process's descriptors (`MOST_STRANGERS` at most).

    Raises:
        ConfigError: the address cannot be had.
    """
    door = Door(identity, admitted, serve, say)
    door.at, door.stop = await at.opened(door, n_peers * MOST_OF_ONE + _most_strangers())
    return door


def _most_strangers() -> int:
    """Return how many connections may be nobody's yet: half of the process's descriptors."""
    try:
        import resource  # noqa: PLC0415 (Windows has none)
    except ImportError:
        return FEWEST_STRANGERS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(FEWEST_STRANGERS, soft // 2), MOST_STRANGERS)


async def _greeted(identity: ProcessIdentity, context: Any, end: Stream) -> x509.Certificate:
    """Prove the listener's identity to a caller of gRPC's, and return the caller's certificate."""
    certificate = x509.load_pem_x509_certificate(context.auth_context()["x509_pem_cert"][0])
    nonce = await end.read()
    if len(nonce) != NONCE_BYTES:
        raise PeerError("a peer that does not begin with a number of its own")
    await end.write(Challenge(certificate, nonce).answer(identity.certificate, identity.key))
    return certificate


def _port(server: Any, identity: ProcessIdentity, at: Address) -> int:
    """Return the port at which the server will listen."""
    pair = identity.transport_key_pem(), identity.transport_pem
    credentials = grpc.ssl_server_credentials([pair], identity.ca_pem, require_client_auth=True)
    return port_of(lambda where: server.add_secure_port(where, credentials), at)


def port_of(add: Callable[[str], int], at: Address, option: str = "") -> int:
    """Have gRPC listen at an address; return its port, and raise ConfigError where it cannot."""
    port = 0
    with suppress(RuntimeError):  # so says gRPC that it cannot
        port = int(add(str(at)))
    if not port:
        raise ConfigError(
            f"{option}{at}: cannot listen there: it is in use, or none of this machine's"
        )
    return port


async def _until_closed(serving: Awaitable[None], end: Chunks) -> None:
    """Serve until it is done, or this end has hung up."""
    work, closed = asyncio.ensure_future(serving), asyncio.ensure_future(end.closed.wait())
    try:
        await asyncio.wait({work, closed}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        for task in (work, closed):
            task.cancel()
        with suppress(asyncio.CancelledError, SecureFLError):
            await work

"""Health of a running process, for whoever asks by gRPC's health service (grpc.health.v1).

The service "" serves while the process goes on, "ready" while it can do its work: what /healthz and
/readyz say over HTTP.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from securefl.errors import ConfigError
from securefl.network.connect import Address, port_of
from securefl.network.monitor import Watched

try:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
except ImportError as error:
    raise ConfigError(
        "--health needs grpcio-health-checking: pip install 'securefl[ops]'"
    ) from error

READY = "ready"
_MOST_BYTES = 4096
"""Bytes of a question."""
_CALLERS = 4
"""Callers that are answered at once."""
_MOST_CONNECTIONS = 64
_SILENT_S = 5
"""Seconds after which a connection on which nobody speaks gRPC is closed."""


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers of one process."""

    def __init__(self, watched: Watched) -> None:
        self._of = {"": watched.is_alive, READY: lambda: not watched.not_ready()}

    def Check(self, request: Any, context: Any) -> Any:
        """Answer how a service is now."""
        if request.service not in self._of:
            context.abort(grpc.StatusCode.NOT_FOUND, f'the services are "" and "{READY}"')
        status = "SERVING" if self._of[request.service]() else "NOT_SERVING"
        return health_pb2.HealthCheckResponse(status=status)

    def Watch(self, _request: object, context: Any) -> None:
        """Refuse: nobody is told of a change unasked."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask Check again and again")


@contextmanager
def health_service(watched: Watched, at: Address) -> Iterator[str]:
    """Answer within; yield the address, its port found where it was given as 0.

    Raises:
        ConfigError: the address cannot be had.
    """
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", _MOST_BYTES),
        ("grpc.max_allowed_incoming_connections", _MOST_CONNECTIONS),
        ("grpc.server_handshake_timeout_ms", 1000 * _SILENT_S),
    ]
    server = grpc.server(ThreadPoolExecutor(_CALLERS), options=options)
    health_pb2_grpc.add_HealthServicer_to_server(_Health(watched), server)
    port = port_of(server.add_insecure_port, at, "--health ")
    server.start()
    try:
        yield str(Address(at.host, port))
    finally:
        server.stop(grace=None).wait()

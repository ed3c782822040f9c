"""Page over HTTP that shows the counts of a running process (`monitor`).

/metrics for Prometheus, /healthz: 200 while the process goes on, /readyz: 200 while it can do its
work. Nobody can change anything there.
"""

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from securefl.errors import ConfigError
from securefl.network.connect import Address
from securefl.network.monitor import MetricValue, Watched

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigError("metrics need prometheus_client: pip install 'securefl[ops]'") from error

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily
REQUEST_S = 10.0
"""Seconds for a caller to say what it wants."""


class _Collector(Collector):
    """Collector of a process's counts, as they are when somebody asks."""

    def __init__(self, watched: Watched, role: str) -> None:
        self._watched = watched
        self._role = role

    def collect(self) -> Iterator[Metric]:
        for number in self._watched.numbers():
            yield _family(f"securefl_{self._role}_{number.name}", number)


def _family(name: str, number: MetricValue) -> Family:
    kind = CounterMetricFamily if number.kind == "counter" else GaugeMetricFamily
    family: Family = kind(name, number.help, labels=number.labels)
    for labels, value in number.values.items():
        family.add_metric(list(labels), value)
    return family


@contextmanager
def metrics_page(watched: Watched, role: str, at: Address) -> Iterator[str]:
    """Serve the page within; yield its address, its port found where it was given as 0.

    Raises:
        ConfigError: the address cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(_Collector(watched, role))

    class Page(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                case "/healthz":
                    alive = watched.is_alive()
                    self._answer(200 if alive else 503, b"ok\n" if alive else b"stuck\n")
                case "/readyz":
                    why = watched.not_ready()
                    self._answer(503 if why else 200, f"{why or 'ok'}\n".encode())
                case _:
                    self._answer(404, b"/metrics, /healthz or /readyz\n")

        def _answer(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def version_string(self) -> str:
            return "securefl"

        def log_message(self, *_: object) -> None:
            """Say nothing: it is asked every few seconds."""

    class Listener(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in at.host else socket.AF_INET

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), OSError):  # of a caller that has hung up, no line
                super().handle_error(request, client_address)

    try:
        server = Listener((at.host, at.port), Page)
    except OSError as error:
        raise ConfigError(
            f"--metrics {at}: cannot listen there: {error.strerror or error}"
        ) from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield str(Address(at.host, server.server_port))
    finally:
        server.shutdown()
        server.server_close()

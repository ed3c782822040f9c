"""Local page that follows a run while it goes on: on this machine alone, and for reading alone."""

import json
import math
import pkgutil
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from securefl.errors import ConfigError
from securefl.io.text import printable
from securefl.metrics.by_name import heading
from securefl.runs.frame import row
from securefl.runs.progress import left
from securefl.runs.round_metrics import RoundMetrics

HOST = "127.0.0.1"
REQUEST_S = 10.0
"""Seconds for a caller to say what it wants."""


@dataclass(slots=True)
class FollowedRun:
    """Rounds of a run that are known so far, and how it stands."""

    name: str
    rounds: int
    """Rounds that the settings ask for."""
    seen: list[RoundMetrics] = field(default_factory=list)
    phase: str = ""
    """Phase of the round that goes on; empty where nobody knows."""
    ended: str = ""
    """Way in which the run has ended, in words; empty while it goes on."""

    def after(self, number: int) -> dict[str, Any]:
        """Return the rounds after this one, and how the run stands, as the page reads it."""
        seen = list(self.seen)
        return {
            "rounds": [_finite(row(of)) for of in seen if of.round > number],
            "state": self.state(seen),
            "metric": heading(seen[-1].metric) if seen else "Score",
            "last": self.last(seen),
            "over": bool(self.ended),
        }

    def state(self, seen: list[RoundMetrics]) -> str:
        """Return one sentence on how the run stands, with phase and the time that is left."""
        now = f" (now: {self.phase})" if self.phase else ""
        if not seen:
            return self.ended or f"Waiting for the first round{now}."
        done = f"Round {seen[-1].round:,} of {self.rounds:,}"
        if self.ended:
            return f"{done}: {self.ended}"
        to_go = left([of.seconds for of in seen], self.rounds - seen[-1].round)
        return f"{done}, about {to_go}{now}"

    @staticmethod
    def last(seen: list[RoundMetrics]) -> dict[str, str]:
        """Return what the page says of the last round, by name."""
        if not seen:
            return {}
        of, sent = seen[-1], sum(each.upload_bytes for each in seen)
        found = {
            "Ended at": of.at,
            "Seconds": f"{of.seconds:.2f}",
            **{f"of these {name}": f"{seconds:.2f}" for name, seconds in of.phases.items()},
            "MB sent so far": f"{sent / 1e6:,.1f}",
            **({} if of.n_clients is None else {"Clients in it": f"{of.n_clients:,}"}),
            "Clients refused": ", ".join(of.dropped) or "none",
            **({} if of.epsilon is None else {"ε spent": f"{of.epsilon:.3g}"}),
        }
        return {printable(name): printable(value) for name, value in found.items()}


@contextmanager
def watching(watched: FollowedRun, port: int = 0) -> Iterator[str]:
    """Serve the page within; yield its address.

    It answers this machine alone, under an address that nobody guesses, and names that point
    elsewhere in disguise (DNS rebinding) are refused.

    Raises:
        ConfigError: the port cannot be had.
    """
    secret = secrets.token_urlsafe(16)

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            here = self.headers.get("Host", "").rpartition(":")[0] in {HOST, "localhost"}
            if not here or not asked.path.startswith(f"/{secret}/"):
                self.send_error(404)
                return
            if asked.path == f"/{secret}/":
                self._give("text/html; charset=utf-8", _page(watched).encode())
            elif asked.path == f"/{secret}/rounds":
                after = parse_qs(asked.query).get("after", ["0"])[0]
                number = int(after) if after.isdecimal() and len(after) < 9 else 0
                self._give("application/json", json.dumps(watched.after(number)).encode())
            else:
                self.send_error(404)

        def _give(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing: requests come each second."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"--port {port}: cannot be had ({reason}); give another, or none"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="watch", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/{secret}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _page(watched: FollowedRun) -> str:
    """Return the page, filled without Jinja, which would be a fifth of what `watch` costs."""
    values = {
        "style": _text("style.css.jinja"),
        "name": escape(printable(watched.name)),
        "rounds": str(watched.rounds),
        "nonce": secrets.token_hex(16),
    }
    return re.sub(r"\{\{ (\w+) \}\}", lambda place: values[place[1]], _text("watch.html.jinja"))


def _text(name: str) -> str:
    return (pkgutil.get_data("securefl.report", name) or b"").decode()


def _finite(numbers: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if math.isfinite(value)}

"""A headless Chromium that pages are looked at with; it is spoken to over two pipes, not a port."""

from __future__ import annotations

import base64
import json
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",  # root, as in CI, has no other way; only pages of the tests are opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",  # reads descriptor 3, writes descriptor 4
)
PATIENCE_S = 30.0


class Browser:
    """One tab; what it asked the network for since the last `open` is in `requests`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._unread = b""
        self._last = 0
        self._tab: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        attached = self.tell("Target.attachToTarget", targetId=target, flatten=True)
        self._tab = attached["sessionId"]
        for domain in ("Page", "Network", "Log"):
            self.tell(f"{domain}.enable")

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol; return its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        message |= {"sessionId": self._tab} if self._tab else {}
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        while (found := self._heard()).get("id") != self._last:
            self._events.append(found)
        assert "error" not in found, found
        return found["result"]

    def open(self, page: Path, width: int = 1200, *, media: str = "screen") -> None:
        """Load a file in a window of this width, in CSS pixels, and wait until it is complete."""
        self.visit(page.as_uri(), width, media=media)

    def visit(
        self, address: str, width: int = 1200, *, media: str = "screen", scheme: str = "light"
    ) -> None:
        """Load a page as `open` does a file, for a reader who asked for light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.tell("Emulation.setEmulatedMedia", media=media, features=features)
        screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.tell("Emulation.setDeviceMetricsOverride", **screen)
        self._events.clear()
        self.tell("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._heard())

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a page's own policy does not bind it."""
        found = self.tell("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def pdf(self) -> bytes:
        """Return the page as it is printed on A4."""
        size = {"paperWidth": 210 / 25.4, "paperHeight": 297 / 25.4, "preferCSSPageSize": True}
        return base64.b64decode(self.tell("Page.printToPDF", **size)["data"])

    def png(self) -> bytes:
        """Return the whole page as it is seen."""
        shot = self.tell("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    @property
    def requests(self) -> list[str]:
        """All addresses that the page asked for, with what its policy refused."""
        self.evaluate("0")  # all that happened before has been told by then
        asked = [e["params"] for e in self._events if e["method"] == "Network.requestWillBeSent"]
        said = [e["params"] for e in self._events if e["method"] == "Log.entryAdded"]
        return [a["request"]["url"] for a in asked] + [s["entry"]["text"] for s in said]

    def _heard(self) -> dict[str, Any]:
        give_up = time.monotonic() + PATIENCE_S
        while b"\0" not in self._unread:
            left_s = max(0.0, give_up - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left_s)
            read = self._process.stdout.read1(1 << 20) if ready else b""
            if not read:
                raise TimeoutError(f"{CHROMIUM} says nothing more")
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with this empty folder as its profile; it is gone afterwards."""
    # The pipes' ends get the numbers that Chromium expects.
    command = ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1', "sh"]
    command += [str(CHROMIUM), *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        try:
            yield Browser(process)
        finally:
            process.kill()

"""The authority process: opens what the server asks for, and nothing that was opened before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from securefl.append import append_whole
from securefl.crypto.params import CkksParameters
from securefl.errors import (
    MessageRefused,
    OpeningRefused,
    PeerError,
    RunFolderError,
    TooFewContributions,
)
from securefl.exchange.base import OpenedSum
from securefl.net import bodies
from securefl.net.frames import SMALL, Frame, Link
from securefl.net.opening import RELEASED
from securefl.roles.authority import Authority, Opening
from securefl.runrecord import OPENINGS

MAX_OPEN_BYTES = 2**24
RELEASES = "released.jsonl"


@dataclass(slots=True)
class Log:
    """The authority's own folder: every opening, and what was released, also by processes before.

    Without the second, a server could have a sum opened anew, of fewer clients, after a restart.
    """

    folder: Path
    _released: set[tuple[str, int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        path = self.folder / RELEASES
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lines = path.read_text().splitlines() if path.exists() else []
            for line in lines:
                run, number, name = json.loads(line)
                self._released.add((run, number, name))
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{path}: cannot be read ({error}); name another folder"
            ) from error

    def note(self, opening: Opening) -> None:
        """One line, before anything is released."""
        self._append(OPENINGS, asdict(opening))

    def claim(self, run: str, number: int, name: str) -> None:
        """Count a total as released; raises OpeningRefused where it is already."""
        key = run, number, name
        if key in self._released:
            raise OpeningRefused(f"round {number}, {name!r}: opened once already")
        self._append(RELEASES, key)
        self._released.add(key)

    def _append(self, name: str, row: object) -> None:
        try:
            append_whole(self.folder / name, json.dumps(row).encode() + b"\n")
        except OSError as error:
            reason = error.strerror or error
            raise RunFolderError(f"{self.folder}: cannot be written ({reason})") from error


@dataclass(frozen=True, slots=True)
class AuthorityProcess:
    """Serves one server, of that name."""

    authority: Authority
    parameters: CkksParameters
    """Its key's."""
    server_name: str
    log: Log
    say: Callable[[str], None]

    async def serve(self, link: Link) -> None:
        """Answer until the run is over; raises PeerError where the peer is another."""
        if link.name != self.server_name:
            raise PeerError(f"{link.name!r:.100} is not the server, {self.server_name!r}")
        self.say(f"{link.name} is connected")
        while True:
            received = await link.receive({Frame.OPEN: MAX_OPEN_BYTES, Frame.GOODBYE: SMALL})
            if received.frame is Frame.GOODBYE:
                self.say(f"{link.name}: the run is over")
                return
            body = bodies.parsed(bodies.OpenRequest, received.body, link.name)
            size = self.parameters.n_ciphertexts(body.n_values) * self.parameters.ciphertext_bytes
            total = (await link.receive({Frame.CIPHERTEXT: size})).body
            try:
                opened = self._open(body, total)
            except OpeningRefused as error:
                too_few = isinstance(error, TooFewContributions)
                refusal = bodies.Refusal(too_few=too_few, reason=str(error)[: bodies.MAX_REASON])
                self.say(f"Refused: {error}")
                await link.send(Frame.REFUSED, refusal.to_bytes())
                continue
            self.say(f"Round {body.round}: opened {body.name}, {opened.n_clients} clients")
            await link.send(Frame.OPENED, bodies.total_bytes(opened, RELEASED))

    def _open(self, body: bodies.OpenRequest, total: bytes) -> OpenedSum:
        try:
            opened = self.authority.open(bodies.sum_request(body, total))
        except MessageRefused as error:
            raise OpeningRefused(str(error)) from error
        self.log.claim(body.run, body.round, body.name)
        return opened

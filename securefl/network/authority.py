"""The authority process: opens what the server asks for, and nothing that was opened before."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from securefl.build.terms import policy_of
from securefl.config.schema import Config
from securefl.errors import (
    MessageRefused,
    OpeningRefused,
    PeerError,
    RunFolderError,
    SecureFLError,
)
from securefl.federation.authority import Authority, Opening
from securefl.federation.opening_history import Asked, History, Row
from securefl.io.files import append_whole, make_folder, read_lines
from securefl.io.json import parsed
from securefl.network import bodies
from securefl.network.frames import SMALL, Frame, Link
from securefl.network.identity import peer_name
from securefl.network.opening import RELEASED
from securefl.network.parting import part
from securefl.network.trust import Keeper
from securefl.runs.folder_reader import OPENINGS

MAX_OPEN_BYTES = 2**24
RELEASES = "released.jsonl"
_ROW: TypeAdapter[Row] = TypeAdapter(Asked | tuple[str, int, str, str, list[str]])


@dataclass(slots=True)
class Log:
    """The authority's own folder: every opening, and its history, also of processes before.

    Without the second, a server could have a sum opened anew, of fewer clients, after a restart, or
    in another run.
    """

    folder: Path
    settings: str
    """Digest of the settings that this process serves."""
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.history = History(self.settings, self._keep)
        path = self.folder / RELEASES
        try:
            make_folder(self.folder, mode=0o700)
            lines = _whole_lines(path)
            self.history.take_up(parsed(_ROW, line, RunFolderError) for line in lines)
        except (OSError, RunFolderError) as error:
            raise RunFolderError(
                f"{path}: cannot be read ({error}), and without it a total could be opened twice: "
                "put a copy back, or rotate the keys and move it away"
            ) from error

    def note(self, opening: Opening) -> None:
        """One line, before anything is released."""
        self._append(OPENINGS, asdict(opening))

    def _keep(self, row: Row) -> None:
        self._append(RELEASES, row)

    def _append(self, name: str, row: object) -> None:
        line = json.dumps(row).encode() + b"\n"
        try:
            append_whole(self.folder / name, line)
        except OSError as error:
            reason = error.strerror or error
            raise RunFolderError(f"{self.folder}: cannot be written ({reason})") from error


def _whole_lines(path: Path) -> Iterator[bytes]:
    """A line that was cut off stands for nothing that was released: it is written before that."""
    if not path.exists():
        return
    n_whole = 0
    for line in read_lines(path):
        n_whole += len(line) + 1
        yield line
    if n_whole < path.stat().st_size:
        os.truncate(path, n_whole)


class AuthorityProcess:
    """Serves the consortium's servers, one at a time."""

    def __init__(
        self, keeper: Keeper, config: Config, log: Log, say: Callable[[str], None]
    ) -> None:
        """Raises as `Keeper.now`."""
        self._keeper = keeper
        self._config = config
        self._log = log
        self._say = say
        self._standing = standing = keeper.now(0)
        clients, policy = standing.trust.clients(), policy_of(config, standing.policy)
        self._role = Authority(standing.opener, clients, policy, log.note, log.history)
        self._served: Link | None = None

    def admitted(self, tls: ssl.SSLObject) -> str:
        """The server's name, as the folder has it now.

        Raises:
            PeerError: the peer is no server.
            KeyFileError: as `Keeper.now`.
        """
        return peer_name(tls, self._keeper.now(0).trust, "server")

    async def serve(self, link: Link) -> None:
        """Answer until the run is over; raises PeerError where the server breaks the protocol."""
        if self._served:
            # A rotation before a round of one would refuse the sums of the other. Whoever has lost
            # its connection is served no longer once it is silent.
            await part(link, f"the run of {self._served.name} is being served: come again after it")
            return
        self._served = link
        try:
            await self._answer(link)
        finally:
            self._served = None

    async def _answer(self, link: Link) -> None:
        self._say(f"{link.name} is connected")
        asked = {Frame.READY: SMALL, Frame.OPEN: MAX_OPEN_BYTES, Frame.GOODBYE: SMALL}
        ready: bodies.Ready | None = None
        while True:
            received = await link.receive(asked)
            if received.frame is Frame.GOODBYE:
                self._say(f"{link.name}: the run is over")
                return
            try:
                if received.frame is Frame.READY:
                    ready = None  # nothing is opened where the keys cannot be used
                    now = bodies.parsed(bodies.Ready, received.body, link.name)
                    body = await self._ready(link, now)
                    ready = now
                    await link.send(Frame.STANDING, body)
                else:
                    await link.send(Frame.OPENED, await self._opened(link, received.body, ready))
            except PeerError:
                raise
            except SecureFLError as error:
                self._say(f"Refused: {error}")
                await link.send(Frame.REFUSED, bodies.refusal(error))

    async def _ready(self, link: Link, asked: bodies.Ready) -> bytes:
        """Take up what holds now: keys may wear out, and members be revoked, between rounds."""
        standing = await asyncio.to_thread(self._keeper.now, asked.needed)
        if standing.age != self._standing.age:
            self._say(f"Epoch {standing.age[0]}, roster version {standing.age[1]}")
        self._standing = standing
        self._role.opener, self._role.roster = standing.opener, standing.trust.clients()
        self._role.policy = policy_of(self._config, standing.policy)
        try:
            peer_name(link.tls, standing.trust, "server")
        except PeerError as error:
            raise OpeningRefused(str(error)) from error  # it is told
        bundles = standing.bundles if standing.age != asked.known else {}
        return bodies.News.model_validate({"bundles": bundles}).to_bytes()

    async def _opened(self, link: Link, body: bytes, ready: bodies.Ready | None) -> bytes:
        asked = bodies.parsed(bodies.OpenRequest, body, link.name)
        parameters = self._keeper.parameters
        # Who asks for no new round is not looked at anew, and might be a server no longer.
        if ready is None or (asked.run, asked.round) != (ready.run, ready.round):
            await link.discard(Frame.CIPHERTEXT)
            raise self._noted(asked, f"round {asked.round}: {link.name} has not asked READY for it")
        if parameters.n_released(asked.n_values) > ready.needed:
            await link.discard(Frame.CIPHERTEXT)
            raise self._noted(
                asked,
                f"round {asked.round}: {asked.n_values} values, more than READY has announced",
            )
        size = parameters.message_bytes(asked.n_values)
        total = (await link.receive({Frame.CIPHERTEXT: size})).body
        try:
            request = bodies.sum_request(asked, total)
        except MessageRefused as error:
            raise self._noted(asked, f"round {asked.round}, {asked.name!r}: {error}") from error
        opened = await asyncio.to_thread(self._role.open, request)
        self._say(f"Round {asked.round}: opened {asked.name}, {opened.n_clients} clients")
        return bodies.total_bytes(opened, RELEASED)

    def _noted(self, asked: bodies.OpenRequest, why: str) -> OpeningRefused:
        """A refusal that stands in the log."""
        about = asked.round, asked.name, asked.n_values
        self._log.note(Opening(*about, (), 0, why, asked.key_id))
        return OpeningRefused(why)

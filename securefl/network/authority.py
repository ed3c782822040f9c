"""Authority process: opens what the server asks for, and nothing that was opened before."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from securefl.build.exchange import policy_of_sums
from securefl.build.selection import profiling_of, score_noise
from securefl.crypto.params import SUMS
from securefl.errors import (
    KeyFileError,
    MessageRefused,
    OpeningRefused,
    OtherSettings,
    PeerError,
    RunFolderError,
    SecureFLError,
)
from securefl.exchange.blind import BlindTotal
from securefl.exchange.one_time_match import SCORE_BYTES
from securefl.exchange.opener import TotalOpener
from securefl.exchange.policy import Policy
from securefl.exchange.profile_match import SCORE
from securefl.federation.authority import Authority, CheckingOfficer, ScoreAuthority
from securefl.federation.checks import Checks
from securefl.federation.message import Roster
from securefl.federation.opening import Opening
from securefl.federation.opening_history import OpeningHistory, Row
from securefl.federation.total import RELEASED, total_bytes
from securefl.io.files import MAX_LINE_BYTES, append_whole, make_folder, own_lines, read_lines
from securefl.io.json import parsed
from securefl.network import bodies
from securefl.network.connect import Destination, connected
from securefl.network.fetched_openings import MAX_LOG_BYTES
from securefl.network.frames import SMALL, Frame, Link
from securefl.network.identity import ProcessIdentity, name_of
from securefl.network.limits import Announced
from securefl.network.monitor import AuthorityMonitor
from securefl.network.saying import SESSION, Warned
from securefl.network.settings import check_officers, check_scope
from securefl.network.trust import Keeper, MemberStanding
from securefl.runs.folder_files import OPENINGS
from securefl.settings.tables import Config

MAX_OPEN_BYTES = 2**24
MAX_UNSIGNED_BYTES = 2**24
"""Length of a ciphertext up to which it is read before the signatures of its clients are checked;
how many values it has is so far the server's word."""
QUESTIONS = {
    Frame.READY: SMALL,
    Frame.OPEN: MAX_OPEN_BYTES,
    Frame.KEY_SUMS: MAX_OPEN_BYTES,
    Frame.SCORES: MAX_OPEN_BYTES,
    Frame.CARDS: MAX_OPEN_BYTES,
    Frame.LOG: SMALL,
    Frame.GOODBYE: SMALL,
}
"""Frames that a server may send at any time, and the bytes that fit."""
_OPENINGS = {Frame.OPEN, Frame.KEY_SUMS, Frame.SCORES}
RELEASES = "released.jsonl"
MAX_OWN_LOG_BYTES = 2**40
"""Most bytes of a log of its own, which it reads line by line; a year of large runs takes more than
others' logs may."""
PAUSE_S = 1.0
"""Seconds before the server is called again."""
_ROW: TypeAdapter[Row] = TypeAdapter(Row)


@dataclass(slots=True)
class AuthorityLog:
    """Folder of the authority: every opening, and its history, also of processes before.

    Without the second, a server could have a sum opened anew, of fewer clients, after a restart, or
    in another run; or a client's score a second time.
    """

    folder: Path
    settings: str
    """Digest of the settings that this process serves."""
    study: str = ""
    """Digest of those without the clients' names, under which totals are held against each other;
    where empty, that of all."""
    history: OpeningHistory = field(init=False)

    def __post_init__(self) -> None:
        self.history = OpeningHistory(self.study or self.settings, self._keep)
        path = self.folder / RELEASES
        try:
            make_folder(self.folder, mode=0o700)
            lines = own_lines(path, MAX_OWN_LOG_BYTES)  # one that was cut off released nothing
            self.history.take_up(parsed(_ROW, line, RunFolderError) for line in lines)
        except (OSError, RunFolderError) as error:
            raise RunFolderError(
                f"{path}: cannot be read ({error}), and without it a total or a score could be "
                "opened twice: rotate the keys, move it away, and begin what was running anew with "
                "another run.seed; a copy of it does not know what was opened since"
            ) from error

    def note(self, opening: Opening) -> None:
        """Write one line, before anything is released."""
        self._append(OPENINGS, asdict(opening))

    def rows(self, run: str, known: int) -> bytes:
        """Return the lines of a session after so many, whole ones, and as many as may travel.

        Raises:
            RunFolderError: they cannot be read.
        """
        path, found, size = self.folder / OPENINGS, list[bytes](), 0
        if not path.exists():
            return b""
        try:
            for line in islice(_lines_of(path, run), known, None):
                size += len(line) + 1
                if found and size > MAX_LOG_BYTES:
                    break
                found.append(line)
        except OSError as error:
            raise RunFolderError(
                f"{path}: cannot be read ({error}): move it away, and keep it as evidence"
            ) from error
        return b"\n".join(found)

    def _keep(self, row: Row) -> None:
        self._append(RELEASES, row)

    def _append(self, name: str, row: object) -> None:
        line = json.dumps(row).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:  # a line that no reader takes would be the last one read
            raise RunFolderError(
                f"{self.folder / name}: a line of {len(line)} bytes, at most {MAX_LINE_BYTES} fit"
            )
        try:
            append_whole(self.folder / name, line)
        except OSError as error:
            reason = error.strerror or error
            raise RunFolderError(
                f"{self.folder}: cannot be written ({reason}): free some space, then the same "
                "command goes on"
            ) from error


def _lines_of(path: Path, run: str) -> Iterator[bytes]:
    """Yield the whole lines of a session."""
    of_run = f'"run": "{run}"'.encode()
    return (line for line in read_lines(path, MAX_OWN_LOG_BYTES) if of_run in line)


class AuthorityProcess:
    """Process that answers the consortium's server, run after run: the authority or an officer.

    An officer adds up keys and opens nothing. The authority is the first officer where the
    consortium has several.
    """

    def __init__(
        self,
        keeper: Keeper,
        config: Config,
        log: AuthorityLog,
        say: Callable[[str], None],
        take_up: Callable[[str], None] | None = None,
    ) -> None:
        """Read the keys; raises as `Keeper.now`, and ConfigError where settings do not fit.

        `take_up` has an officer's newer bundle hold, or raises KeyFileError; None where the keeper
        has all that is news by itself.
        """
        self._newer, self._questions = take_up, dict(QUESTIONS)
        if take_up:
            self._questions[Frame.BUNDLE] = bodies.MAX_BUNDLE
        self._keeper = keeper
        self._config = config
        self._log = log
        self._say = say
        self.monitor = AuthorityMonitor(
            openings_left=self._openings_left,
            epoch=lambda: self._standing.age[0],
        )
        self._session = ""
        self._standing = standing = keeper.now()
        check_scope(config)
        check_officers(config, standing.opener.keys.quorum)
        about = standing.trust.clients(), self._policy(standing), log.note, log.history
        self._role: Authority | CheckingOfficer
        if isinstance(standing.opener, TotalOpener):
            self._role = Authority(standing.opener, *about)
        else:
            self._role = CheckingOfficer(standing.opener, *about)

    def _policy(self, standing: MemberStanding) -> Policy:
        """Return what is enforced on sums, and on scores."""
        n_clients = _n_clients(self._config, standing.trust.clients())
        return policy_of_sums(self._config, standing.policy, n_clients)

    def _openings_left(self) -> int:
        """Return the number of totals that the policy still opens in this session."""
        n_asked = self._log.history.n_asked(self._session)
        return max(0, self._role.policy.openings_per_run - n_asked)

    async def run(self, identity: ProcessIdentity, server: Destination) -> None:
        """Call the server and answer it, until this is cancelled; a lost connection is taken up.

        Raises:
            KeyFileError: as `Keeper.now`.
        """
        said, self.monitor.loop = "", asyncio.get_running_loop()
        while True:
            try:
                trust = self._keeper.now().trust
                link = await connected(identity, trust, "server", server, math.inf)
            except PeerError as error:
                if str(error) != said:  # whoever listens there may listen for long
                    said = str(error)
                    self._say(Warned(f"{said}; calling again"))
                await asyncio.sleep(PAUSE_S)
                continue
            said = ""
            try:
                await self.answer(link)
            except PeerError as error:
                self._say(Warned(f"{error}; calling again"))
            finally:
                self.monitor.server = ""
                await link.finish()
            await asyncio.sleep(PAUSE_S)

    async def answer(self, link: Link) -> None:
        """Answer until the run is over; raises PeerError where the server breaks the protocol."""
        self.monitor.server, link.traffic = link.name, self.monitor.traffic
        self._say(f"{link.name} is connected")
        announced = Announced()
        while True:
            received = await link.receive(self._questions)
            if received.frame is Frame.GOODBYE:
                why = bodies.parsed(bodies.Reason, received.body, link.name).reason
                self._say(f"{link.name}: {why or 'the run is over'}")
                return
            if received.frame is Frame.BUNDLE:
                self._take_up(received.body)
                continue
            try:
                if received.frame is Frame.READY:
                    announced = Announced()  # nothing is opened where the keys cannot be used
                    now = bodies.parsed(bodies.Ready, received.body, link.name)
                    SESSION.set(now.run)
                    self._session = now.run
                    body = await self._ready(link, now)
                    announced = Announced(now)
                    await link.send(Frame.STANDING, body)
                elif received.frame is Frame.LOG:
                    row = bodies.parsed(bodies.LogRequest, received.body, link.name)
                    rows = await asyncio.to_thread(self._log.rows, row.run, row.known)
                    await link.send(Frame.LOG_ROWS, rows)
                elif received.frame is Frame.CARDS:
                    await link.send(Frame.CARDS_TAKEN, self._taken(link, received.body, announced))
                elif received.frame is Frame.OPEN:
                    body = await self._opened(link, received.body, announced)
                    await link.send(Frame.OPENED, body)
                elif received.frame is Frame.KEY_SUMS:
                    body = await self._key_sums(link, received.body, announced)
                    await link.send(Frame.KEY_SUMS_ANSWER, body)
                else:
                    await link.send(*await self._opened_scores(link, received.body, announced))
            except PeerError:
                raise
            except SecureFLError as error:
                self.monitor.refused += received.frame in _OPENINGS
                self._say(Warned(f"Refused: {error}"))
                await link.send(Frame.REFUSED, bodies.refusal(error))

    async def _ready(self, link: Link, asked: bodies.Ready) -> bytes:
        """Take up what holds now: keys may be rotated, and members revoked, between rounds."""
        if asked.settings != self._log.settings:
            raise OtherSettings(
                "the authority has other settings than the server: give all processes the same file"
            )
        if asked.scores and not self._config.seals_scores:
            raise OpeningRefused(
                f"round {asked.round}: {asked.scores} scores are announced, and by the authority's "
                "settings no profiles are encrypted"
            )
        standing = await asyncio.to_thread(self._keeper.now)
        check_officers(self._config, standing.opener.keys.quorum)
        if standing.age != self._standing.age:
            self._say(f"Epoch {standing.age[0]}, roster version {standing.age[1]}")
        self._standing = standing
        role: Checks[Any] = self._role
        role.opener, role.roster = standing.opener, standing.trust.clients()
        role.policy = self._policy(standing)
        try:
            name_of(standing.trust.holder, link.certificate, "server")
        except PeerError as error:
            raise OpeningRefused(str(error)) from error  # it is told
        alone = standing.opener.keys.quorum.officers == 1
        news = standing.bundles if standing.age != asked.known else {}
        bundles = {role: of for role, of in news.items() if role != "officer" or not alone}
        return bodies.News.model_validate({"bundles": bundles}).to_bytes()

    def _taken(self, link: Link, body: bytes, announced: Announced) -> bytes:
        given = bodies.parsed(bodies.CardsGiven, body, link.name)
        announced.require_session(given.run, link.name)
        refused = self._role.take_cards(given.run, given.cards)
        for client, why in refused.items():
            self._say(Warned(f"Refused the card of {client}: {why}"))
        return bodies.cards_taken(refused)

    def _take_up(self, files: bytes) -> None:
        """Have a newer bundle hold; one that is refused changes nothing."""
        assert self._newer is not None  # noqa: S101 -- for mypy
        try:
            self._newer(files.decode())
        except (KeyFileError, UnicodeDecodeError) as error:
            self._say(Warned(f"Refused a bundle: {error}"))

    async def _key_sums(self, link: Link, body: bytes, announced: Announced) -> bytes:
        asked = bodies.parsed(bodies.OpenRequest, body, link.name)
        role = self._role
        with self._noting(asked, asked.name, asked.n_values):
            announced.require_values(asked, link.name)
            if not isinstance(role, CheckingOfficer):
                raise OpeningRefused("the one authority tells nobody sums of keys")
            request = bodies.sum_request(asked, b"")
        answer = await asyncio.to_thread(role.key_sums, request)
        self.monitor.opened += 1
        self._say(f"Round {asked.round}: keys of {asked.name}, {len(request.signed)} clients")
        return bodies.key_sums_bytes(answer)

    async def _opened(self, link: Link, body: bytes, announced: Announced) -> bytes:
        asked = bodies.parsed(bodies.OpenRequest, body, link.name)
        role = self._role
        with self._noting(asked, asked.name, asked.n_values):
            async with _followed_by(link, Frame.CIPHERTEXT):
                announced.require_values(asked, link.name)
                if not isinstance(role, Authority):
                    raise OpeningRefused("one of several officers opens nothing alone")
                request = bodies.sum_request(asked, b"")
            size = SUMS.message_bytes(asked.n_values)
            if size <= MAX_UNSIGNED_BYTES or await asyncio.to_thread(role.is_signed, request):
                total = (await link.receive({Frame.CIPHERTEXT: size})).body
                request = replace(request, total=total)
            else:  # to be refused, and logged, without it
                await link.discard(Frame.CIPHERTEXT)
        opened = await asyncio.to_thread(role.open, request)
        self.monitor.opened += 1
        if isinstance(opened, BlindTotal):
            ways, body = "sealed for", opened.as_bytes()
        else:
            ways, body = "opened", total_bytes(opened, RELEASED)
        self._say(f"Round {asked.round}: {ways} {asked.name}, {opened.n_clients} clients")
        return body

    async def _opened_scores(
        self, link: Link, body: bytes, announced: Announced
    ) -> tuple[Frame, bytes]:
        asked = bodies.parsed(bodies.OpenRequest, body, link.name)
        n_scores = len(asked.signed)
        with self._noting(asked, SCORE, n_scores):
            async with _followed_by(link, Frame.SCORE_BYTES):
                announced.require_scores(asked, link.name)
            content = (await link.receive({Frame.SCORE_BYTES: n_scores * SCORE_BYTES})).body
            request = bodies.score_request(asked, content)
        answer: tuple[Frame, bytes]
        if isinstance(role := self._role, CheckingOfficer):
            parts = await asyncio.to_thread(role.score_parts, request)
            answer = Frame.SCORE_PARTS, bodies.score_parts_bytes(parts)
        else:
            opened = await asyncio.to_thread(self._scores_of(role).open, request)
            answer = Frame.OPENED_SCORES, bodies.scores_bytes(opened)
        self.monitor.opened += 1
        self._say(f"Round {asked.round}: answered for {SCORE}, {len(request.scores)} clients")
        return answer

    def _scores_of(self, role: Authority) -> ScoreAuthority:
        """Build the authority over scores."""
        config = self._config
        names = config.data.names or sorted(role.roster.names, key=lambda name: (len(name), name))
        return ScoreAuthority(role, score_noise(config), profiling_of(config, names).draw)

    @contextmanager
    def _noting(self, asked: bodies.OpenRequest, name: str, n_values: int) -> Iterator[None]:
        """Log what is refused within, of a request for this name and number of values."""
        try:
            yield
        except (OpeningRefused, MessageRefused) as error:
            why = f"round {asked.round}, {name!r}: {error}"
            about = replace(bodies.expected(asked), name=name, n_values=n_values)
            self._log.note(Opening.of(about, (), 0, why))
            raise OpeningRefused(why) from error


@asynccontextmanager
async def _followed_by(link: Link, frame: Frame) -> AsyncIterator[None]:
    """Read the frame that follows a request that is refused within, and forget it."""
    try:
        yield
    except (OpeningRefused, MessageRefused):
        await link.discard(frame)
        raise


def _n_clients(config: Config, roster: Roster) -> int:
    """Return the number of clients that the settings name, whoever is revoked meanwhile.

    The roster's, where the settings leave it to the data.
    """
    data = config.data
    if data.names:
        return len(data.names)
    if data.traits.by_domain or data.leave_out is not None:
        return len(roster.names)
    return data.clients

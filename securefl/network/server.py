"""Server process: all rounds of a run, over connections. It cannot spell a secret key."""

import asyncio
import math
import secrets
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509

from securefl.build.job import Job, job_of
from securefl.build.own_data import require_server_file, task_at
from securefl.build.own_model import code_of, require_allowed
from securefl.build.selection import Ground, participation, profiling_of, score_noise
from securefl.build.training import divergence_advice
from securefl.errors import (
    KeyFileError,
    OpeningRefused,
    PeerError,
    RunFolderError,
    SecureFLError,
)
from securefl.exchange.answers import numbered
from securefl.exchange.blind import BlindTotal
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.one_time import OneTimeAdder
from securefl.exchange.sums import Adder, OpenedSum
from securefl.federation.broadcast import Broadcast
from securefl.federation.cards import Cards
from securefl.federation.engine import InTheClear, Opener
from securefl.federation.incidents import PASSED, SITS_OUT, Incident
from securefl.federation.ledger import SERVER
from securefl.federation.lineage import Lineage
from securefl.federation.message import CARD, SCORE_MEAN, SCORING
from securefl.federation.officers import Officers
from securefl.federation.profile_match import MatchChannel, MatchInTheClear, SealedMatch
from securefl.federation.query import Query
from securefl.federation.questions import number_bytes
from securefl.federation.server import Server, SumRequest
from securefl.federation.survey import ScoreRequest
from securefl.metrics.by_name import shown_compared, title, worst_said
from securefl.network import bodies
from securefl.network.authority_line import (
    Given,
    KeyLine,
    Line,
    ask_to_open,
    ask_to_open_scores,
    give_cards,
)
from securefl.network.connect import Entrance, listening
from securefl.network.fetched_openings import FetchedOpenings
from securefl.network.frames import Frame, Link
from securefl.network.identity import ProcessIdentity, name_of
from securefl.network.loop_work import STOPPED
from securefl.network.members import Members
from securefl.network.monitor import EVALUATE, OPEN, ServerMonitor
from securefl.network.officers import OfficerLines, RemoteOfficers, gathered
from securefl.network.saying import SESSION, Warned
from securefl.network.scores import Scores
from securefl.network.settings import check_officers, check_scope
from securefl.network.sites import NetworkSites, cannot_go_on
from securefl.network.trust import Role, TrustedBundle
from securefl.privacy.history import History
from securefl.report.finish import AtEnd, at_end
from securefl.runs.folder_files import OFFICERS_OPENINGS
from securefl.runs.folder_reader import read_joined
from securefl.runs.folder_writer import RunFolder
from securefl.runs.loop import OnRound, Parts, Record, Rounds
from securefl.runs.progress import RunProgress
from securefl.runs.round_metrics import RoundMetrics
from securefl.runs.session import PROCESSES
from securefl.settings.digests import digests_by_setting, settings_digest
from securefl.settings.tables import Config
from securefl.types import PROFILE, Kind, MessageSpec, State

Result = TypeVar("Result")
Request = TypeVar("Request")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that the server waits."""

    joining_s: float = 120.0
    """Time for authority or officers to call and all clients to join, before the first round."""
    client_s: float = 60.0
    """Time for a client's next message; whoever is late is out of the round."""
    authority_s: float = 30.0
    """Time for the authority, or as many officers as needed, to call again; for one to answer."""


@dataclass
class ServerProcess:
    """Server of one session of a run."""

    identity: ProcessIdentity
    bundle: TrustedBundle
    job: Job
    patience: Patience
    say: Callable[[str], None]
    record: Record = field(default_factory=Record)
    for_clients: tuple[tuple[int, int], str] = ((0, 0), "")
    """Newest bundle for them, by its age."""
    for_officers: str = ""
    """Newest bundle for officers; empty before the authority has sent it."""
    monitor: ServerMonitor = field(default_factory=ServerMonitor)

    async def run(
        self, at: Entrance, folder: RunFolder, progress: RunProgress | None = None
    ) -> None:
        """Run all rounds that are left; a line is said of each where no `progress` follows them.

        Raises:
            ConfigError: the address cannot be had.
            Diverged, TooFewContributions, OpeningRefused, PeerError: the run cannot go on; the
                folder holds all rounds before, and the same command goes on from there.
        """
        config, patience = self.job.config, self.patience
        check_officers(config, self.bundle.card_keys.quorum)
        lines = self._lines()
        members = Members(
            secrets.token_hex(32),
            folder.job_id(),
            settings_digest(config),
            digests_by_setting(config),
            self.job.names,
            patience.client_s,
            self.say,
            code_of(config),
        )
        SESSION.set(members.run)
        key_id = self.bundle.card_keys.key_id if config.needs_cards else ""
        own = config.samples is not None  # its data are the sites' own
        folder.note_session(config, members.run, key_id, PROCESSES, own_task=own)
        rounds, sites = self._rounds(members, lines, key_id, folder)
        rounds.go_on_in(folder)
        needed = config.exchange.needed if len(lines) > 1 else len(lines)
        self._watch(members, rounds, sites, lines, needed)

        async def serve(link: Link) -> None:
            link.traffic = self.monitor.traffic
            line = self._line_of(link.certificate, lines)
            await (line.welcome if line else members.welcome)(link)

        def admitted(certificate: x509.Certificate) -> str:
            self._line_of(certificate, lines)
            role = self._role(certificate)
            return name_of(self.bundle.transport_holder, certificate, role)

        n_peers = len(self.job.names) + max(1, len(lines))
        door = await listening(self.identity, admitted, at, serve, self.say, n_peers)
        self.say(f"Listening on {door.at}")
        work: asyncio.Future[Any] | None = None
        reason = STOPPED
        try:
            if len(lines) == 1:
                await lines[0].link(patience.joining_s)
            else:
                await gathered(lines, needed, patience.joining_s)
            on_round = self._told(rounds, aloud=progress is None)
            work = asyncio.ensure_future(asyncio.to_thread(rounds.run, on_round, folder, progress))
            await asyncio.shield(work)
            reason = ""
        except SecureFLError as error:
            reason = str(error)
            if not isinstance(error, RunFolderError):
                await self._fetch_last(lines, rounds.parts.opener)
            raise
        finally:
            await sites.stop()
            door.shut(reason or "the run is over")
            await members.end(reason)
            await asyncio.gather(*(line.part(reason) for line in lines))
            if work:
                with suppress(SecureFLError):
                    await work
            await door.stop()

    async def _fetch_last(self, lines: Sequence[Line], opener: Opener) -> None:
        """Fetch what the folder lacks of logs, of whoever is here, before a run ends in an error.

        Nothing that goes wrong with it takes that error's place.
        """
        if not isinstance(opener, AuthorityLine | RemoteOfficers):
            return

        async def one(line: Line, log: FetchedOpenings) -> None:
            try:
                await log.fetch(await line.link(0))
            except SecureFLError as error:
                self.say(f"{error}; the last rows of its log are fetched with the next session")

        here = [both for both in zip(lines, opener.logs, strict=True) if both[0].is_here]
        await asyncio.gather(*(one(*both) for both in here))

    def _watch(
        self,
        members: Members,
        rounds: Rounds,
        sites: NetworkSites,
        lines: Sequence[Line],
        needed: int,
    ) -> None:
        """Have the monitor count what goes on."""

        def n_here() -> int:
            return sum(line.is_here for line in lines)

        watched, config = self.monitor, self.job.config
        watched.loop, watched.done, watched.quorum = sites.loop, rounds.round, sites.quorum
        watched.rounds, watched.connected = config.run.rounds, lambda: len(members.here())
        watched.authority = (lambda: n_here() >= needed) if lines else None
        watched.officers = n_here if len(lines) > 1 else None

    def _role(self, certificate: x509.Certificate) -> Role:
        """Return the role in a caller's transport certificate, a client's where it has none."""
        roles: tuple[Role, ...] = ("client", "authority", "officer")
        for role in roles:
            with suppress(PeerError):
                name_of(self.bundle.transport_holder, certificate, role)
                return role
        return "client"

    def _lines(self) -> tuple[Line, ...]:
        """Return the line to the authority, or to each officer; none where nothing is encrypted."""
        exchange = self.job.config.exchange
        if not exchange.seals_anything:
            return ()

        def named(number: int) -> str:
            names = self.bundle.officers()  # fewer where another epoch has fewer
            return f"officer {names[number]}" if number < len(names) else numbered(number)

        others = range(1, exchange.officers)
        return Line(), *(Line(partial(named, number), "officer serve") for number in others)

    def _line_of(self, certificate: x509.Certificate, lines: Sequence[Line]) -> Line | None:
        """Return the line of the authority, or of an officer; None for a client.

        Raises:
            PeerError: it has no part in this run.
        """
        if (role := self._role(certificate)) == "client":
            return None
        if role == "authority":
            if not lines:
                raise PeerError("the authority: nothing is encrypted in this run")
            return lines[0]
        name = name_of(self.bundle.transport_holder, certificate, role)
        officers = self.bundle.officers()[: len(lines)]
        if name not in officers:
            raise PeerError(f"{name}: is no officer who opens sums of this run")
        return lines[officers.index(name)]

    def _rounds(
        self, members: Members, lines: Sequence[Line], key_id: str, folder: RunFolder
    ) -> tuple[Rounds, NetworkSites]:
        job, config, loop = self.job, self.job.config, asyncio.get_running_loop()
        adders: dict[Kind, Adder] = dict.fromkeys(Kind, job.plain)
        models = (
            members.job,
            self.identity.key.sign,
            folder.models_shown(),
            folder.note_models_shown,
        )
        server = Server(
            members.run,
            self.bundle.clients(),
            adders,
            job.shares,
            plain=job.plain,
            sealed=job.sealed,
            ledger=self.record.ledger,
            job=members.job,
            lineage=Lineage(*models),
            blind=config.exchange.blind,
            report=lambda incident: self._note(incident, members, loop),
        )
        line: Opener = InTheClear()
        channel: MatchChannel = MatchInTheClear(score_noise(config))
        finish = at_end(config)
        if len(lines) > 1:
            line = officers = self._officers(lines, loop, server, adders, folder)
            finish, open_scores = before(finish, officers.fetch), officers.open_scores
        elif lines:
            log = FetchedOpenings(folder, folder.session_ids())
            line = authority = AuthorityLine(self, lines[0], loop, server, adders, log)
            finish, open_scores = before(finish, authority.fetch), authority.open_scores
        if config.seals_scores:
            channel = SealedMatch(line, score_noise(config), open_scores)
        quorum = max(config.sites.quorum or 0, job.plain.min_clients, 1)
        sites = NetworkSites(
            loop,
            members,
            server,
            lambda: self.bundle,
            lambda: self.for_clients,
            quorum,
            math.inf if config.sites.late == "wait" else config.sites.wait_s,
            self.patience.joining_s,
            config.run.reproducible,
            self.say,
            self.monitor.phase,
            joined=read_joined(folder.path),
        )
        broadcast, profiling = Broadcast(server, job.names), profiling_of(config, job.names)
        cards = Cards(server, sites, line)
        ground = Ground(job, server, sites, broadcast, channel, profiling, cards)
        who = participation(config, ground)
        questions = {q.quantity: q for q in (who.choice.questions if who.choice else ())}

        def answer_bytes(query: Query, state: State, client: str) -> int:
            if query.name == PROFILE:
                return questions["divergence"].n_bytes(state, client)
            if query.name == CARD:
                return cards.n_bytes(client)
            if query.name == SCORE_MEAN:
                (spec,) = job.score_sums
                return server.n_bytes(state.round + 1, spec, client)
            return number_bytes(server.run, query.name, state, client)

        sites.calls.answer_bytes = answer_bytes
        scores = Scores(job, server, sites, line.open, cards)
        rounds = Rounds(
            Parts(
                config=config,
                task=job.task,
                algorithm=job.algorithm,
                training=job.training,
                server=server,
                engine=sites,
                opener=line,
                cards=cards,
                broadcast=broadcast,
                participation=who,
                score=self.monitor.timed(EVALUATE, scores),
                metric=job.evaluator.metric,
                record=self.record,
                engine_words=PROCESSES,
                least_clients=job.needed,
                quorum=quorum,
                in_flight=folder.in_flight(),
                note_in_flight=folder.note_in_flight,
                spending=job.spending(),
                key_id=key_id,
                advice=lambda done: divergence_advice(config, done),
                at_end=finish,
            )
        )
        sites.since, sites.missing = lambda: rounds.counted_in, rounds.missing
        scores.first_loss = lambda: rounds.first_loss
        return rounds, sites

    def _officers(
        self,
        lines: Sequence[Line],
        loop: asyncio.AbstractEventLoop,
        server: Server,
        adders: dict[Kind, Adder],
        folder: RunFolder,
    ) -> RemoteOfficers:
        """Build what asks several officers; their openings are noted here, and each one's log."""
        given, keys = Given(), self.bundle.card_keys

        def files() -> str:
            return self.for_officers

        @contextmanager
        def timed() -> Iterator[None]:
            with self.monitor.phase(OPEN):
                yield
            self.monitor.opened += 1

        def given_now() -> Given:
            return given.under(self.bundle.card_keys.key_id)

        def take_nothing_up(_news: bodies.Bundles, _officer: str) -> None:
            """Let bundles come from the authority alone."""

        key_lines = [
            KeyLine(
                line,
                given_now,
                take_nothing_up if number else self.take_up,
                self.say,
                files if number else lambda: "",
            )
            for number, line in enumerate(lines)
        ]
        panel = OfficerLines(key_lines, keys.quorum, loop, self.patience.authority_s)
        return RemoteOfficers(
            Officers(keys, panel, self.record.log_opening, server.report),
            panel,
            given,
            partial(self.ready_for, server),
            partial(self.in_force, server, adders),
            timed,
            [
                FetchedOpenings(folder, folder.session_ids(), name)
                for name in OFFICERS_OPENINGS[: len(lines)]
            ],
        )

    def ready_for(
        self, server: Server, round_number: int, specs: Sequence[MessageSpec]
    ) -> bodies.Ready:
        """Return the announcement of a round in which these messages are sent."""
        config = self.job.config
        sums = (*specs, *self.job.score_sums)
        return bodies.Ready(
            run=server.run,
            settings=settings_digest(config),
            round=round_number,
            known=self.for_clients[0],
            needed=sum(spec.n_values for spec in sums if spec.kind in server.sealed),
            scores=len(self.job.names) if config.seals_scores else 0,
        )

    def in_force(self, server: Server, adders: dict[Kind, Adder]) -> CardKeys:
        """Have the newest keys and members hold, and return the keys.

        Raises:
            ConfigError: the consortium's officers are others than the settings say.
        """
        keys = self.bundle.card_keys
        check_officers(self.job.config, keys.quorum)
        server.roster = self.bundle.clients()
        adders |= dict.fromkeys(server.sealed, OneTimeAdder(keys))
        return keys

    def _note(self, incident: Incident, members: Members, loop: asyncio.AbstractEventLoop) -> None:
        """Write an incident down, say it here, and tell the client.

        Raises:
            PeerError: the run is reproducible, and a simulation would not have gone on without the
                client: neither are its values such that they cannot be sent, nor is it revoked, nor
                does the round pass, or go on without it, as in a simulation.
        """
        self.record.incidents.append(incident)
        self.monitor.note(incident)
        known = incident.client in self.bundle.clients().names
        expected = incident.diverged or incident.name in {PASSED, SITS_OUT}
        if self.job.config.run.reproducible and known and not expected:
            raise cannot_go_on(incident.reason)
        how = ":" if incident.name == PASSED else " goes on without"
        if incident.name in SCORING:  # its contribution to the model has counted
            how = " is scored without"
        self.say(Warned(f"Round {incident.round}{how} {incident.reason}"))
        body = bodies.reason(incident.reason, round_number=incident.round)

        def tell() -> None:
            if link := members.links.get(incident.client):
                told = members.send({incident.client: link}, Frame.LEAVE, body)
                self._telling.add(task := loop.create_task(told))
                task.add_done_callback(self._telling.discard)

        loop.call_soon_threadsafe(tell)

    @cached_property
    def _telling(self) -> set[asyncio.Task[object]]:
        """References to what is under way, without which a task may be collected."""
        return set()

    def _told(self, rounds: Rounds, *, aloud: bool) -> OnRound:
        """Return what counts each round, and says a line of it where that is asked for."""

        def told(metrics: RoundMetrics) -> None:
            self.monitor.round_done(metrics)
            if not aloud:
                return
            n_clients = len(rounds.participants[-1].counted)
            self.say(
                f"Round {metrics.round}/{self.job.config.run.rounds}: {title(metrics.metric)} "
                f"{shown_compared(metrics.metric, metrics.score, metrics.pooled)}, "
                f"{n_clients} clients{_worst(metrics)}"
            )

        return told

    def take_up(self, news: bodies.Bundles, authority: str) -> None:
        """Take up the bundles of another epoch or roster; raises PeerError where one is refused."""
        if not news:
            return
        try:
            self.bundle = self.bundle.newer(news["server"])
        except KeyFileError as error:
            raise PeerError(f"{authority}: sent a bundle that is refused: {error}") from error
        self.for_clients = self.bundle.age, news["client"]
        self.for_officers = news.get("officer", "")
        self.say("Epoch {}, roster version {}".format(*self.bundle.age))


def before(finish: AtEnd, fetch: Callable[[], None]) -> AtEnd:
    """Return the function that fetches the last rows of logs, then finishes."""

    def fetched(folder: RunFolder, history: History) -> None:
        fetch()
        finish(folder, history)

    return fetched


@dataclass(slots=True)
class AuthorityLine:
    """Authority over its connection, for the thread of the loop of rounds; an `Opener`."""

    process: ServerProcess
    to: InitVar[Line]
    loop: asyncio.AbstractEventLoop
    server: Server
    adders: dict[Kind, Adder]
    log: FetchedOpenings
    line: KeyLine = field(init=False)
    _given: Given = field(default_factory=Given)
    """Cards of clients for the keys in force."""

    def __post_init__(self, to: Line) -> None:
        process = self.process
        self.line = KeyLine(to, self._given_now, process.take_up, process.say)

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """Take up a round, see `Opener.be_ready_for`, with the authority's keys and roster."""
        self.line.announce(self.process.ready_for(self.server, round_number, specs))
        self._waited(self._link())
        self.fetch()
        self.process.in_force(self.server, self.adders)

    @property
    def card_keys(self) -> CardKeys | None:
        """Card keys in force: see `Opener.card_keys`."""
        process = self.process
        return process.bundle.card_keys if process.job.config.needs_cards else None

    def take_cards(self, run: str, cards: Mapping[str, bytes]) -> Mapping[str, str]:
        """Give cards, see `Opener.take_cards`; another process is given them all again."""
        refused = self._waited(self._taken(run, cards))
        given = self._given_now()
        given.cards |= {name: card for name, card in cards.items() if name not in refused}
        return refused

    async def _taken(self, run: str, cards: Mapping[str, bytes]) -> dict[str, str]:
        while True:
            link = await self._link()
            try:
                return await give_cards(link, run, cards)
            except PeerError:
                if not link.lost:
                    raise

    def _given_now(self) -> Given:
        return self._given.under(self.process.bundle.card_keys.key_id)

    @property
    def logs(self) -> Sequence[FetchedOpenings]:
        """Log of the authority, alone."""
        return (self.log,)

    def fetch(self) -> None:
        """Fetch what the folder lacks of the authority's log."""
        self._waited(self._fetched())

    async def _fetched(self) -> None:
        """Fetch; a connection that breaks is no failure, nor is a log that cannot be read."""
        try:
            link = await self.line.line.link(self.process.patience.authority_s)
            await self.log.fetch(link)  # also where the run was over before this session
        except (PeerError, OpeningRefused) as error:
            self.process.say(f"{error}; its log is fetched with the next round, or session")

    def open(self, request: SumRequest) -> OpenedSum | BlindTotal:
        """See `Opener.open`."""
        return self._answered(self._asked(ask_to_open, request))

    def open_scores(self, request: ScoreRequest) -> list[float | None]:
        """Open scores: see `MatchChannel.open`."""
        return self._answered(self._asked(ask_to_open_scores, request))

    def _answered(self, work: Coroutine[Any, Any, Result]) -> Result:
        monitor = self.process.monitor
        with monitor.phase(OPEN):
            answer = self._waited(work)
        monitor.opened += 1
        return answer

    def _waited(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _asked(
        self, ask: Callable[[Link, Request], Coroutine[Any, Any, Result]], request: Request
    ) -> Result:
        """Ask once: an answer is given once, and one that was lost on its way is lost."""
        return await ask(await self._link(), request)

    def _link(self) -> Coroutine[Any, Any, Link]:
        return self.line.link(self.process.patience.authority_s)


def _worst(metrics: RoundMetrics) -> str:
    """Return words on the client of the worst score; empty where only their mean is read."""
    words = worst_said(metrics.metric, metrics.values)
    return f", {words}" if words else ""


def server_job(config: Config, model: str | None = None, data: Path | None = None) -> Job:
    """Build the server's job.

    Args:
        config: the settings of all parties.
        model: the code that the server lets run (`require_allowed`).
        data: its own file, which names public samples, where the settings have a table `[samples]`.

    Raises:
        ConfigError, DataError: see `job_of`.
    """
    check_scope(config)
    if config.samples is None and data is None:
        return job_of(config, None)
    require_allowed(config.model.name, model, f"--model {config.model.name}")
    files = {SERVER: data} if data else {}
    require_server_file(config, files)
    return job_of(config, task_at(config, files), ())

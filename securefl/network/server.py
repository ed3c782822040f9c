"""The server process: all rounds of a run, over connections. It cannot spell a secret key."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from cryptography import x509

from securefl.build.algorithm import divergence_advice
from securefl.build.job import Job, job_of
from securefl.build.own_data import task_at
from securefl.build.own_model import code_of, require_allowed
from securefl.build.selection import Ground, participation, profiling_of, score_noise
from securefl.config.schema import Config
from securefl.errors import (
    KeyFileError,
    PeerError,
    SecureFLError,
)
from securefl.exchange.base import Adder, OpenedSum
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.matching import PROFILE
from securefl.exchange.one_time import OneTimeAdder
from securefl.exchange.one_time_match import OneTimeMatcher
from securefl.exchange.score_noise import ScoreNoise
from securefl.federation.broadcast import Broadcast
from securefl.federation.cards import Cards
from securefl.federation.engine import InTheClear, Opener
from securefl.federation.incidents import Incident
from securefl.federation.message import CARD
from securefl.federation.profile_match import MatchChannel, MatchInTheClear
from securefl.federation.query import SCORE_MEAN, Query
from securefl.federation.questions import number_bytes
from securefl.federation.server import Server, SumRequest
from securefl.federation.survey import ScoreRequest
from securefl.metrics import shown, title
from securefl.network import bodies
from securefl.network.connect import Entrance, listening
from securefl.network.frames import Frame, Link
from securefl.network.identity import Identity
from securefl.network.members import Members
from securefl.network.monitor import EVALUATE, OPEN, ServerMonitor
from securefl.network.opening import (
    Line,
    ask_to_open,
    ask_to_open_scores,
    ask_what_holds,
    give_cards,
)
from securefl.network.openings import FetchedOpenings
from securefl.network.proof import name_of
from securefl.network.saying import SESSION, Warned
from securefl.network.scores import Scores
from securefl.network.settings import (
    check_scope,
    settings_digest,
    table_digests,
)
from securefl.network.sites import NetworkSites, cannot_go_on
from securefl.network.trust import Bundle, Role
from securefl.privacy.history import History
from securefl.report.finish import AtEnd, at_end
from securefl.runs.environment import PROCESSES
from securefl.runs.folder_reader import RoundMetrics, read_joined
from securefl.runs.folder_writer import RunFolder
from securefl.runs.in_flight import InFlight
from securefl.runs.loop import OnRound, Parts, Record, Rounds
from securefl.types import Kind, MessageSpec, State

Result = TypeVar("Result")
Request = TypeVar("Request")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that the server waits."""

    joining_s: float = 120.0
    """For the authority to call and all clients to join, before the first round."""
    client_s: float = 60.0
    """For a client's next message; whoever is late is out of the round."""
    authority_s: float = 30.0
    """For the authority to call again, before a round and where its connection is lost."""


@dataclass
class ServerProcess:
    """The server of one session of a run."""

    identity: Identity
    bundle: Bundle
    job: Job
    patience: Patience
    say: Callable[[str], None]
    record: Record = field(default_factory=Record)
    for_clients: tuple[tuple[int, int], str] = ((0, 0), "")
    """The newest bundle for them, by its age."""
    monitor: ServerMonitor = field(default_factory=ServerMonitor)

    async def run(self, at: Entrance, folder: RunFolder) -> None:
        """Run all rounds that are left.

        Raises:
            ConfigError: the address cannot be had.
            Diverged, TooFewContributions, OpeningRefused, PeerError: the run cannot go on; the
                folder holds all rounds before, and the same command goes on from there.
        """
        config, patience = self.job.config, self.patience
        line = Line() if config.exchange.seals_anything else None
        members = Members(
            secrets.token_hex(32),
            folder.job_id(),
            settings_digest(config),
            table_digests(config),
            self.job.names,
            patience.client_s,
            self.say,
            code_of(config),
        )
        SESSION.set(members.run)
        key_id = self.bundle.card_keys.key_id if config.needs_cards else ""
        own = config.samples is not None  # its data are the sites' own
        folder.note_session(config, key_id, PROCESSES, own_task=own, run=members.run)
        rounds, sites = self._rounds(members, line, key_id, folder)
        rounds.go_on_in(folder)
        watched = self.monitor
        watched.loop, watched.done, watched.quorum = sites.loop, rounds.round, sites.quorum
        watched.rounds, watched.connected = config.run.rounds, lambda: len(members.here())
        watched.authority = (lambda: line.is_here) if line else None

        async def serve(link: Link) -> None:
            link.traffic = watched.traffic
            of_authority = line and self._role(link.certificate) == "authority"
            await (line.welcome if line and of_authority else members.welcome)(link)

        def admitted(certificate: x509.Certificate) -> str:
            role = self._role(certificate)
            if role == "authority" and not line:
                raise PeerError("the authority: nothing is encrypted in this run")
            return name_of(self.bundle.transport_holder, certificate, role)

        n_peers = len(self.job.names) + 1
        door = await listening(self.identity, admitted, at, serve, self.say, n_peers)
        self.say(f"Listening on {door.at}")
        work: asyncio.Future[Any] | None = None
        reason = "the server was stopped"
        try:
            if line:
                await line.link(patience.joining_s)
            work = asyncio.ensure_future(asyncio.to_thread(rounds.run, self._told(rounds), folder))
            await asyncio.shield(work)
            reason = ""
        except SecureFLError as error:
            reason = str(error)
            raise
        finally:
            await sites.stop()
            door.shut(reason or "the run is over")
            members.over = reason
            await members.send_home(members.here(), reason)
            if line:
                await line.part(reason)
            if work:
                with suppress(SecureFLError):
                    await work
            await door.stop()

    def _role(self, certificate: x509.Certificate) -> Role:
        """Return the role in a caller's transport certificate, a client's where it has neither."""
        with suppress(PeerError):
            name_of(self.bundle.transport_holder, certificate, "authority")
            return "authority"
        return "client"

    def _rounds(
        self, members: Members, to_authority: Line | None, key_id: str, folder: RunFolder
    ) -> tuple[Rounds, NetworkSites]:
        job, config, loop = self.job, self.job.config, asyncio.get_running_loop()
        adders: dict[Kind, Adder] = dict.fromkeys(Kind, job.plain)
        server = Server(
            members.run,
            self.bundle.clients(),
            adders,
            job.shares,
            plain=job.plain,
            sealed=job.sealed,
            ledger=self.record.ledger,
            job=members.job,
            report=lambda incident: self._note(incident, members, loop),
        )
        line: Opener = InTheClear()
        channel: MatchChannel = MatchInTheClear(score_noise(config))
        finish = at_end(config)
        if to_authority:
            log, note = FetchedOpenings(folder, folder.session_ids()), folder.note_in_flight
            line = authority = AuthorityLine(self, to_authority, loop, server, adders, log, note)
            finish = authority.before(finish)
            if config.seals_scores:
                channel = RemoteMatch(authority, score_noise(config))
        quorum = max(config.sites.quorum or 0, job.plain.min_clients, 1)
        sites = NetworkSites(
            loop,
            members,
            server,
            lambda: self.bundle,
            lambda: self.for_clients,
            quorum,
            config.sites.wait_s,
            self.patience.joining_s,
            config.run.reproducible,
            self.say,
            in_flight=folder.in_flight(),
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
            if query.name == SCORE_MEAN.name:
                return server.n_bytes(state.round + 1, SCORE_MEAN, client)
            return number_bytes(server.run, query.name, state, client)

        sites.answer_bytes, sites.phase = answer_bytes, self.monitor.phase
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
                record=self.record,
                engine_words=PROCESSES,
                least_clients=job.needed,
                quorum=quorum,
                spending=job.spending(),
                key_id=key_id,
                advice=lambda done: divergence_advice(config, done),
                at_end=finish,
            )
        )
        sites.since = lambda: rounds.counted_in
        scores.first_loss = lambda: rounds.first_loss
        return rounds, sites

    def _note(self, incident: Incident, members: Members, loop: asyncio.AbstractEventLoop) -> None:
        """Write an incident down, say it here, and tell the client.

        Raises:
            PeerError: the run is reproducible, and a simulation would not have gone on without the
                client: neither are its values such that they cannot be sent, nor is it revoked.
        """
        self.record.incidents.append(incident)
        self.monitor.note(incident)
        known = incident.client in self.bundle.clients().names
        if self.job.config.run.reproducible and known and not incident.diverged:
            raise cannot_go_on(incident.reason)
        self.say(Warned(f"Round {incident.round} goes on without {incident.reason}"))
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

    def _told(self, rounds: Rounds) -> OnRound:
        """Return what says a line of each round."""

        def told(metrics: RoundMetrics) -> None:
            self.monitor.round_done(metrics)
            n_clients = len({*rounds.participants[-1].present} - {*metrics.dropped})
            self.say(
                f"Round {metrics.round}/{self.job.config.run.rounds}: {title(metrics.metric)} "
                f"{shown(metrics.metric, metrics.score)}, {n_clients} clients{_worst(metrics)}"
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
        self.say("Epoch {}, roster version {}".format(*self.bundle.age))


@dataclass(slots=True)
class AuthorityLine:
    """The authority over its connection, for the thread of the loop of rounds; an `Opener`."""

    process: ServerProcess
    line: Line
    loop: asyncio.AbstractEventLoop
    server: Server
    adders: dict[Kind, Adder]
    log: FetchedOpenings
    note: Callable[[InFlight], None]
    """Writes down whose total is about to be opened."""
    _noted: InFlight | None = None
    _ready: bodies.Ready | None = None
    """Announcement of this round."""
    _announced_on: Link | None = None
    """The connection on which it was."""
    _cards: dict[str, bytes] = field(default_factory=dict)
    """Clients' cards for the keys in force."""
    _given_on: tuple[Link | None, str] = (None, "")
    """The connection on which the authority has them, and the id of its keys."""

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """See `Opener.be_ready_for`: keys, roster and bundles are as the authority says."""
        process, sealed, config = self.process, self.server.sealed, self.process.job.config
        sums = (*specs, *process.job.score_sums)
        needed = sum(spec.n_values for spec in sums if spec.kind in sealed)
        ready = bodies.Ready(
            run=self.server.run,
            settings=settings_digest(config),
            round=round_number,
            known=process.for_clients[0],
            needed=needed,
            scores=len(process.job.names) if config.seals_scores else 0,
        )
        self._ready, self._announced_on = ready, None
        self._waited(self._link())
        self._waited(self._fetched())
        self.server.roster = process.bundle.clients()
        self.adders |= dict.fromkeys(sealed, OneTimeAdder(process.bundle.card_keys))

    @property
    def card_keys(self) -> CardKeys | None:
        """See `Opener.card_keys`."""
        process = self.process
        return process.bundle.card_keys if process.job.config.needs_cards else None

    def take_cards(self, run: str, cards: Mapping[str, bytes]) -> Mapping[str, str]:
        """See `Opener.take_cards`; another process of the authority is given them all again."""
        refused = self._waited(self._given(run, cards))
        self._cards |= {name: card for name, card in cards.items() if name not in refused}
        return refused

    async def _given(self, run: str, cards: Mapping[str, bytes]) -> dict[str, str]:
        while True:
            link = await self._link()
            try:
                return await give_cards(link, run, cards)
            except PeerError:
                if not link.lost:
                    raise

    def before(self, finish: AtEnd) -> AtEnd:
        """Return the function that fetches the last rows of the authority's log, then finishes."""

        def fetched(folder: RunFolder, history: History) -> None:
            self._waited(self._fetched())
            finish(folder, history)

        return fetched

    async def _fetched(self) -> None:
        """Fetch what the folder lacks of the log; a connection that breaks is no failure."""
        try:
            await self.log.fetch(await self._link())
        except PeerError as error:
            self.process.say(f"{error}; its log is fetched with the next round, or session")

    def open(self, request: SumRequest) -> OpenedSum:
        """See `Opener.open`; a server that goes on from here knows for whom the total opens."""
        opening = InFlight(request.expected.round, tuple(request.signers))
        trained = request.expected.name not in {spec.name for spec in self.process.job.score_sums}
        if trained and opening != self._noted:
            self.note(opening)
            self._noted = opening
        return self._answered(self._asked(ask_to_open, request))

    def open_scores(self, request: ScoreRequest) -> list[float | None]:
        """See `MatchChannel.open`."""
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

    async def _link(self) -> Link:
        """Return a connection on which this round was announced; a lost one is waited for."""
        assert self._ready is not None  # noqa: S101 -- for mypy
        while True:
            link = await self.line.link(self.process.patience.authority_s)
            if link is self._announced_on:
                return link
            try:
                news = await ask_what_holds(link, self._ready)
            except PeerError:
                if not link.lost:
                    raise
                continue
            self.process.take_up(news.bundles, link.name)
            try:
                await self._given_again(link)
            except PeerError:
                if not link.lost:
                    raise
                continue
            self._announced_on = link

    async def _given_again(self, link: Link) -> None:
        """Give the authority all cards of the session where it has called anew."""
        keys = self.card_keys
        if keys is None or self._given_on == (link, keys.key_id):
            return
        if self._given_on[1] != keys.key_id:
            self._cards = {}  # they are for other keys
        refused = await give_cards(link, self.server.run, self._cards)
        for reason in refused.values():
            self.process.say(Warned(f"{link.name}: refuses a card that it had: {reason}"))
        self._given_on = link, keys.key_id


@dataclass(slots=True)
class RemoteMatch:
    """A `MatchChannel` whose scores the authority process opens."""

    authority: AuthorityLine
    noise: ScoreNoise | None
    sealed: bool = True

    @property
    def matcher(self) -> OneTimeMatcher:
        """See `MatchChannel.matcher`."""
        return OneTimeMatcher(self.authority.process.bundle.card_keys)

    def open(self, request: ScoreRequest) -> list[float | None]:
        """See `MatchChannel.open`."""
        return self.authority.open_scores(request)


def _worst(metrics: RoundMetrics) -> str:
    """Return words on the client with the largest loss; empty where only their mean is read."""
    if not metrics.clients:
        return ""
    name, score = max(metrics.clients.items(), key=lambda item: item[1].loss)
    return f", worst {name} with {shown(metrics.metric, score.score)}"


def server_job(config: Config, model: str | None = None) -> Job:
    """Build the server's job; `model` is the code that it lets run (`require_allowed`).

    Raises:
        ConfigError, DataError: see `job_of`.
    """
    check_scope(config)
    if config.samples is None:
        return job_of(config, None)
    require_allowed(config.model.name, model, f"--model {config.model.name}")
    return job_of(config, task_at(config, {}), ())

"""Client process: carries requests to its site, and what the site says back.

Training, sealing and answering run in a thread; heartbeats go on meanwhile.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from securefl.algorithms.standardisation import COLUMN_SUMS
from securefl.build.own_model import code_of
from securefl.errors import KeyFileError, NotOfThisRun, PeerError, SecureFLError
from securefl.exchange.blind import BlindTotal
from securefl.federation.clients_round import Answer
from securefl.federation.contribution import Refused, Sent
from securefl.federation.lineage import Shown
from securefl.federation.message import CARD
from securefl.federation.query import Query
from securefl.federation.site import Answers, Ask, Asked, Begin, Continue, Done, Reply, Request
from securefl.federation.total import read_total, state_digest
from securefl.metrics.by_name import shown, title
from securefl.network import bodies
from securefl.network.connect import Destination, connected
from securefl.network.frames import SMALL, Frame, Link, Received
from securefl.network.identity import ProcessIdentity
from securefl.network.models_shown import ModelsShown
from securefl.network.monitor import ClientMonitor
from securefl.network.party import GONE, ClientParty, PartySession
from securefl.network.saying import SESSION, Warned
from securefl.network.settings import check_officers
from securefl.network.trust import TrustedBundle
from securefl.runs.session import torch_threads
from securefl.settings.digests import digests_by_setting, settings_digest

PAUSE_S = 1.0
"""Seconds before a lost connection is taken up again."""


class _RunOver(Exception):
    """End of the run; the reason is empty where by the server all is well."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final
        """True where no restart of this client's mends it."""

    @classmethod
    def told(cls, body: bytes, name: str) -> "_RunOver":
        """Return it as a server's GOODBYE says it; raises PeerError."""
        said = bodies.parsed(bodies.Reason, body, name)
        return cls(said.reason, final=said.final)


@dataclass(slots=True)
class ClientProcess:
    """Process of one client. What it keeps between rounds lies in its folder."""

    identity: ProcessIdentity
    party: ClientParty
    bundle: TrustedBundle
    say: Callable[[str], None]
    monitor: ClientMonitor = field(default_factory=ClientMonitor)
    _welcomed: bool = False
    """True once it was welcomed on the connection that it has, or had last."""
    _job: str = ""
    """Id of the job that it was welcomed to last."""
    _asked: Counter[str] = field(default_factory=Counter)
    """Last round of each job that a server has asked this process for anything of."""

    async def run(self, server: Destination, patience_s: float) -> None:
        """Take part until the run is over; a lost connection is taken up again.

        Raises:
            NotOfThisRun: the server has no place for it: no restart mends that.
            PeerError: nobody answers or welcomes it for `patience_s`, the peer is not the server,
                has sent this client home, or sends what it may not.
            RunFolderError: what this client keeps cannot be written, or is lost.
        """
        loop, welcomed_at = asyncio.get_running_loop(), -math.inf
        self.monitor.loop = loop
        while True:
            link = await connected(self.identity, self.bundle, "server", server, patience_s)
            link.traffic, self._welcomed = self.monitor.traffic, False
            try:
                await self._take_part(link)
            except _RunOver as over:
                return self._over(link, over)
            except PeerError as error:
                if told := await _last_words(link):
                    return self._over(link, told)
                if self._welcomed:
                    welcomed_at = loop.time()
                elif loop.time() > welcomed_at + patience_s:
                    raise
                link.close()
                self.say(Warned(f"{error}; joining again"))
                await asyncio.sleep(PAUSE_S)
            finally:
                self.monitor.server = ""
                await link.finish()

    def _over(self, link: Link, over: _RunOver) -> None:
        if reason := str(over):
            kind = NotOfThisRun if over.final else PeerError
            raise kind(f"{link.name}: {reason}") from over
        name = self.party.name
        if self._is_done():
            if last := ModelsShown(self.party.folder, name, self._job).last():
                self.say(
                    f"{name}: was shown models of lineage {last.lineage[:16]} up to round "
                    f"{last.round}; the log of each client that was in that round has the same"
                )
            return self.say(f"{name}: the run is over")
        return self.say(
            f"{name}: {link.name} says that the run is over, and has last asked for round "
            f"{self._asked[self._job]} of {self.party.job.config.run.rounds}; what is kept of it "
            f"stays in {self.party.folder}"
        )

    def _is_done(self) -> bool:
        """Return True where the server may say that the job is over, and this client forget it.

        Its last round was asked for; or some round, where the settings draw clients, of whom most
        are not in the last one.
        """
        config, asked = self.party.job.config, self._asked[self._job]
        return asked == config.run.rounds or (asked > 0 and config.selection.selects)

    async def _take_part(self, link: Link) -> None:
        welcome = await self._welcome(link)
        self._welcomed, self._job = True, welcome.job
        self.monitor.server = link.name
        SESSION.set(welcome.run)
        self.say(f"{self.party.name}: joined, {self.party.job.config.run.rounds} rounds")
        self._seal()
        session = self.party.session(welcome.run, welcome.job)
        try:
            while True:
                turn = _Turn(link, session, self.say, await link.receive(session.frames()))
                if turn.received.frame is Frame.BUNDLE:
                    self._take_bundle(turn.received.body)
                else:
                    await self._answer(turn)
        except _RunOver as over:
            if not str(over) and self._is_done() and (own := session.store.forget()):
                self.say(f"{self.party.name}: its own part of the model is in {own}")
            raise
        finally:
            await asyncio.to_thread(session.site.close)

    async def _answer(self, turn: "_Turn") -> None:
        try:
            await turn.answer()
        finally:
            self._asked[self._job] = max(self._asked[self._job], turn.session.asked)
            self.monitor.asked = self._asked[self._job]
        self.monitor.counted += turn.received.frame is Frame.COUNTED

    async def _welcome(self, link: Link) -> bodies.Welcome:
        config = self.party.job.config
        hello = bodies.Hello(
            settings=settings_digest(config),
            by_setting=digests_by_setting(config),
            code=code_of(config),
            age=self.bundle.age,
        )
        await link.send(Frame.HELLO, hello.to_bytes())
        try:
            received = await link.receive({Frame.WELCOME: SMALL, **GONE})
        except PeerError as error:
            raise PeerError(
                f"{error}, without a welcome: does its bundle list {self.party.name}, and with "
                "this certificate?"
            ) from error
        if received.frame is Frame.WELCOME:
            return bodies.parsed(bodies.Welcome, received.body, link.name)
        over = _RunOver.told(received.body, link.name)
        if received.frame is Frame.LEAVE:
            raise PeerError(f"{link.name}: {over}")
        raise over

    def _take_bundle(self, body: bytes) -> None:
        try:
            self.bundle = self.bundle.newer(body.decode())
        except (KeyFileError, UnicodeDecodeError) as error:
            raise _RunOver(f"sent a bundle that is refused: {error}") from error
        self._seal()
        self.say(f"{self.party.name}: epoch {self.bundle.age[0]}")

    def _seal(self) -> None:
        """Seal under the bundle's keys; raises ConfigError where its officers are others."""
        check_officers(self.party.job.config, self.bundle.card_keys.quorum)
        self.party.seal_with(self.bundle)


@dataclass(slots=True)
class _Turn:
    """One frame of the server's, and what follows from it."""

    link: Link
    session: PartySession
    say: Callable[[str], None]
    received: Received

    async def answer(self) -> None:
        """Do what is asked, and send what comes of it."""
        session, name = self.session, self.session.party.name
        match self.received.frame:
            case Frame.GOODBYE:
                raise _RunOver.told(self._body(), self.link.name)
            case Frame.LEAVE:
                left = bodies.parsed(bodies.Reason, self._body(), self.link.name)
                if left.round in {0, session.round}:
                    await asyncio.to_thread(session.site.abandon)
                    session.due = None
                    self.say(Warned(f"{name}: the round goes on without: {left.reason}"))
            case Frame.COUNTED:
                session.store.keep(session.round, [name])
                self.say(f"{name}: round {session.round} counts")
            case Frame.ROUND:
                await self._handle(self._begin)
            case Frame.QUESTION:
                await self._handle(self._question)
                self._say_own_score()
            case _:
                await self._handle(self._total)

    def _body(self) -> bytes:
        """Return the frame's body, which is kept no longer: it may be as large as the model."""
        body, self.received = self.received.body, Received(self.received.frame, b"")
        return body

    def _begin(self) -> Begin:
        session, party = self.session, self.session.party
        server = self.link.name
        head, rest = bodies.apart(bodies.RoundBegins, self._body(), server)
        shown, tensors = bodies.shown_apart(head.shown, rest, server)
        del rest
        self._require_planned(head.round)
        if head.since >= head.round:
            raise PeerError(f"{server}: round {head.round} after round {head.since}")
        if head.times > party.most_times:
            # Its values would be all that is left of a total.
            raise PeerError(
                f"{server}: says that this client counts {head.times} times, and by the "
                f"settings it is {party.most_times} at most"
            )
        state = session.take_state(tensors, head.round, whole=head.whole)
        model = state_digest(state)
        party.require_record("update", head.round, model)
        measures = any(spec.name in COLUMN_SUMS for spec in party.plan(state).sums)
        if measures:  # what is sent is the same in any round
            party.require_record("columns", 0, model)
        session.store.claim("update", head.round)
        now = Shown(head.round, model)
        past = session.models.follow(
            now, shown, head.after, head.signature, self.link, measures=measures
        )
        session.round = session.asked = head.round
        times, since = {party.name: head.times}, {party.name: head.since}
        return Begin(session.run, state, times, since, job=session.job, past=past)

    def _question(self) -> Ask:
        session, name = self.session, self.session.party.name
        head, tensors = bodies.apart(bodies.QuestionBody, self._body(), self.link.name)
        self._require_planned(head.round)
        if head.name not in session.party.questions:
            raise PeerError(
                f"{self.link.name}: asks for {head.name!r}, which these settings have no client "
                "asked for"
            )
        state = session.take_state(tensors, head.round, whole=head.whole)
        if head.name != CARD:  # it says the same again
            session.party.require_record(head.name, head.round, state_digest(state))
            session.store.claim(head.name, head.round)
        session.asked = head.round
        return Ask(
            session.run, Query(head.name, head.unit), state, [name], {name: head.since}, session.job
        )

    def _say_own_score(self) -> None:
        """Say this client's own score, which nobody else may be told, once for each model."""
        session, name = self.session, self.session.party.name
        score = session.respondent.last_score(name)
        if score and score is not session.said:
            session.said = score
            form = session.party.job.config.samples
            self.say(
                f"{name}: {title(score.metric)} {shown(score.metric, score.value)}, loss "
                f"{score.loss:.4g}{form.target_unit if form else ''}, on its own test samples"
            )

    def _require_planned(self, round_number: int) -> None:
        rounds = self.session.party.job.config.run.rounds
        if round_number > rounds:
            raise PeerError(f"{self.link.name}: asks for round {round_number} of {rounds}")

    def _total(self) -> Continue:
        session = self.session
        if session.due is None:
            raise PeerError(f"{self.link.name}: sends a total that was not asked for")
        due, party = session.due, session.party
        session.due, body = None, self._body()
        if party.takes_blind(due):
            return Continue(Answer(BlindTotal.sent_to(party.name, body), [party.name]))
        opened = read_total(body, due.n_values, party.precision, self.link.name)
        return Continue(Answer(opened, [party.name]))

    def _handled(self, parse: Callable[[], Request]) -> Reply:
        with torch_threads(self.session.party.job.training.threads):
            return self.session.site.handle(parse())

    async def _handle(self, parse: Callable[[], Request]) -> None:
        session, client = self.session, self.session.party.name
        try:
            reply = await asyncio.to_thread(self._handled, parse)
        except PeerError:
            raise
        except SecureFLError:
            why = "has failed, and its own log says why"  # with paths that are its own affair
            await self.link.send(Frame.LEAVE, bodies.reason(why))
            raise
        sent: Sent = ()
        match reply:
            case Asked():
                specs = session.party.plan(session.state).sums if session.state else ()
                (session.due,) = (spec for spec in specs if spec.name == reply.name)
                sent = reply.sent[client]
            case Done():
                sent = reply.sent.get(client, ())
            case Answers():
                answer = reply.answers[client]
                sent = answer if isinstance(answer, Refused) else [answer]
        await self._send(sent)
        if isinstance(reply, Done) and not sent:
            await self.link.send(Frame.DONE)

    async def _send(self, sent: Sent) -> None:
        if isinstance(sent, Refused):
            self.say(Warned(sent.reason))
            why = bodies.reason(sent.reason, diverged=sent.diverged)
            await self.link.send(Frame.LEAVE, why)
            return
        for message in sent:
            if isinstance(message, bytes):
                await self.link.send(Frame.MESSAGE, message)


async def _last_words(link: Link) -> _RunOver | None:
    """Return what the server has said before it hung up, where this end noticed while sending."""
    if not link.lost:
        return None
    said = dict.fromkeys(Frame, bodies.MAX_BUNDLE)
    with suppress(PeerError):
        while True:
            received = await link.receive(said)
            if received.frame is Frame.GOODBYE:
                return _RunOver.told(received.body, link.name)
    return None

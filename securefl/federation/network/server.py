"""The server process: all rounds of a run, over connections. It cannot spell a secret key."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from securefl.algorithms.base import load_tensors
from securefl.build.terms import least_clients
from securefl.config.schema import Config
from securefl.errors import (
    ConfigError,
    KeyFileError,
    PeerError,
    SecureFLError,
    TooFewContributions,
    TotalRefused,
)
from securefl.runs.divergence import check_loss
from securefl.exchange.base import Adder
from securefl.exchange.ckks import CkksAdder
from securefl.exchange.plain import PlainChannel
from securefl.federation.incidents import Incident
from securefl.federation.ledger import Ledger
from securefl.federation.network import bodies
from securefl.federation.network.connect import Address, bound, connected, listening
from securefl.federation.network.frames import Frame, Link
from securefl.federation.network.identity import Identity, peer_name
from securefl.federation.network.members import Members
from securefl.federation.network.opening import ask_what_holds
from securefl.federation.network.party import ServerParty, settings_digest
from securefl.federation.network.round import Desk, ServerRound
from securefl.federation.network.trust import ServerBundle
from securefl.federation.server import Server
from securefl.federation.suspects import Suspects
from securefl.metrics import SHARES, shown, title
from securefl.report.pictures import pictures
from securefl.runs.checkpoint import Checkpoint
from securefl.runs.folder_reader import RoundMetrics, read_run
from securefl.runs.folder_writer import RunFolder
from securefl.types import Kind, Plan, State


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the server waits, in seconds."""

    joining_s: float = 120.0
    """For all clients to join, before the first round."""
    client_s: float = 60.0
    """For a client's next message; whoever is late is out of the round."""
    authority_s: float = 30.0
    """For the authority to be there."""


@dataclass(slots=True)
class ServerProcess:
    """The server of one run."""

    identity: Identity
    bundle: ServerBundle
    party: ServerParty
    patience: Patience
    say: Callable[[str], None]
    _ledger: Ledger = field(default_factory=Ledger)
    _incidents: list[Incident] = field(default_factory=list)
    _metrics: list[RoundMetrics] = field(default_factory=list)
    _suspects: Suspects = field(init=False)
    _for_clients: tuple[tuple[int, int], str] = ((0, 0), "")
    """The newest bundle for them, by its age."""

    def __post_init__(self) -> None:
        self._suspects = Suspects(self.party.common.config.exchange.min_clients)

    async def run(self, at: Address, authority: Address | None, folder: RunFolder) -> None:
        """All rounds.

        Raises:
            ConfigError: the address cannot be had, or encryption has no authority.
            Diverged, TooFewContributions, OpeningRefused, PeerError: the run cannot go on; the
                folder holds all rounds before.
        """
        config, patience = self.party.common.config, self.patience
        check_authority(config, authority)
        session, names = secrets.token_hex(32), self.party.common.names
        members = Members(session, settings_digest(config), names, patience.client_s, self.say)
        opener: Link | None = None
        if authority:
            self.say(f"Calling the authority at {authority}")
            opener = await connected(
                self.identity, self.bundle, "authority", authority, patience.authority_s
            )
        door = await listening(self.identity, self._admitted, at, members.welcome, self.say)
        self.say(f"Listening on {bound(door)}")
        reason = "the server was stopped"
        try:
            await self._rounds(session, members, opener, folder)
            reason = ""
        except SecureFLError as error:
            reason = str(error)
            raise
        finally:
            door.close()
            await members.send_home(members.here(), reason)
            if opener:
                await _hang_up(opener)

    def _admitted(self, tls: ssl.SSLObject) -> str:
        return peer_name(tls, self.bundle, "client")

    def _desk(self, session: str, members: Members, opener: Link | None) -> Desk:
        common = self.party.common
        plain = PlainChannel(common.precision, least_clients(common.config))
        adders: dict[Kind, Adder] = dict.fromkeys(Kind, plain)
        adders |= dict.fromkeys(common.sealed, CkksAdder(self.bundle.adding))
        return Desk(
            common,
            Server(session, self.bundle.clients(), adders, self.party.shares),
            members,
            opener,
            plain,
            common.sealed,
            self._ledger,
            self._note,
        )

    async def _take_up_what_holds(self, authority: Link, ready: bodies.Ready) -> None:
        """The epoch that a round runs in, and who takes part, as the authority says."""
        if not (news := (await ask_what_holds(authority, ready)).bundles):
            return
        try:
            self.bundle = self.bundle.newer(news["server"])
        except KeyFileError as error:
            raise PeerError(f"{authority.name}: sent a bundle that is refused: {error}") from error
        self._for_clients = self.bundle.age, news["client"]
        self.say("Epoch {}, roster version {}".format(*self.bundle.age))

    def _ready(self, session: str, round_number: int, needed: int) -> bodies.Ready:
        known, _ = self._for_clients
        return bodies.Ready(run=session, round=round_number, known=known, needed=needed)

    def _needed(self, plan: Plan) -> int:
        """Values that the round may have opened: of sums that are not asked for, too."""
        parameters, sealed = self.bundle.adding.parameters, self.party.common.sealed
        specs = [spec for spec in (*plan.sums, *plan.update) if spec.kind in sealed]
        return sum(parameters.n_released(spec.n_values) for spec in specs)

    async def _present(self, members: Members, round_number: int) -> dict[str, Link]:
        """Who is here, is a client still, and has the keys of this epoch."""
        here, gone = members.here(), dict[str, str]()
        for name, link in here.items():
            try:
                self._admitted(link.tls)
            except PeerError as error:
                gone[name] = str(error)
        for name in self._suspects.guilty & here.keys():
            gone[name] = "is left out of the run: sealed totals of which it is a part are refused"
        for name, why in gone.items():
            await members.send_home({name: here.pop(name)}, why)
        lost = await members.bring_up_to(here, *self._for_clients)
        for name, why in (gone | {name: what.reason for name, what in lost.items()}).items():
            self._note(Incident(round_number, "model", name, f"{name}: {why}"))
        here = {name: link for name, link in here.items() if name not in lost}
        return {name: here[name] for name in self._suspects.taking_part(here)}

    def _note(self, incident: Incident) -> None:
        self._incidents.append(incident)
        self.say(f"Round {incident.round} goes on without {incident.reason}")

    async def _rounds(
        self, session: str, members: Members, opener: Link | None, folder: RunFolder
    ) -> None:
        common = self.party.common
        if opener:
            await self._take_up_what_holds(opener, self._ready(session, 1, 0))
        allowed = self.bundle.clients().names
        awaited = [name for name in members.names if name in allowed]
        await members.all_here(awaited, self.patience.joining_s)
        if missing := sorted(set(members.names) - members.links.keys()):
            self.say(f"Beginning without {', '.join(missing)}")
        state = common.algorithm.init(common.model)
        while state.round < common.config.run.rounds:
            plan = common.algorithm.plan(state, common.model)
            if opener:
                ready = self._ready(session, state.round + 1, self._needed(plan))
                await self._take_up_what_holds(opener, ready)
            desk = self._desk(session, members, opener)
            state = await self._round(desk, folder, state, plan)
        folder.note_model(common.model.state_dict())
        for name, png in pictures(read_run(folder.path)).items():
            folder.note_picture(name, png)

    async def _round(self, desk: Desk, folder: RunFolder, state: State, plan: Plan) -> State:
        started, common = time.perf_counter(), self.party.common
        n_entries, n_incidents = len(self._ledger.entries), len(self._incidents)
        try:
            here = await self._present(desk.members, state.round + 1)
            if (n_present := len(here)) < desk.plain.min_clients:
                raise TooFewContributions(
                    f"round {state.round + 1}: {n_present} clients are connected, at least "
                    f"{desk.plain.min_clients} (exchange.min_clients) are needed"
                )
            after = await self._after(ServerRound(desk, state, plan, here))
        finally:  # a round that fails leaves evidence too
            entries = self._ledger.entries[n_entries:]
            incidents = self._incidents[n_incidents:]
            folder.note_messages(entries, incidents)
        load_tensors(common.model, after)
        score = await asyncio.to_thread(self.party.bench.score, common.model, after, {})
        check_loss(after.round, score.loss, self._metrics)
        metrics = RoundMetrics(
            round=after.round,
            accuracy=score.value if score.metric in SHARES else None,
            loss=score.loss,
            lr=common.training.sgd(state.round).lr,
            upload_bytes=sum(Ledger(entries).upload_bytes().values()),
            dropped=tuple(sorted({incident.client for incident in incidents})),
            seconds=time.perf_counter() - started,
            metric=score.metric,
            score=score.value,
        )
        self._metrics.append(metrics)
        folder.note_round(metrics, Checkpoint(after, {}))
        self.say(
            f"Round {after.round}/{common.config.run.rounds}: {title(score.metric)} "
            f"{shown(score.metric, score.value)}, {n_present} clients"
        )
        return after

    async def _after(self, ongoing: ServerRound) -> State:
        """The state after a round; after one whose total is refused, the state before.

        Raises:
            TotalRefused: too few clients are left to find out whose fault it is.
        """
        known = set(self._suspects.guilty)
        try:
            after = await ongoing.run()
        except TotalRefused as error:
            among = [*ongoing.present]
            self.say(f"Round {ongoing.number} is passed: {error}")
            after = await ongoing.passed(error)
            if not self._suspects.refused(among):
                raise TotalRefused(
                    f"{error}; one of {', '.join(among)} has spoiled it, and where one is left out "
                    "the others are too few, or do so too: revoke whom you do not trust"
                ) from error
        else:
            self._suspects.opened()
        for name in sorted(self._suspects.guilty - known):
            why = f"{name}: left out from now on: totals open without it, and with it are refused"
            self._note(Incident(ongoing.number, "total", name, why))
        return after


def check_authority(config: Config, authority: Address | None) -> None:
    """Raise ConfigError where there is one and nothing for it to open, or the reverse."""
    if (authority is not None) != config.exchange.seals_sums:
        raise ConfigError(
            f"exchange.encrypt = {[str(part) for part in config.exchange.encrypt]}: encrypted "
            "sums need --authority, and sums in the clear do not"
        )


async def _hang_up(authority: Link) -> None:
    with suppress(PeerError):  # it may be the reason why the run ends
        await authority.send(Frame.GOODBYE, bodies.reason(""))
    authority.close()

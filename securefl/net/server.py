"""The server process: all rounds of a run, over connections. It cannot spell a secret key."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from securefl.algorithms.base import load_tensors
from securefl.checkpoint import Checkpoint
from securefl.crypto.public import AddingContext
from securefl.engines.incidents import Incident
from securefl.errors import ConfigError, Diverged, PeerError, SecureFLError, TooFewContributions
from securefl.exchange.base import Adder
from securefl.exchange.ckks import CkksAdder
from securefl.exchange.plain import PlainChannel
from securefl.net import bodies
from securefl.net.connect import Address, bound, connected, listening
from securefl.net.frames import Frame, Link
from securefl.net.identity import Identity
from securefl.net.members import Members
from securefl.net.party import ServerParty, settings_digest
from securefl.net.round import Desk, ServerRound
from securefl.report.pictures import pictures
from securefl.roles.ledger import Ledger
from securefl.roles.server import Server
from securefl.roles.wire import Roster
from securefl.runfolder import RunFolder
from securefl.runrecord import RoundMetrics, read_run
from securefl.terms import sealed_kinds
from securefl.types import Kind, State


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
    party: ServerParty
    clients: Mapping[str, Ed25519PublicKey]
    adding: AddingContext | None
    """CKKS parameters; None where nothing is encrypted."""
    patience: Patience
    say: Callable[[str], None]
    _ledger: Ledger = field(default_factory=Ledger)
    _incidents: list[Incident] = field(default_factory=list)
    _metrics: list[RoundMetrics] = field(default_factory=list)

    async def run(self, at: Address, authority: Address | None, folder: RunFolder) -> None:
        """All rounds.

        Raises:
            ConfigError: the address cannot be had, or encryption has no authority.
            Diverged, TooFewContributions, OpeningRefused, PeerError: the run cannot go on; the
                folder holds all rounds before.
        """
        session, config = secrets.token_hex(32), self.party.common.config
        if (authority is None) != (self.adding is None):
            raise ConfigError(
                f"exchange.encrypt = {[str(part) for part in config.exchange.encrypt]}: encrypted "
                "sums need --parameters and --authority, and sums in the clear neither"
            )
        key_id = self.adding.key_id if self.adding else ""
        members = Members(
            session,
            settings_digest(config),
            key_id,
            tuple(self.clients),
            self.patience.client_s,
            self.say,
        )
        opener: Link | None = None
        if authority:
            opener = await connected(self.identity, authority, self.patience.authority_s)
        door = await listening(self.identity, at, self.clients, members.welcome, self.say)
        self.say(f"Listening on {bound(door)}")
        reason = "the server was stopped"
        try:
            await self._rounds(self._desk(session, members, opener), folder)
            reason = ""
        except SecureFLError as error:
            reason = str(error)
            raise
        finally:
            door.close()
            await members.goodbye(reason)
            if opener:
                await _hang_up(opener)

    def _desk(self, session: str, members: Members, opener: Link | None) -> Desk:
        common = self.party.common
        plain = PlainChannel(common.precision)
        sealed = sealed_kinds(common.config)
        adders: dict[Kind, Adder] = dict.fromkeys(Kind, plain)
        if self.adding:
            adders |= dict.fromkeys(sealed, CkksAdder(self.adding))
        return Desk(
            common,
            Server(session, Roster(self.clients), adders),
            members,
            opener,
            plain,
            sealed,
            self._ledger,
            self._note,
        )

    def _note(self, incident: Incident) -> None:
        self._incidents.append(incident)
        self.say(f"Round {incident.round} goes on without {incident.reason}")

    async def _rounds(self, desk: Desk, folder: RunFolder) -> None:
        members, common = desk.members, self.party.common
        if not await members.all_here(self.patience.joining_s):
            missing = sorted(set(members.names) - members.links.keys())
            self.say(f"Beginning without {', '.join(missing)}")
        state = common.algorithm.init(common.model)
        while state.round < common.config.run.rounds:
            state = await self._round(desk, folder, state)
        folder.note_model(common.model.state_dict())
        for name, png in pictures(read_run(folder.path)).items():
            folder.note_picture(name, png)

    async def _round(self, desk: Desk, folder: RunFolder, state: State) -> State:
        started, common = time.perf_counter(), self.party.common
        n_entries, n_incidents = len(self._ledger.entries), len(self._incidents)
        plan = common.algorithm.plan(state, common.model)
        if not (here := desk.members.here()):
            raise TooFewContributions(f"round {state.round + 1}: no client is connected")
        try:
            after = await ServerRound(desk, state, plan, here).run()
        finally:  # a round that fails leaves evidence too
            entries = self._ledger.entries[n_entries:]
            incidents = self._incidents[n_incidents:]
            folder.note_messages(entries, incidents)
        load_tensors(common.model, after)
        score = self.party.bench.score(common.model, after, {})
        if not math.isfinite(score.loss):
            raise Diverged(
                f"round {after.round}: the loss on the test data is not finite: training diverged. "
                "Lower train.lr, or drop it earlier (train.lr_drops)"
            )
        metrics = RoundMetrics(
            round=after.round,
            accuracy=score.accuracy,
            loss=score.loss,
            lr=common.training.sgd(state.round).lr,
            upload_bytes=sum(Ledger(entries).upload_bytes().values()),
            dropped=tuple(sorted({incident.client for incident in incidents})),
            seconds=time.perf_counter() - started,
        )
        self._metrics.append(metrics)
        folder.note_round(metrics, Checkpoint(after, {}))
        self.say(
            f"Round {after.round}/{common.config.run.rounds}: accuracy {score.accuracy:.3f}, "
            f"{len(here)} clients"
        )
        return after


async def _hang_up(authority: Link) -> None:
    with suppress(PeerError):  # it may be the reason why the run ends
        await authority.send(Frame.GOODBYE, bodies.reason(""))
    authority.close()

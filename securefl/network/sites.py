"""Clients in other processes, as the loop of rounds sees them: asked over their connections.

The loop runs in a thread of its own; connections live in the event loop, and each call waits there.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from securefl.errors import PeerError
from securefl.federation.contribution import Refused
from securefl.federation.incidents import Incident
from securefl.federation.query import Query
from securefl.federation.remote import Sites
from securefl.federation.round import OpenSum, ServerRound
from securefl.federation.server import Server
from securefl.federation.site import Ask
from securefl.network.identity import name_of
from securefl.network.limits import Room
from securefl.network.loop_work import LoopWork
from securefl.network.members import Members
from securefl.network.monitor import WAIT
from securefl.network.saying import Warned
from securefl.network.site_calls import SiteCalls
from securefl.network.site_transport import SiteTransport
from securefl.network.trust import TrustedBundle
from securefl.types import ClientState, State


@dataclass(slots=True)
class NetworkSites:
    """`Engine` over connections; each site is one client, by its name."""

    loop: asyncio.AbstractEventLoop
    members: Members
    server: Server
    bundle: Callable[[], TrustedBundle]
    """Function that returns the bundle in force."""
    for_clients: Callable[[], tuple[tuple[int, int], str]]
    """Function that returns the newest bundle for clients, by its age."""
    quorum: int
    """Number of clients without whom no round begins."""
    wait_s: float
    """Seconds that a round waits for them; infinite where it waits as long as it takes."""
    joining_s: float
    """Seconds for all clients to join, before the first round, or each of a reproducible run."""
    reproducible: bool
    """True where the run goes on with all its clients, or ends where it can be resumed."""
    say: Callable[[str], None]
    phase: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    """Counts the time of a phase."""
    joined: Mapping[str, int] = field(default_factory=dict)
    """First round of each client that has joined in mid-study."""
    since: Callable[[], Mapping[str, int]] = dict
    """The last round of each client whose contributions counted."""
    missing: Callable[[Collection[str]], Sequence[str]] = lambda _here: ()
    """Returns the clients that a round waits for beside a quorum, of those that are here."""
    room: Room = field(default_factory=Room)
    """Room for contributions that come before their turn."""
    in_memory: bool = False
    calls: SiteCalls = field(init=False)
    _work: LoopWork = field(init=False)
    _sites: Sites = field(init=False)
    _begun: bool = False

    def __post_init__(self) -> None:
        self.calls, self._work = SiteCalls(self.server), LoopWork(self.loop)
        transport = SiteTransport(self.members, self._work, self.room, self.phase)
        self._sites = Sites(transport, self.calls.of, {n: n for n in self.members.names})

    # The loop of rounds calls these, from its thread.

    @property
    def client_states(self) -> Mapping[str, ClientState]:
        """States of clients, of which each keeps its own: see `Engine.client_states`."""
        return {}

    def restore(self, client_states: Mapping[str, ClientState]) -> None:
        """Restore nothing, as each client has its own: see `Engine.restore`."""

    def present(self, round_number: int, names: Sequence[str]) -> Sequence[str]:
        """Return the present clients, see `Engine.present`, after giving them keys and roster.

        Raises:
            PeerError: the server is being stopped, or a client of a reproducible run is missing.
        """
        with self.phase(WAIT):
            here = set(self._work.waited(self._present(round_number, names)))
        return [name for name in names if name in here]

    def connected(self) -> list[str]:
        """Return the clients that are connected now, in the roster's order."""
        return self._work.waited(self._connected())

    def train(self, ongoing: ServerRound, open_sum: OpenSum) -> None:
        """Train the round: see `Engine.train`."""
        self._sites.train(ongoing, open_sum)

    def counted(self, ongoing: ServerRound) -> None:
        """Keep the new states: see `Engine.counted`."""
        self._sites.counted(ongoing)

    def answers(
        self, run: str, query: Query, state: State, names: Collection[str]
    ) -> Mapping[str, bytes | Refused]:
        """Answer a query: see `Engine.answers`."""
        since = {name: self.since().get(name, 0) for name in names}
        return self._sites.answers(Ask(run, query, state, names, since, self.server.job))

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Leave clients out: see `Engine.leave_out`."""
        self._work.waited(self._send_home(reasons))

    def close(self) -> None:
        """Close, see `Engine.close`: whoever has opened the door closes it."""

    async def stop(self) -> None:
        """End what is waited for, and refuse whatever comes after it; in the event loop."""
        await self._work.stop()

    # In the event loop.

    async def _present(self, round_number: int, names: Sequence[str]) -> list[str]:
        members, first = self.members, not self._begun
        self.server.roster = self.bundle().clients()
        later = {name for name, number in self.joined.items() if number > round_number}
        due = [name for name in names if name not in later]
        awaited = [name for name in due if name in self.server.roster.names]
        if first or self.reproducible:
            self._begun = True
            await members.all_here(awaited, self.joining_s)
        if math.isinf(self.wait_s) or not (first or self.reproducible):
            await self._wait_on(round_number, awaited)
        here = members.here()
        await self._send_home({n: f"{n}: left out of this run" for n in here if n not in names})
        here, gone = {n: link for n, link in here.items() if n in names}, dict[str, str]()
        here = {n: link for n, link in here.items() if n not in later}
        for name, link in here.items():
            try:
                name_of(self.bundle().transport_holder, link.certificate, "client")
            except PeerError as error:
                gone[name] = str(error)
        await self._send_home(gone)
        here = {name: link for name, link in here.items() if name not in gone}
        if first:
            gone = {}  # who is none at first takes no part
            if missing := sorted(set(names) - later - here.keys()):
                self.say(Warned(f"Beginning without {', '.join(missing)}"))
        lost = await members.bring_up_to(here, *self.for_clients())
        for name, why in (gone | {name: what.reason for name, what in lost.items()}).items():
            self.server.report(Incident(round_number, "model", name, f"{name}: {why}"))
        present = [name for name in here if name not in lost]
        absent = [name for name in awaited if name not in present]
        if self.reproducible and absent:
            raise cannot_go_on(f"{', '.join(absent)}: not connected")
        if len(present) >= self.quorum:  # else the round passes or ends, and says of whom
            for name in absent:
                if name not in lost and name not in gone:
                    self.server.report(_away(round_number, name))
        return present

    async def _wait_on(self, round_number: int, awaited: Sequence[str]) -> None:
        """Wait for a quorum, or for all clients of a reproducible run."""
        members, wanted = self.members, len(awaited) if self.reproducible else self.quorum
        if not members.are_here(awaited, wanted):
            away = ", ".join(name for name in awaited if name not in members.here())
            long = "as long as it takes" if math.isinf(self.wait_s) else f"{self.wait_s:g} s"
            whom = "all clients" if self.reproducible else "a quorum"
            self.say(Warned(f"Round {round_number} waits {long} for {whom}; away: {away}"))
            await members.all_here(awaited, self.wait_s, wanted)
        here = [name for name in awaited if name in members.here()]
        missing = await asyncio.to_thread(self.missing, here)  # a search of lists takes long
        if missing := [name for name in missing if name in awaited]:
            self.say(
                Warned(
                    f"Round {round_number} waits for {', '.join(missing)}: totals at this model "
                    "were opened with them, and without them show too few"
                )
            )
            await members.all_here(missing, self.wait_s)

    async def _connected(self) -> list[str]:
        return list(self.members.here())

    async def _send_home(self, reasons: Mapping[str, str]) -> None:
        for name, why in reasons.items():
            if link := self.members.links.get(name):
                await self.members.send_home({name: link}, why)


def cannot_go_on(without: str) -> PeerError:
    """Return the error that ends a reproducible run, which would end elsewhere without a client."""
    return PeerError(
        f"{without}: run.reproducible goes on with all clients or not at all: start those that "
        "have ended, then this server, each with the same command"
    )


def _away(round_number: int, name: str) -> Incident:
    return Incident(round_number, "round", name, f"{name}: is not connected as the round begins")

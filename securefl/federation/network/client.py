"""The client process: joins the server, trains on its own data, sends what it has sealed.

Its work runs in a thread, which stops where it asks for a sum until the total has come.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from securefl.errors import KeyFileError, PeerError, ValueRefused
from securefl.exchange.layout import unpack
from securefl.federation.client import Client
from securefl.federation.network import bodies
from securefl.federation.network.connect import Address, connected
from securefl.federation.network.frames import SMALL, Frame, Link
from securefl.federation.network.identity import Identity
from securefl.federation.network.party import ClientParty, sealers, settings_digest
from securefl.federation.network.trust import ClientBundle
from securefl.federation.state_digest import state_digest, with_total
from securefl.simulation.rng_isolation import LayerDraws
from securefl.simulation.threads import torch_threads
from securefl.types import Contribution, Memory, MessageSpec, NamedTensors, Plan, State, Total

GONE = {Frame.LEAVE: SMALL, Frame.GOODBYE: SMALL}
"""What the server may always say instead."""
PAUSE_S = 1.0
"""Before a lost connection is taken up again."""


class _LeftRound(BaseException):
    """Ends the work of a round that goes on without this client.

    A BaseException, so that no code that catches Exception goes on.
    """


class _RunOver(Exception):
    """Nothing comes any more of this run; the reason is empty where all rounds are done."""


@dataclass(slots=True)
class ClientProcess:
    """One client. What it keeps between rounds outlives a lost connection."""

    identity: Identity
    party: ClientParty
    client: Client
    bundle: ClientBundle
    say: Callable[[str], None]
    memory: Memory = field(default_factory=Memory)
    _begun: dict[str, int] = field(default_factory=dict)
    """Of each run, the last round that this client has sent anything for."""
    _welcomed: bool = False
    """On the connection that it has, or had last."""

    async def run(self, server: Address, patience_s: float) -> None:
        """Take part until the run is over; a lost connection is taken up again.

        Raises:
            PeerError: nobody answers or welcomes it for `patience_s`, the peer is not the server,
                has sent this client home, or sends what it may not.
        """
        loop, welcomed_at = asyncio.get_running_loop(), -math.inf
        while True:
            link = await connected(self.identity, self.bundle, "server", server, patience_s)
            self._welcomed = False
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
                self.say(f"{error}; joining again")
                await asyncio.sleep(PAUSE_S)
            finally:
                link.close()

    def _over(self, link: Link, over: _RunOver) -> None:
        if reason := str(over):
            raise PeerError(f"{link.name}: {reason}") from over
        self.say(f"{self.client.name}: the run is over")

    async def _take_part(self, link: Link) -> None:
        digest = settings_digest(self.party.common.config)
        hello = bodies.Hello(settings=digest, age=self.bundle.age)
        await link.send(Frame.HELLO, hello.to_bytes())
        try:
            body = await self._receive(link, Frame.WELCOME, SMALL)
        except _LeftRound as error:
            raise PeerError(f"{link.name}: {error}") from None
        except PeerError as error:
            raise PeerError(
                f"{error}, without a welcome: does its bundle list {self.client.name}, and with "
                "this certificate?"
            ) from error
        run = bodies.parsed(bodies.Welcome, body, link.name).run
        self._welcomed = True
        common = self.party.common
        self.say(f"{self.client.name}: joined, {common.config.run.rounds} rounds")
        like = common.algorithm.init(common.model)
        while True:
            body = await self._next_round(link)
            number = bodies.parsed(bodies.RoundBegins, body, link.name).round
            if number <= self._begun.get(run, 0):
                # Two contributions under one name would show their difference.
                raise PeerError(f"{link.name}: asks for round {number} again")
            body = await self._receive(link, Frame.MODEL, bodies.max_state_bytes(like))
            self._begun[run] = number
            state = bodies.read_state(body, like, number - 1)
            try:
                await self._round(link, run, state)
                self.say(f"{self.client.name}: round {number} counts")
            except _LeftRound as error:
                self.say(f"{self.client.name}: round {number} goes on without: {error}")

    async def _next_round(self, link: Link) -> bytes:
        """The round that begins; before it, the keys of another epoch may come."""
        while True:
            received = await link.receive(
                {Frame.ROUND: SMALL, Frame.BUNDLE: bodies.MAX_BUNDLE, Frame.GOODBYE: SMALL}
            )
            if received.frame is Frame.ROUND:
                return received.body
            if received.frame is Frame.GOODBYE:
                raise _RunOver(bodies.parsed(bodies.Reason, received.body, link.name).reason)
            try:
                self.bundle = self.bundle.newer(received.body.decode())
            except (KeyFileError, UnicodeDecodeError) as error:
                raise _RunOver(f"sent a bundle that is refused: {error}") from error
            self.client.sealers = sealers(self.party.common, self.bundle.public)
            self.say(f"{self.client.name}: epoch {self.bundle.age[0]}")

    async def _round(self, link: Link, run: str, state: State) -> None:
        common = self.party.common
        plan = common.algorithm.plan(state, common.model)
        about = run, state.round + 1, state_digest(state)
        ends = _Exchange(self, link, *about, plan, asyncio.get_running_loop())
        try:
            contribution = await asyncio.to_thread(self._work, state, ends)
            for spec in plan.update:
                await ends.give(spec, contribution.tensors[spec.kind])
        except ValueRefused as error:
            self.say(str(error))  # with the value, which is this client's own
            await link.send(Frame.LEAVE, bodies.reason(error.without_value))
            raise _LeftRound("its values cannot be sent") from error
        await self._receive(link, Frame.COUNTED, 0)
        self.memory = contribution.memory

    def _work(self, state: State, exchange: _Exchange) -> Contribution:
        common = self.party.common
        work = self.party.work(exchange.run, state, self.memory)
        draws = LayerDraws(next(common.model.parameters()).device, work.rng)
        with torch_threads(self.party.clients.training.threads), draws.drawing():
            return common.algorithm.client(state, work, exchange)

    async def _receive(self, link: Link, frame: Frame, size: int) -> bytes:
        received = await link.receive({frame: size, **GONE})
        if received.frame is frame:
            return received.body
        why = bodies.parsed(bodies.Reason, received.body, link.name).reason
        if received.frame is Frame.LEAVE:
            raise _LeftRound(why)
        raise _RunOver(why)


async def _last_words(link: Link) -> _RunOver | None:
    """What the server has said before it hung up, where this end was sending when it noticed."""
    if not link.lost:
        return None
    said = dict.fromkeys(Frame, bodies.MAX_BUNDLE)
    with suppress(PeerError):
        while True:
            received = await link.receive(said)
            if received.frame is Frame.GOODBYE:
                return _RunOver(bodies.parsed(bodies.Reason, received.body, link.name).reason)
    return None


@dataclass(slots=True)
class _Exchange:
    """One round's end of the exchange, for the thread that works."""

    process: ClientProcess
    link: Link
    run: str
    round: int
    state: str
    """Digest of the model that it was sent, and of the totals since."""
    plan: Plan
    loop: asyncio.AbstractEventLoop
    asked: set[str] = field(default_factory=set)

    @property
    def weight(self) -> float:
        return self.process.client.weight

    def sum(self, name: str, values: NamedTensors) -> Total:
        return asyncio.run_coroutine_threadsafe(self._sum(name, values), self.loop).result()

    async def _sum(self, name: str, values: NamedTensors) -> Total:
        (spec,) = (spec for spec in self.plan.sums if spec.name == name)
        await self.give(spec, values)
        precision = self.process.party.common.precision
        size = bodies.n_total_bytes(spec.n_values, precision)
        body = await self.process._receive(self.link, Frame.TOTAL, size)  # noqa: SLF001
        self.state = with_total(self.state, body)
        opened = bodies.read_total(body, spec.n_values, precision, self.link.name)
        return Total(unpack(opened.values, values), opened.weight, opened.n_clients)

    async def give(self, spec: MessageSpec, values: NamedTensors) -> None:
        if spec.name in self.asked:
            raise PeerError(f"the sum {spec.name!r} is asked for twice in round {self.round}")
        self.asked.add(spec.name)
        client, about = self.process.client, (self.run, self.round)
        # In a thread, as training: heartbeats go on meanwhile.
        message = await asyncio.to_thread(client.contribute, *about, spec, values, state=self.state)
        await self.link.send(Frame.MESSAGE, message)

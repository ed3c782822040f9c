"""One sealed exchange: a server sends a total, clients seal values, an authority opens their sum.

All roles do what they do in a round, the authority's log on the disk included; what a round begins
with (READY, in which keys and roster are looked at) is timed apart.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from securefl import load_config
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.sums import OpenedSum
from securefl.federation.client import Client
from securefl.federation.server import Server
from securefl.federation.total import RELEASED, n_total_bytes
from securefl.network import bodies
from securefl.network.authority import AuthorityLog, AuthorityProcess
from securefl.network.authority_line import ask_to_open, ask_what_holds, give_cards
from securefl.network.frames import Frame, Link
from securefl.network.identity import ProcessIdentity
from securefl.network.trust import Role
from securefl.settings.digests import settings_digest
from securefl.types import Kind, MessageSpec
from securefl_keys.authority_keys import FolderKeeper
from securefl_keys.bundle import VerifiedBundle

Answer = TypeVar("Answer")
REPEATS = 50
WARM = 3


@dataclass(slots=True)
class SealedExchange:
    """Parties of exchanges of so many values, with their connections."""

    bundles: Mapping[Role, VerifiedBundle]
    clients: Sequence[tuple[ProcessIdentity, Link]]
    """Clients, each with its end of its connection."""
    links: Sequence[Link]
    """Ends of the server, in any order."""
    to_authority: Link
    config: str
    """Digest of the settings."""
    n_values: int
    run: str = field(default_factory=lambda: secrets.token_hex(32))
    _spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of each part of an exchange, of all clients."""

    async def median_ms(self) -> dict[str, float]:
        """Return the milliseconds of an exchange and of its parts, medians."""
        found: dict[str, list[float]] = {}
        for number in range(1, WARM + REPEATS + 1):
            self._spent.clear()
            await self._announced(number)
            start = time.perf_counter()
            await self._exchange(number)
            self._spent["in all"] = time.perf_counter() - start
            for part, seconds in self._spent.items():
                found.setdefault(part, []).append(1000 * seconds)
        return {part: median(ms[WARM:]) for part, ms in found.items()}

    @property
    def _spec(self) -> MessageSpec:
        return MessageSpec("update/parameters", Kind.PARAMETERS, self.n_values)

    async def _announced(self, number: int) -> None:
        server, start = self.bundles["server"], time.perf_counter()
        ready = bodies.Ready(
            run=self.run,
            settings=self.config,
            round=number,
            known=server.age,
            needed=self.n_values,
        )
        await ask_what_holds(self.to_authority, ready)
        self._spent["READY before"] = time.perf_counter() - start
        if number == 1:
            cards = {own.name: self._client(own).send_cards(self.run) for own, _ in self.clients}
            if refused := await give_cards(self.to_authority, self.run, cards):
                raise RuntimeError(f"cards are refused: {refused}")

    async def _exchange(self, number: int) -> None:
        bundle = self.bundles["server"]
        adders = {Kind.PARAMETERS: OneTimeAdder(bundle.card_keys)}
        server = Server(self.run, bundle.clients(), adders, sealed=frozenset(adders))
        running = server.start(number, self._spec)
        names = [identity.name for identity, _ in self.clients]
        most = max(server.n_bytes(number, self._spec, name) for name in names)
        body = bytes(n_total_bytes(self.n_values, RELEASED))

        async def ask(link: Link) -> None:
            await link.send(Frame.ROUND, body)
            message = (await link.receive({Frame.MESSAGE: most})).body
            self._timed("check and add", lambda: running.receive(message))

        answers = (self._answer(number, *client, len(body)) for client in self.clients)
        await asyncio.gather(*answers, *map(ask, self.links))
        start = time.perf_counter()
        opened = await ask_to_open(self.to_authority, running.request())
        self._spent["open"] = time.perf_counter() - start
        values = opened.values if isinstance(opened, OpenedSum) else ()
        if (opened.n_clients, len(values)) != (len(self.clients), self.n_values):
            raise RuntimeError("the total is of others")

    async def _answer(self, number: int, own: ProcessIdentity, link: Link, size: int) -> None:
        await link.receive({Frame.ROUND: size})
        client = self._client(own)
        values = {"w": torch.linspace(-1, 1, self.n_values, dtype=torch.float64)}
        message = self._timed(
            "seal and sign", lambda: client.contribute(self.run, number, self._spec, values)
        )
        await link.send(Frame.MESSAGE, message)

    def _client(self, own: ProcessIdentity) -> Client:
        keys, weight = self.bundles["client"].card_keys, 1 / len(self.clients)
        sealers = {Kind.PARAMETERS: OneTimeSealer(keys)}
        return Client(own.name, weight, sealers, card_keys=keys, signing_key=own.key)

    def _timed(self, part: str, work: Callable[[], Answer]) -> Answer:
        start = time.perf_counter()
        answer = work()
        self._spent[part] += time.perf_counter() - start
        return answer


def authority_of(
    folder: Path, passphrase: str, names: Sequence[str]
) -> tuple[AuthorityProcess, str]:
    """Return the authority of a consortium's keys, and the digest of its settings."""
    settings = [f"data.names={json.dumps(names)}", "exchange.encrypt=model"]
    config = load_config(None, settings)
    log = AuthorityLog(folder / "log", digest := settings_digest(config))
    return AuthorityProcess(FolderKeeper(folder / "keys", passphrase), config, log, _silent), digest


def _silent(line: str) -> None:
    del line

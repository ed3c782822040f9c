"""A server, its authority and clients, made to be asked for sums as one likes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import torch

from securefl.audit.tracing.seen_layers import Array
from securefl.build.training import equal_weight
from securefl.crypto.params import SUMS
from securefl.errors import MessageRefused, OpeningRefused
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.policy import Policy
from securefl.exchange.sums import OpenedSum
from securefl.federation.authority import Authority
from securefl.federation.client import Client, Identities
from securefl.federation.opening import Opening
from securefl.federation.server import Server
from securefl.types import Kind, MessageSpec

RUN = "0" * 64


@final
class AdversarialServer:
    """All clients count alike. Keys and identities are made here, and end with it."""

    values_per_ciphertext = SUMS.values_per_ciphertext

    def __init__(self, n_clients: int, policy: Policy) -> None:
        keys = KeySet.ephemeral()
        names = [f"client-{i}" for i in range(1, n_clients + 1)]
        identities = Identities.ephemeral(names)
        weight = equal_weight(n_clients)
        sealers = {Kind.STATISTICS: OneTimeSealer(keys.public)}
        self._clients = [
            Client(
                name,
                weight,
                sealers,
                weight,
                card_keys=keys.public,
                signing_key=identities.keys[name],
            )
            for name in names
        ]
        self.log: list[Opening] = []
        self._authority = Authority(keys.opener(), identities.roster, policy, self.log.append)
        cards = {client.name: client.send_cards(RUN) for client in self._clients}
        if refused := self._authority.take_cards(RUN, cards):
            raise RuntimeError(f"the authority refuses cards: {refused}")
        self._server = Server(RUN, identities.roster, {Kind.STATISTICS: OneTimeAdder(keys.public)})

    def total(self, round_number: int, name: str, values: Sequence[Array]) -> OpenedSum:
        """What the authority opens of as many of the clients, in their order, as have values.

        Raises:
            OpeningRefused: as in `Authority.open`.
        """
        spec = MessageSpec(name, Kind.STATISTICS, len(values[0]))
        running = self._server.start(round_number, spec)
        for client, own in zip(self._clients[: len(values)], values, strict=True):
            tensors = {"values": torch.from_numpy(own)}
            running.receive(client.contribute(RUN, round_number, spec, tensors))
        return cast("OpenedSum", self._authority.open(running.request()))

    def refusal(self, round_number: int, name: str, values: Sequence[Array]) -> str:
        """Why it refuses; empty where it opens."""
        try:
            self.total(round_number, name, values)
        except (MessageRefused, OpeningRefused) as error:
            return str(error)
        return ""

"""Messages of a simulation: sealed ones are bytes; what is in the clear is handed over in memory.

Handed over, values count just as they would if they had crossed the wire, and nobody signs, hashes
or parses anything. Where somebody listens (`Ledger.tap`), there is a wire, and all are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from securefl.errors import Duplicate, MessageRefused, ValueRefused
from securefl.exchange.base import OpenedSum, Values
from securefl.exchange.layout import Rows
from securefl.exchange.plain import PlainChannel, PlainSum
from securefl.federation.client import Client, Handed
from securefl.federation.message import Roster
from securefl.types import MessageSpec, NamedTensors

Parcel = bytes | Handed


@dataclass(frozen=True, slots=True)
class Unsent:
    """Nothing leaves the client, since a value of this message cannot be sent."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Way:
    """How one message of a round goes from clients to the server."""

    spec: MessageSpec
    handed: bool
    """In memory, in the place of signed bytes."""

    def parcel(
        self, client: Client, about: tuple[str, int, str], tensors: NamedTensors, times: int
    ) -> Parcel:
        """What leaves a client that counts `times` times; raises ValueRefused for its values."""
        if self.handed:
            return client.hand_over(self.spec, tensors, times)
        run, round_number, state = about
        return client.contribute(run, round_number, self.spec, tensors, times, state)


def parcels(
    ways: Sequence[Way],
    client: Client,
    about: tuple[str, int, str],
    tensors: Mapping[str, NamedTensors],
    times: int,
) -> list[Parcel] | Unsent:
    """A client's messages that travel together, `about` a run, a round and the model's digest.

    All of them, or none.
    """
    made = []
    for way in ways:
        try:
            made.append(way.parcel(client, about, tensors[way.spec.name], times))
        except ValueRefused as error:
            return Unsent(way.spec.name, error.without_value)  # the value is the client's
    return made


@dataclass(frozen=True, slots=True)
class HandedRows:
    """One message of each of these clients."""

    names: Sequence[str]
    rows: Rows
    weights: Sequence[float]
    unsent: Mapping[str, Unsent]
    """Of whom nothing leaves."""


class HandedSum:
    """The server's sum of what is handed over."""

    def __init__(self, plain: PlainChannel, roster: Roster, n_values: int) -> None:
        self._plain = plain
        self._roster = roster
        self._values: Values = np.zeros(n_values)
        self._weighted: Values = np.empty(n_values)
        self._weight = 0.0
        self._names: set[str] = set()

    def admit(self, sender: str, handed: Handed) -> Callable[[], None]:
        """What comes back adds a contribution.

        Raises:
            UnknownSender, SenderExpired, SenderRevoked: of nobody who may take part.
            Duplicate: the client has contributed already.
            MessageRefused: for its size or its weight.
        """
        self.check(sender, handed.weight, len(handed.values))

        def add() -> None:
            sent = handed.values.astype(self._plain.dtype, copy=False)
            np.multiply(sent, handed.weight, out=self._weighted, dtype=np.float64)
            self._values += self._weighted
            self._weight += handed.weight
            self._names.add(sender)

        return add

    def check(self, sender: str, weight: float, n_values: int) -> None:
        """Raises as `admit` does, of a contribution of so many values."""
        self._roster.key_of(sender)
        if not 0 < weight <= 1:
            raise MessageRefused(f"{sender}: weight {weight} outside (0, 1]")
        if sender in self._names:
            raise Duplicate(f"{sender} has contributed already")
        if n_values != len(self._values):
            raise MessageRefused(
                f"{sender}: message of n_values {n_values}, expected {len(self._values)}"
            )

    def add_rows(self, handed: HandedRows, index: Sequence[int]) -> None:
        """Those of these indices, each of which has been checked: at once, where they lie."""
        sent_KN = handed.rows.of(index).matrix_KN.to(getattr(torch, self._plain.dtype)).double()
        weights = [handed.weights[i] for i in index]
        weight_K = torch.tensor(weights, dtype=torch.float64).to(sent_KN.device)
        self._values += (weight_K @ sent_KN).cpu().numpy()
        for i, weight in zip(index, weights, strict=True):
            self._weight += weight
            self._names.add(handed.names[i])

    def opened(self) -> OpenedSum:
        """The mean, as anyone can read it; raises MessageRefused where there is nothing."""
        total = PlainSum(self._plain.dtype, self._values, self._weight, len(self._names)).total()
        return self._plain.open(total, len(self._values))

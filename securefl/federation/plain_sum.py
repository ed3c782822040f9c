"""The server's sum of contributions that are handed over in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from securefl.errors import Duplicate, MessageRefused
from securefl.exchange.base import OpenedSum, Values
from securefl.exchange.plain import PlainChannel, PlainSum
from securefl.federation.contribution import PlainContribution, PlainRows
from securefl.federation.message import Roster


class InMemorySum:
    """One sum while contributions arrive."""

    def __init__(self, plain: PlainChannel, roster: Roster, n_values: int) -> None:
        self._plain = plain
        self._roster = roster
        self._values: Values = np.zeros(n_values)
        self._weighted: Values = np.empty(n_values)
        self._weight = 0.0
        self._names: set[str] = set()

    def admit(self, sender: str, sent: PlainContribution) -> Callable[[], None]:
        """Check a contribution and return the function that adds it.

        Raises:
            UnknownSender, SenderExpired, SenderRevoked: of nobody who may take part.
            Duplicate: the client has contributed already.
            MessageRefused: for its size or its weight.
        """
        self.check(sender, sent.weight, len(sent.values))

        def add() -> None:
            values = sent.values.astype(self._plain.dtype, copy=False)
            np.multiply(values, sent.weight, out=self._weighted, dtype=np.float64)
            self._values += self._weighted
            self._weight += sent.weight
            self._names.add(sender)

        return add

    def check(self, sender: str, weight: float, n_values: int) -> None:
        """Raise as `admit` does, of a contribution of so many values."""
        self._roster.key_of(sender)
        if not 0 < weight <= 1:
            raise MessageRefused(f"{sender}: weight {weight} outside (0, 1]")
        if sender in self._names:
            raise Duplicate(f"{sender} has contributed already")
        if n_values != len(self._values):
            raise MessageRefused(
                f"{sender}: message of n_values {n_values}, expected {len(self._values)}"
            )

    def add_rows(self, sent: PlainRows, index: Sequence[int]) -> None:
        """Add the rows of these indices, each of them checked, at once and where they lie."""
        sent_KN = sent.rows.of(index).matrix_KN.to(getattr(torch, self._plain.dtype)).double()
        weights = [sent.weights[i] for i in index]
        weight_K = torch.tensor(weights, dtype=torch.float64).to(sent_KN.device)
        self._values += (weight_K @ sent_KN).cpu().numpy()
        for i, weight in zip(index, weights, strict=True):
            self._weight += weight
            self._names.add(sent.names[i])

    def opened(self) -> OpenedSum:
        """Return the mean, as anyone can read it; raises MessageRefused where there is nothing."""
        total = PlainSum(self._plain.dtype, self._values, self._weight, len(self._names)).total()
        return self._plain.open(total, len(self._values))

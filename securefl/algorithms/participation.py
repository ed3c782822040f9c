"""Rounds of some of the clients, around any algorithm (Wu et al., FedProf, table 1).

What a client that stays away counts with is the aggregation's choice for the model, and the
solver's need for what it exchanges beside it: SCAFFOLD's c is a mean over all N clients, of whom
those that stay away have the c_i that they had, so c ← c + K/N mean(c_i⁺ - c_i) (Karimireddy et
al., 2020, Algorithm 1, line 17).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import nn

from securefl.algorithms.base import Algorithm, Work
from securefl.algorithms.servers.fednova import STEPS
from securefl.errors import DataError
from securefl.exchange.base import Exchange
from securefl.types import Contribution, Kind, NamedTensors, Plan, State, Total


class Aggregation(StrEnum):
    """Whether a client that was not selected counts."""

    FULL = "full"
    """With the current global model."""
    PARTIAL = "partial"
    """Not at all: the next model is the mean of the selected."""


@dataclass(frozen=True, slots=True)
class Participating:
    """The inner algorithm, of whose `n_clients` clients a round has some."""

    inner: Algorithm
    n_clients: int
    aggregation: Aggregation

    def init(self, model: nn.Module) -> State:
        """The inner one's."""
        return self.inner.init(model)

    def plan(self, state: State, model: nn.Module) -> Plan:
        """The inner one's."""
        return self.inner.plan(state, model)

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """The inner one's."""
        return self.inner.client(state, work, exchange)

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """The inner one's, of means in which those who stayed away count or do not."""
        joined = {kind: self._joined(state, kind, total) for kind, total in totals.items()}
        return self.inner.update(state, joined)

    def _joined(self, state: State, kind: Kind, total: Total) -> Total:
        if total.n_clients >= self.n_clients:
            return total
        full = kind is Kind.CONTROL or self.aggregation is Aggregation.FULL
        known = state.tensors.get(kind, {})
        # FedNova's count of steps is of those present; so is what the state does not hold, as an
        # algorithm of the user's own may send it.
        mean = {n: v for n, v in total.values.items() if full and n != STEPS and n in known}
        last = {name: known[name] for name in mean}
        moved = full_aggregation(last, mean, total.n_clients, self.n_clients)
        return replace(total, values={**total.values, **moved})


def full_aggregation(
    last: NamedTensors, mean: NamedTensors, n_selected: int, n_clients: int
) -> NamedTensors:
    """θ ← (1 - K/N) θ + K/N · mean of the selected.

    A client that was not selected counts with the current global model. With the model that it
    began with, as the paper's text can be read too, training collapses.

    Args:
        last: θ, the model that the round began with.
        mean: of the models of the K selected clients, however weighted; names as in `last`.
        n_selected: K.
        n_clients: N, selected or not.

    Raises:
        DataError: K is not in 0..N, or the names differ.
    """
    if not 0 <= n_selected <= n_clients or n_clients < 1:
        raise DataError(f"{n_selected} of {n_clients} clients selected: must be in 0..{n_clients}")
    if last.keys() != mean.keys():
        raise DataError(f"the average and the model differ in {sorted(last.keys() ^ mean.keys())}")
    share = n_selected / n_clients
    return {name: (1 - share) * last[name] + share * mean[name] for name in last}

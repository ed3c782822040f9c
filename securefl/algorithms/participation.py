"""Rounds of some of the clients, around any algorithm (Wu et al., FedProf, table 1).

What a client that stays away counts with is the aggregation's choice for the model, and the
solver's need for what it exchanges beside it: SCAFFOLD's c = Σ p_i c_i is over all clients, of whom
those that stay away have the c_i that they had, so c ← c + Σ_S p_i (c_i⁺ - c_i) = c + P_S Δ, with Δ
the mean of those present and P_S their weight as a share of all clients'. For equal weights that is
K/N (Karimireddy et al., 2020, Algorithm 1, line 17). Statistics that are control variates, of which
the state has the `START`, move alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import Tensor, nn

from securefl.algorithms.algorithm import Algorithm, Work
from securefl.algorithms.normalisation.policy import REFERENCE, START
from securefl.algorithms.servers.fednova import STEPS
from securefl.algorithms.standardisation import is_standard
from securefl.errors import DataError
from securefl.exchange.sums import Exchange
from securefl.types import Contribution, Kind, NamedTensors, Plan, State, Total


class Aggregation(StrEnum):
    """Weight of clients that were not selected."""

    FULL = "full"
    """They count, with the current global model."""
    PARTIAL = "partial"
    """Not at all: the next model is the mean of the selected."""


@dataclass(frozen=True, slots=True)
class Participating:
    """The inner algorithm, of whose `n_clients` clients a round has some."""

    inner: Algorithm
    n_clients: int
    everyone: float | None
    """Weight of all clients together; None where nobody tells it, and each counts as any other."""
    aggregation: Aggregation

    def init(self, model: nn.Module) -> State:
        """Return the inner one's state."""
        return self.inner.init(model)

    def plan(self, state: State, model: nn.Module) -> Plan:
        """Return the inner one's plan."""
        return self.inner.plan(state, model)

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """Return the inner one's contribution."""
        return self.inner.client(state, work, exchange)

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """Return the inner one's next state, of means in which those who stayed away may count.

        It hears P_S as the totals' weight.
        """
        joined = {kind: self._joined(state, kind, total) for kind, total in totals.items()}
        return self.inner.update(state, joined)

    def _joined(self, state: State, kind: Kind, total: Total) -> Total:
        if total.n_clients >= self.n_clients:
            return replace(total, weight=1.0)
        share = total.n_clients / self.n_clients
        weight = share if self.everyone is None else total.weight / self.everyone
        total = replace(total, weight=weight)
        known = state.tensors.get(kind, {})
        # FedNova's count of steps, FedTAN's references and the columns' moments are of those
        # present; so is what the state does not hold, as an algorithm of one's own may send it.
        of_present = (STEPS, REFERENCE)
        mean = {
            n: v
            for n, v in total.values.items()
            if n in known and not (n.startswith(of_present) or is_standard(n))
        }
        control = {n: v for n, v in mean.items() if kind is Kind.CONTROL or START + n in known}
        # The share may be more where clients are drawn twice.
        moved = _moved(known, control, min(1.0, total.weight))
        if self.aggregation is Aggregation.FULL:
            moved |= _moved(known, {n: v for n, v in mean.items() if n not in control}, share)
        return replace(total, values={**total.values, **moved})


def _moved(known: NamedTensors, mean: NamedTensors, share: float) -> dict[str, Tensor]:
    return full_aggregation({name: known[name] for name in mean}, mean, share)


def full_aggregation(last: NamedTensors, mean: NamedTensors, share: float) -> dict[str, Tensor]:
    """Return θ ← (1 - P) θ + P · mean of the selected.

    A client that was not selected counts with the current global model. With the model that it
    began with, as the paper's text can be read too, training collapses.

    Args:
        last: θ, the model that the round began with.
        mean: of the models of the selected clients, however weighted; names as in `last`.
        share: P, what the selected are of all clients, 0 to 1; K/N of K in N clients.

    Raises:
        DataError: P is not in 0..1, or the names differ.
    """
    if not 0 <= share <= 1:
        raise DataError(f"share = {share} of the clients selected: must be in 0..1")
    if last.keys() != mean.keys():
        raise DataError(f"the average and the model differ in {sorted(last.keys() ^ mean.keys())}")
    return {name: (1 - share) * last[name] + share * mean[name] for name in last}

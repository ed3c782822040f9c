"""What leaves the clients in a round, wherever they train: in this process, or in a worker's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain

import torch

from securefl.errors import ConfigError, DataError
from securefl.exchange.layout import Row, Rows
from securefl.federation.client import Client
from securefl.federation.contribution import HandedRows, Parcel, Unsent, Way, parcels
from securefl.federation.state_digest import state_digest
from securefl.types import Contribution, Memory, NamedTensors, State


@dataclass(frozen=True, slots=True)
class Sent:
    """One client's messages that travel together, or why none of them leaves it."""

    parcels: Sequence[Parcel] | Unsent
    like: Mapping[str, NamedTensors]
    """By message, tensors of the names, shapes and types in it."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """How clients send in one round of a run."""

    run: str
    round: int
    state: str
    """Digest of the model that they were sent; empty where nothing is signed."""
    sums: Mapping[str, Way]
    """Of messages in the middle of the round, by name."""
    update: tuple[Way, ...]
    """Of messages at its end."""
    times: Mapping[str, int]
    """How often clients count."""
    clients: Mapping[str, Client]

    @classmethod
    def after(
        cls,
        state: State,
        run: str,
        ways: tuple[Mapping[str, Way], tuple[Way, ...]],
        times: Mapping[str, int],
        clients: Mapping[str, Client],
    ) -> Outgoing:
        """In the round after the state that clients were sent; `ways` are its sums and updates."""
        sums, update = ways
        signed = not all(way.handed for way in (*sums.values(), *update))
        digest = state_digest(state) if signed else ""
        return cls(run, state.round + 1, digest, sums, update, times, clients)

    def weight(self, name: str) -> float:
        """A client's, before it is divided by the sum of weights."""
        return self.times[name] * self.clients[name].weight

    def due(self, names: set[str]) -> Way:
        """The one sum that all who ask now ask for.

        Raises:
            DataError: they are for different sums, or for one that the plan does not list.
        """
        if len(names) != 1 or not names <= self.sums.keys():
            raise DataError(f"clients ask for sums {sorted(names)} where one of the plan is due")
        return self.sums[next(iter(names))]

    def asked(self, name: str, way: Way, values: NamedTensors) -> Sent:
        """What a client sends for a sum in the middle of its round."""
        return self._sent(name, (way,), {way.spec.name: values})

    def asked_by_row(self, names: Sequence[str], way: Way, rows: Rows) -> HandedRows:
        """As `asked` of clients side by side, where values are handed over."""
        kind = way.spec.kind
        limit = min(self.clients[n].sealers[kind].max_value(rows.n_values) for n in names)
        fine = dict(zip(names, rows.within(limit), strict=True))
        sent = (
            (n, self.asked(n, way, r).parcels)
            for n, r in zip(names, rows, strict=True)
            if not fine[n]
        )
        unsent = {name: own for name, own in sent if isinstance(own, Unsent)}
        weights = [self.clients[name].weight_in(way.spec, self.times[name]) for name in names]
        return HandedRows(names, rows, weights, unsent)

    def trained(self, name: str, contribution: Contribution) -> Sent:
        """What a client sends at the end of its round; nothing where what it keeps is spoilt."""
        if not isinstance(contribution, Contribution):
            raise ConfigError(
                f"the algorithm's client() gave a {type(contribution).__name__}: it must return a "
                "securefl.types.Contribution"
            )
        if lost := not_finite(contribution.memory):
            return Sent(Unsent("memory", f"{name}: its own {lost} is not finite"), {})
        tensors = {f"update/{kind}": named for kind, named in contribution.tensors.items()}
        return self._sent(name, self.update, tensors)

    def _sent(self, name: str, ways: tuple[Way, ...], tensors: Mapping[str, NamedTensors]) -> Sent:
        client, about = self.clients[name], (self.run, self.round, self.state)
        return Sent(parcels(ways, client, about, tensors, self.times[name]), tensors)


def not_finite(memory: Memory) -> str:
    """The first tensor with a NaN or an infinity in it; empty where there is none."""
    parts: list[NamedTensors] = [getattr(memory, field.name) for field in fields(memory)]
    kept = [named for named in parts if named]
    wholes = chain.from_iterable(
        [named.vector] if isinstance(named, Row) else named.values() for named in kept
    )
    # Zeros, or NaN: one pass, where `isfinite` makes a mask first.
    zeros = [(whole * 0).sum() for whole in wholes]
    # All at once: of a GPU each answer by itself would be waited for.
    if not zeros or (torch.stack([zero.to(zeros[0].device) for zero in zeros]) == 0).all():
        return ""
    tensors = chain.from_iterable(named.items() for named in kept)
    return next(name for name, value in tensors if not torch.isfinite(value).all())

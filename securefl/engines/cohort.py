"""Clients that train side by side: their batches, their memories, and their end of the exchange."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from securefl.algorithms.base import Loss, copied
from securefl.data.resident import Resident
from securefl.data.samples import Samples, TensorSamples, batches_of
from securefl.engines.ongoing import Ongoing
from securefl.engines.wide_model import parts, repeated
from securefl.exchange.layout import Row, Rows
from securefl.norms.padded import Present
from securefl.types import Contribution, Kind, Memory, NamedTensors, State, Total

_IGNORED = -100
"""The label that `cross_entropy` leaves out of its mean."""


class Repeated(Mapping[str, Tensor]):
    """The same tensors for every client; each is made where it is first asked for."""

    def __init__(self, named: NamedTensors, n_clients: int) -> None:
        self._named = named
        self._n_clients = n_clients
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = repeated(self._named[name], self._n_clients)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


def wide_state(state: State, n_clients: int) -> State:
    """The state as each of the clients has it."""
    tensors = {kind: Repeated(named, n_clients) for kind, named in state.tensors.items()}
    return State(state.round, tensors, state.private)


def wide_loss(loss: Loss, n_clients: int, present: Present | None = None) -> Loss:
    """The sum of the clients' losses, of outputs (B, K C, ...) and labels (K, B, ...).

    Of padded batches those samples count that are `present`.
    """

    def summed(outputs: Tensor, y_KB: Tensor) -> Tensor:
        outputs_KB = outputs.unflatten(1, (n_clients, -1)).transpose(0, 1).contiguous()
        y_KB = y_KB.contiguous()
        if loss is functional.cross_entropy and not y_KB.is_floating_point():
            return _cross_entropies(outputs_KB, _ignoring(y_KB.long(), present))
        if loss is functional.mse_loss and outputs_KB.shape == y_KB.shape and not present:
            return n_clients * loss(outputs_KB, y_KB)
        sizes = present.sizes if present else [len(outputs)] * n_clients
        each = zip(outputs_KB, y_KB, sizes, strict=True)
        return torch.stack([loss(o[:n], y[:n]) for o, y, n in each]).sum()

    return summed


def _ignoring(y_KB: Tensor, present: Present | None) -> Tensor:
    if not present:
        return y_KB
    absent_KB = present.absent_BK.T
    return y_KB.masked_fill(absent_KB.view(*absent_KB.shape, *(1,) * (y_KB.dim() - 2)), _IGNORED)


def _cross_entropies(outputs_KB: Tensor, y_KB: Tensor) -> Tensor:
    """Each client's mean over its own labels, summed."""
    losses = functional.cross_entropy(
        outputs_KB.flatten(0, 1), y_KB.flatten(0, 1), ignore_index=_IGNORED, reduction="none"
    )
    counted_K = (y_KB != _IGNORED).flatten(1).sum(dim=1)
    return (losses.view(len(y_KB), -1).sum(dim=1) / counted_K).sum()


def wide_batches(
    data: Mapping[str, Samples],
    together: Resident | None,
    batch_size: int,
    generators: Sequence[torch.Generator],
    device: torch.device,
) -> Iterator[tuple[Tensor, Tensor]]:
    """`minibatches` of each client, side by side: x (B, K C, ...) and y (K, B, ...).

    Shorter ones are padded to the longest with a sample of their own.
    """
    longest = min(batch_size, max(map(len, data.values())))
    drawers = [
        _Drawer(len(samples), longest, rng, together.start[name] if together else 0)
        for (name, samples), rng in zip(data.items(), generators, strict=True)
    ]
    first = next(iter(data.values()))
    x = together.x if together else first.x if isinstance(first, TensorSamples) else None
    indices = _indices(drawers, torch.device("cpu") if x is None else x.device)
    while together:
        index_BK = torch.stack(next(indices), dim=1)
        x, y = together.take(index_BK.flatten())
        yield (
            x.unflatten(0, index_BK.shape).flatten(1, 2),
            y.unflatten(0, index_BK.shape).transpose(0, 1),
        )
    while True:
        labels: list[Tensor] = []
        for i, (samples, index) in enumerate(zip(data.values(), next(indices), strict=True)):
            x, y = samples.take(index)
            if not labels:
                x_BK = x.new_empty((len(x), len(data), *x.shape[1:]))
            x_BK[:, i] = x  # at once, while it is in the processor's cache
            labels.append(y)
        yield x_BK.flatten(1, 2).to(device), torch.stack(labels).to(device)


@dataclass(frozen=True, slots=True)
class _Drawer:
    """One client's permutations."""

    n_samples: int
    batch_size: int
    """Samples in a batch, padding included."""
    rng: torch.Generator
    start: int
    """Added to each index."""

    def order(self) -> Tensor:
        """In as many whole batches as there are, or in one that is padded."""
        order = torch.randperm(self.n_samples, generator=self.rng) + self.start
        n_missing = self.batch_size - self.n_samples
        return torch.cat([order, order[:1].expand(n_missing)]) if n_missing > 0 else order


def _indices(drawers: Sequence[_Drawer], device: torch.device) -> Iterator[list[Tensor]]:
    """Each client's samples, step by step; permutations that begin together travel together."""
    left: list[deque[Tensor]] = [deque() for _ in drawers]
    while True:
        if ended := [i for i, of in enumerate(left) if not of]:
            orders = [drawers[i].order() for i in ended]
            moved = torch.cat(orders).to(device).split([len(order) for order in orders])
            for i, order in zip(ended, moved, strict=True):
                left[i].extend(batches_of(order, drawers[i].batch_size))
        yield [of.popleft() for of in left]


def wide_memory(memories: Sequence[Memory], state: State, device: torch.device) -> Memory:
    """What the clients keep, side by side: zeros, or the model's tensor, for who keeps nothing."""
    model = (state.tensors.get(kind, {}) for kind in (Kind.PARAMETERS, Kind.STATISTICS))
    known = {name: value for named in model for name, value in named.items()}

    def joined(part: str) -> dict[str, Tensor]:
        kept: list[NamedTensors] = [getattr(memory, part) for memory in memories]
        names = {name: named[name] for named in kept for name in named}
        absent = {n: known[n] if part == "own" else torch.zeros_like(v) for n, v in names.items()}
        if vectors := _vectors(kept, absent):
            return _side_by_side(Rows(torch.stack(vectors).to(device), absent))
        return {
            name: torch.cat([named.get(name, other).to(device) for named in kept])
            for name, other in absent.items()
        }

    return Memory(**{field.name: joined(field.name) for field in fields(Memory)})


def _vectors(kept: Sequence[NamedTensors], absent: NamedTensors) -> list[Tensor]:
    """Each client's in one vector; none where those who keep anything do not keep like rows."""
    rows = [named for named in kept if isinstance(named, Row) and named]
    if not rows or len(rows) < sum(map(bool, kept)):
        return []
    first = rows[0]
    of_one_type = all(value.dtype is first.vector.dtype for value in absent.values())
    if not of_one_type or not all(row.is_like(first) for row in rows):
        return []
    other = torch.cat([value.reshape(-1) for value in absent.values()]).to(first.vector.device)
    return [named.vector if isinstance(named, Row) and named else other for named in kept]


def _side_by_side(rows: Rows) -> dict[str, Tensor]:
    lying = rows.matrix_KN.split([value.numel() for value in rows.like.values()], dim=1)
    return {
        name: part.unflatten(1, value.shape).flatten(0, 1)
        for part, (name, value) in zip(lying, rows.like.items(), strict=True)
    }


def separate(wide: Contribution, n_clients: int) -> Iterator[Contribution]:
    """Each client's, whose tensors of a kind are a `Row`; what it keeps is nobody else's."""
    tensors = {kind: list(_rows(named, n_clients)) for kind, named in wide.tensors.items()}
    kept = {f.name: _kept(getattr(wide.memory, f.name), n_clients) for f in fields(Memory)}
    for i in range(n_clients):
        memory = Memory(**{part: of[i] for part, of in kept.items()})
        yield Contribution({kind: named[i] for kind, named in tensors.items()}, memory)


def _kept(named: NamedTensors, n_clients: int) -> Sequence[NamedTensors]:
    if len({value.dtype for value in named.values()}) == 1:
        return list(_rows(named, n_clients))
    return [copied(of) for of in _split(named, n_clients)]  # whose values no one type holds


def _rows(named: NamedTensors, n_clients: int) -> Rows:
    of = {name: parts(value.detach(), n_clients) for name, value in named.items()}
    matrix_KN = torch.cat([value.reshape(n_clients, -1) for value in of.values()], dim=1)
    return Rows(matrix_KN, {name: value[0] for name, value in of.items()})


def _split(named: NamedTensors, n_clients: int) -> list[dict[str, Tensor]]:
    of = {name: parts(value, n_clients).unbind() for name, value in named.items()}
    return [{name: values[i] for name, values in of.items()} for i in range(n_clients)]


class AllLeft(BaseException):
    """Ends the round of clients side by side of whom nobody is in it any more.

    A BaseException, so that no client code that catches Exception goes on.
    """


@dataclass(slots=True)
class WideEnd:
    """The ends of the exchange of clients side by side.

    A client whose values are refused leaves the round: its channels go on, and nobody looks.
    """

    ongoing: Ongoing
    names: Sequence[str]
    left: set[str]
    """Who has left."""
    weight: Any
    """One element a client, in the place of a number."""

    def sum(self, name: str, values: NamedTensors) -> Total:
        """See `Exchange.sum`; values and totals are side by side. Raises AllLeft."""
        n_clients = len(self.names)
        here = [i for i, client in enumerate(self.names) if client not in self.left]
        asking = [self.names[i] for i in here]
        if not asking:
            raise AllLeft
        total, stay = self.ongoing.sum_rows(name, asking, _rows(values, n_clients).of(here))
        self.left |= set(asking) - set(stay)
        return Total(Repeated(total.values, n_clients), total.weight, total.n_clients)

"""State that clients keep from round to round, in matrices with a row for each client.

A client has a row from its first contribution on: where a hundred of ten thousand clients ever
train, there are a hundred rows.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import final

import torch
from torch import Tensor

from securefl.algorithms.algorithm import copied
from securefl.exchange.layout import Row, hollow
from securefl.types import ClientState, NamedTensors

_PARTS = tuple(field.name for field in fields(ClientState))
_NOTHING = Row(torch.empty(0), {})
_EMPTY = ClientState(**dict.fromkeys(_PARTS, _NOTHING))
"""Empty state, shared by all clients that keep nothing: it cannot be added to."""


@final
class ClientStates(Mapping[str, ClientState]):
    """State of each client, empty at first; values are copied in.

    Reading returns a view, which the client's next contribution may change.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self._parts = {part: _Part(len(self._names)) for part in _PARTS}
        self._keeping: set[str] = set()
        """Clients that keep anything."""

    def __getitem__(self, name: str) -> ClientState:
        if name in self._keeping:
            return ClientState(**{part: of.read(name) for part, of in self._parts.items()})
        if name not in self._names:
            raise KeyError(name)
        return _EMPTY

    def __setitem__(self, name: str, client_state: ClientState) -> None:
        """Copy a client's state; raises KeyError where the run has no such client."""
        if name not in self._names:
            raise KeyError(name)
        keeps = any(getattr(client_state, part) for part in _PARTS)
        if not keeps and name not in self._keeping:
            return
        inside = {key for of in self._parts.values() for key in of.storages()}
        for part, named in {p: _outside(inside, getattr(client_state, p)) for p in _PARTS}.items():
            self._parts[part].write(name, named)
        if keeps:
            self._keeping.add(name)
        else:
            self._keeping.remove(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class RamStore:
    """`Store` of a worker in memory, which holds the last round alone."""

    client_states: ClientStates
    _staged: dict[str, ClientState] = field(default_factory=dict)

    def of_rounds(self, since: Mapping[str, int]) -> ClientStates:
        """Return the states: see `Store.of_rounds`."""
        del since
        return self.client_states

    def stage(self, round_number: int, client_states: Mapping[str, ClientState]) -> None:
        """Stage states: see `Store.stage`."""
        del round_number
        self._staged.clear()
        self._staged.update(client_states)

    def keep(self, round_number: int, names: Collection[str]) -> None:
        """Keep states: see `Store.keep`."""
        del round_number
        for name in names:
            if name in self._staged:
                self.client_states[name] = self._staged[name]
        self._staged.clear()


def _outside(inside: set[int], named: NamedTensors) -> NamedTensors:
    """Copy tensors that are views of rows which are about to be written."""
    if not named:
        return named
    tensors = [named.vector] if isinstance(named, Row) else named.values()
    lies_inside = any(tensor.untyped_storage().data_ptr() in inside for tensor in tensors)
    return copied(named) if lies_inside else named


@dataclass(frozen=True, slots=True)
class _Layout:
    """Names, shapes and type of kept tensors; clients of the same layout share a matrix."""

    shapes: tuple[tuple[str, torch.Size], ...]
    """Shapes by name, in order."""
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, named: NamedTensors) -> "_Layout | None":
        """Return the layout; None for tensors of several types or devices, which fit no vector."""
        tensors = list((named.like if isinstance(named, Row) else named).values())
        if isinstance(named, Row):
            tensors.append(named.vector)
        kinds = {(tensor.dtype, tensor.device, tensor.layout) for tensor in tensors}
        if len(kinds) != 1 or tensors[0].layout is not torch.strided:
            return None
        shapes = tuple((name, of.shape) for name, of in zip(named, tensors, strict=False))
        return cls(shapes, tensors[0].dtype, tensors[0].device)


class _Stack:
    """Clients' tensors of one layout."""

    def __init__(self, layout: _Layout, most: int) -> None:
        """Start empty, for at most `most` clients."""
        self.layout = layout
        self._most = most
        dtype, device = layout.dtype, layout.device
        self._like = {name: hollow(shape, dtype, device) for name, shape in layout.shapes}
        n_values = sum(tensor.numel() for tensor in self._like.values())
        self._matrix_KN = torch.empty((0, n_values), dtype=dtype, device=device)
        self._index: dict[str, int] = {}
        self._rows: dict[str, Row] = {}
        """Rows that have been read, kept because working out their layout takes time."""
        self._free: list[int] = []

    def write(self, name: str, named: NamedTensors) -> None:
        if isinstance(named, Row):
            vector = named.vector
        else:  # a vector of its own first: they may be views of the row that they go to
            vector = torch.cat([tensor.detach().reshape(-1) for tensor in named.values()])
        if name not in self._index:
            self._index[name] = self._next()
        self._matrix_KN[self._index[name]].copy_(vector)

    def read(self, name: str) -> Row:
        if name not in self._rows:
            self._rows[name] = Row(self._matrix_KN[self._index[name]], self._like)
        return self._rows[name]

    @property
    def storage(self) -> int:
        """Address of the matrix; 0 where it is empty."""
        return self._matrix_KN.untyped_storage().data_ptr()

    def let_go(self, name: str) -> None:
        self._free.append(self._index.pop(name))
        self._rows.pop(name, None)

    @property
    def is_empty(self) -> bool:
        return not self._index

    def _next(self) -> int:
        if self._free:
            return self._free.pop()
        used, capacity = len(self._index), len(self._matrix_KN)
        if used == capacity:
            # Doubled as it fills, so that growing copies each row about once; rows read before are
            # views of the matrix that is replaced.
            n_rows = min(max(1, 2 * capacity), self._most)
            grown = self._matrix_KN.new_empty((n_rows, self._matrix_KN.shape[1]))
            grown[:capacity] = self._matrix_KN
            self._matrix_KN = grown
            self._rows.clear()
        return used


@dataclass(slots=True)
class _Part:
    """One part of all clients' states."""

    most: int
    _stacks: dict[_Layout, _Stack] = field(default_factory=dict)
    _place: dict[str, _Stack] = field(default_factory=dict)
    _apart: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Tensors that fit into no matrix, by client."""

    def storages(self) -> Iterator[int]:
        return (stack.storage for stack in self._stacks.values())

    def read(self, name: str) -> NamedTensors:
        if name in self._place:
            return self._place[name].read(name)
        return dict(self._apart[name]) if name in self._apart else _NOTHING

    def write(self, name: str, named: NamedTensors) -> None:
        layout = _Layout.of(named) if named else None
        if layout is not None:
            stack = self._stacks.get(layout) or _Stack(layout, self.most)
            stack.write(name, named)
            self._stacks[layout] = stack
            self._let_go(name, but=stack)
            self._place[name] = stack
        elif named:
            apart = copied(named)
            self._let_go(name)
            self._apart[name] = apart
        else:
            self._let_go(name)

    def _let_go(self, name: str, but: _Stack | None = None) -> None:
        self._apart.pop(name, None)
        stack = self._place.get(name)
        if stack is None or stack is but:
            return
        del self._place[name]
        stack.let_go(name)
        if stack.is_empty:
            del self._stacks[stack.layout]

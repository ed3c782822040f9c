"""Block of clients that train side by side: its states, contributions and exchange."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from securefl.algorithms.algorithm import copied
from securefl.exchange.layout import Row, Rows
from securefl.federation.clients_round import ClientsRound
from securefl.simulation.stacked.model import parts, repeated
from securefl.types import ClientState, Contribution, Kind, NamedTensors, State, Total


class Repeated(Mapping[str, Tensor]):
    """Same tensors for every client, made at their first use."""

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


def block_state(state: State, n_clients: int) -> State:
    """Repeat the state for each of the clients."""
    tensors = {kind: Repeated(named, n_clients) for kind, named in state.tensors.items()}
    return State(state.round, tensors, state.private)


def block_client_state(
    client_states: Sequence[ClientState], state: State, device: torch.device
) -> ClientState:
    """Join the clients' states; a client without gets zeros, or for `own` the model's tensor."""
    model = (state.tensors.get(kind, {}) for kind in (Kind.PARAMETERS, Kind.STATISTICS))
    known = {name: value for named in model for name, value in named.items()}

    def joined(part: str) -> dict[str, Tensor]:
        kept: list[NamedTensors] = [getattr(client_state, part) for client_state in client_states]
        names = {name: named[name] for named in kept for name in named}
        absent = {n: known[n] if part == "own" else torch.zeros_like(v) for n, v in names.items()}
        if vectors := _vectors(kept, absent):
            return _side_by_side(Rows(torch.stack(vectors).to(device), absent))
        return {
            name: torch.cat([named.get(name, other).to(device) for named in kept])
            for name, other in absent.items()
        }

    return ClientState(**{field.name: joined(field.name) for field in fields(ClientState)})


def _vectors(kept: Sequence[NamedTensors], absent: NamedTensors) -> list[Tensor]:
    """Return each client's tensors as a vector; none where their layouts differ."""
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


def separate(stacked: Contribution, n_clients: int) -> Iterator[Contribution]:
    """Yield each client's contribution: a `Row` for each kind, and a state of its own."""
    sent = {kind: _rows(named, n_clients) for kind, named in stacked.tensors.items()}
    tensors = {kind: list(in_main_memory(rows)) for kind, rows in sent.items()}
    kept = {
        f.name: _kept(getattr(stacked.client_state, f.name), n_clients) for f in fields(ClientState)
    }
    for i in range(n_clients):
        client_state = ClientState(**{part: of[i] for part, of in kept.items()})
        yield Contribution({kind: named[i] for kind, named in tensors.items()}, client_state)


def in_main_memory(rows: Rows) -> Rows:
    """Return all clients' values at once: a GPU would be waited for at each client's."""
    return Rows(rows.matrix_KN.cpu(), rows.like)


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
    """Signal that ends the round of a block whose clients have all left it.

    A BaseException, so that no client code that catches Exception goes on.
    """


@dataclass(slots=True)
class BlockEnd:
    """Exchange of a block of clients.

    A client whose values are refused leaves the round: its channels train on and are ignored.
    """

    ongoing: ClientsRound
    names: Sequence[str]
    left: set[str]
    """Clients that have left the round."""
    weight: Any
    """Weights as a tensor, with one element for each client."""

    def sum(self, name: str, values: NamedTensors) -> Total:
        """Return the total, see `Exchange.sum`; values are side by side. Raises AllLeft."""
        n_clients = len(self.names)
        here = [i for i, client in enumerate(self.names) if client not in self.left]
        asking = [self.names[i] for i in here]
        if not asking:
            raise AllLeft
        total, stay = self.ongoing.sum_rows(name, asking, _rows(values, n_clients).of(here))
        self.left |= set(asking) - set(stay)
        return Total(Repeated(total.values, n_clients), total.weight, total.n_clients)

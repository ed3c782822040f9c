"""Broadcast at a round's start: the part of the global state that each client lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from securefl.algorithms.algorithm import update_messages
from securefl.errors import RunFolderError
from securefl.types import Kind, MessageSpec, State

if TYPE_CHECKING:
    from securefl.federation.server import Server


class Broadcast:
    """Record of the state that each client has.

    A client of the last round is sent the tensors that this round changed, any other client all.
    """

    def __init__(self, server: Server, names: Collection[str]) -> None:
        """Start with clients that have nothing; `names` are those of all clients of the run."""
        self._server = server
        self._names = names
        self._has: dict[str, int] = {}
        self._news: tuple[MessageSpec, ...] = ()

    def n_bytes(self, state: State, client: str) -> int:
        """Return the number of bytes that a client would be sent now."""
        return sum(spec.n_values for spec in self._due(state, client)) * self._server.value_bytes

    def send(self, state: State, clients: Iterable[str]) -> None:
        """Write down in the ledger what these clients are sent; nothing for those who have it."""
        for client in clients:
            self._server.note_broadcast(state, self._due(state, client), client)
            self._has[client] = state.round

    def forget(self, clients: Iterable[str]) -> None:
        """Count these clients as having nothing, since their broadcast may be lost."""
        for client in clients:
            self._has.pop(client, None)

    def changed(self, sent: Sequence[MessageSpec], state: State) -> None:
        """Keep which tensors the last round has changed: none where it passed without clients."""
        kept = (spec for spec in sent if spec.kind in state.tensors)
        self._news = tuple(replace(spec, like=None) for spec in kept)  # else the last state stays

    def numbers(self) -> dict[str, Mapping[str, float]]:
        """Return the record as numbers, for a checkpoint."""
        news = {str(spec.kind): spec.n_values for spec in self._news}
        return {"broadcast_has": dict(self._has), "broadcast_news": news}

    def go_on_from(self, numbers: Mapping[str, Mapping[str, float]]) -> None:
        """Restore the record from `numbers`; raises RunFolderError for those of another run."""
        has, news = numbers.get("broadcast_has", {}), numbers.get("broadcast_news", {})
        if not has.keys() <= set(self._names):
            raise RunFolderError("the checkpoint's broadcast_has is of other clients")
        if not news.keys() <= set(Kind):
            raise RunFolderError("the checkpoint's broadcast_news names what no model has")
        self._has = {client: int(version) for client, version in has.items()}
        self._news = tuple(
            MessageSpec(f"update/{kind}", kind, int(news[kind]))
            for kind in Kind  # in the order in which they are sent, whatever the file's
            if kind in news
        )

    def _due(self, state: State, client: str) -> tuple[MessageSpec, ...]:
        behind = state.round - self._has.get(client, -1)
        if behind == 0:
            return ()
        if behind == 1 and client in self._has:
            return self._news
        return update_messages(state.tensors)

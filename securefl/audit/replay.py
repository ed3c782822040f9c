"""A run played again by its settings, for what its folder does not keep: who saw which values.

The same seed gives the same bits, so what is recorded here is what was seen then; how far the final
models are apart says whether that holds (fresh privacy noise is never drawn again).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from securefl.algorithms.base import averaged_tensors, copied
from securefl.audit.evidence import Leak
from securefl.audit.shadows import in_the_clear
from securefl.audit.wiretap import Wiretap
from securefl.compose import Record
from securefl.config.schema import Config
from securefl.errors import SecureFLError
from securefl.exchange.keyset import KeySet
from securefl.exchange.layout import unpack
from securefl.exchange.match_forms import FORMS
from securefl.exchange.match_open import MatchKeys
from securefl.exchange.plain import PlainChannel
from securefl.roles import wire
from securefl.roles.identities import Identities
from securefl.roles.ledger import Content, Entry, Ledger
from securefl.rounds import Rounds
from securefl.task import Task, client_data
from securefl.terms import sealed_kinds
from securefl.types import Kind, NamedTensors, State

MOST_VALUES = 2 * 10**8
"""Of clients' models that are kept: less than a gigabyte."""
Progress = Callable[[int, int], None]
"""Called with steps done and steps in all."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What was seen of a run, round by round."""

    models: Sequence[NamedTensors]
    """The global model before the first round and after each: what every client and the server saw.
    """
    updates: Sequence[Mapping[str, NamedTensors]]
    """By round and client, what it sent in the clear of its own model; nothing of most rounds where
    that would be more than memory holds."""
    ledger: Sequence[Entry]


@final
@dataclass(frozen=True, slots=True)
class Tapped:
    """What was seen of a run's first rounds, played again with every byte looked at."""

    rounds: int
    leaks: Sequence[Leak]
    seen_bytes: int
    ledger_bytes: int


@dataclass(slots=True)
class _Recorder:
    """Keeps what clients send of their models; a `Tap`."""

    like: Mapping[Kind, NamedTensors]
    """Of the kinds that are kept."""
    dtype: str
    every: int
    """Which rounds are kept: those that it divides."""
    updates: list[dict[str, dict[str, Tensor]]] = field(default_factory=list)

    def __call__(self, entry: Entry, content: Content) -> None:
        like = self.like.get(entry.kind)
        if like is None or not isinstance(content, bytes) or entry.name != f"update/{entry.kind}":
            return
        if entry.round % self.every:
            return
        _, payload = wire.split(content, len(content))
        sent = np.frombuffer(payload, self.dtype, entry.n_values).astype(np.float64)
        own = self.updates[-1].setdefault(entry.sender, {})
        own |= unpack(sent, like)


def replayed(config: Config, task: Task, progress: Progress) -> Replay:
    """All rounds of a run, in the clear: totals are those that were opened, but for 2⁻²⁴.

    Raises:
        ConfigError, DataError, Diverged: as the run itself.
    """
    tensors = averaged_tensors(task.model)
    in_clear = tensors.keys() - sealed_kinds(config)
    like = {kind: named for kind, named in tensors.items() if kind in in_clear}
    size = sum(value.numel() for named in like.values() for value in named.values())
    every = 1 + config.run.rounds * len(task.clients) * size // MOST_VALUES
    recorder = _Recorder(like, dtype_of(tensors[Kind.PARAMETERS]), every)
    record = Record(Ledger(tap=recorder))
    rounds = Rounds(in_the_clear(config), task, None, None, record=record)
    models = [global_model(rounds.state)]
    while not rounds.complete:
        recorder.updates.append({})
        rounds.step()
        models.append(global_model(rounds.state))
        progress(rounds.round, rounds.last_round)
    return Replay(models, recorder.updates, tuple(record.ledger.entries))


def tapped(config: Config, task: Task, n_rounds: int) -> Tapped:
    """The first rounds of a run as they were, encrypted and with every byte looked at."""
    one_key = config.exchange.model_copy(update={"committee": 0})
    config = config.model_copy(update={"exchange": one_key})
    data, _ = client_data(config, task)
    identities, form = Identities.ephemeral(data), FORMS[config.selection.match]
    keys, match_keys = KeySet.ephemeral(), MatchKeys.ephemeral(form)
    dtype = dtype_of(averaged_tensors(task.model)[Kind.PARAMETERS])
    tap = Wiretap(config, keys, match_keys, identities.roster, PlainChannel(dtype))
    record = Record(Ledger(tap=tap))
    rounds = Rounds(config, task, keys, match_keys, identities, record)
    n_rounds = min(n_rounds, rounds.last_round)
    try:
        for _ in range(n_rounds):
            rounds.step()
    except SecureFLError as error:
        why = f"the run cannot be played again: {error}"
        tap.leaks.append(Leak(rounds.round + 1, "all", "the run", why))
    written = sum(entry.bytes for entry in record.ledger.entries)
    return Tapped(n_rounds, tap.leaks, tap.n_bytes, written)


def global_model(state: State) -> NamedTensors:
    """The tensors of the model that everybody is sent."""
    kinds = (Kind.PARAMETERS, Kind.STATISTICS)
    return copied({name: v for kind in kinds for name, v in state.tensors.get(kind, {}).items()})


def dtype_of(named: NamedTensors) -> Literal["float32", "float64"]:
    """Of a model's values on the wire."""
    first = next(iter(named.values()))
    return "float64" if first.dtype is torch.float64 else "float32"

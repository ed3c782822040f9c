"""Replay of a run by its settings, for what its folder does not keep: who saw which values.

The same seed gives the same bits, so what is recorded here is what was seen then; how far the final
models are apart says whether that holds (fresh privacy noise is never drawn again).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
from torch import Tensor

from securefl.algorithms.algorithm import averaged_tensors, copied
from securefl.audit.exposure.inspect_bytes import ByteInspector
from securefl.audit.exposure.leaks import InspectedRounds, Leak
from securefl.audit.exposure.sealed_messages import SealedMessages
from securefl.build.algorithm import chosen_algorithm
from securefl.build.exchange import quorum_of, sealed_kinds
from securefl.build.simulation import simulated
from securefl.build.training import client_weights, precision_of
from securefl.errors import (
    ConfigError,
    DataError,
    Diverged,
    SecureFLError,
    TooFewContributions,
)
from securefl.exchange.layout import unpack
from securefl.exchange.officer import KeySet
from securefl.exchange.plain import PlainChannel
from securefl.federation.client import Identities
from securefl.federation.ledger import Content, Entry, Ledger
from securefl.federation.message import split_message
from securefl.federation.survey import profiled_under
from securefl.runs.loop import Record, Rounds
from securefl.selection.round_participants import RoundParticipants
from securefl.settings.load import with_changes
from securefl.settings.tables import Config
from securefl.task import Task, client_data
from securefl.types import Kind, NamedTensors, State

MOST_VALUES = 2 * 10**8
"""Number of clients' values that are kept at most: less than a gigabyte."""
Progress = Callable[[int, int], None]
"""Callback with steps done and steps in all."""
_ENDS = (ConfigError, DataError, Diverged, TooFewContributions)
"""Ends that a run may come to by itself, whoever reads its messages."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Models, updates and messages of a run, round by round."""

    models: Sequence[NamedTensors]
    """Global model before the first round and after each, which all clients and the server saw."""
    updates: Sequence[Mapping[str, NamedTensors]]
    """Updates that clients sent in the clear, by round and client; nothing of most rounds where
    that would be more than memory holds."""
    ledger: Sequence[Entry]


@dataclass(slots=True)
class _Recorder:
    """Recorder of what clients send of their models; a `Tap`."""

    dtype: str
    every: int
    """Divisor of the rounds that are kept."""
    like: Mapping[Kind, NamedTensors] = field(default_factory=dict)
    """Tensors that travel in this round, of the kinds that are kept."""
    updates: list[dict[str, dict[str, Tensor]]] = field(default_factory=list)

    def begin_round(self, like: Mapping[Kind, NamedTensors]) -> None:
        """Prepare for the messages of a round."""
        self.like = like
        self.updates.append({})

    def __call__(self, entry: Entry, content: Content) -> None:
        like = self.like.get(entry.kind)
        if like is None or not isinstance(content, bytes) or entry.name != f"update/{entry.kind}":
            return
        if entry.round % self.every:
            return
        if entry.n_values != sum(value.numel() for value in like.values()):
            return
        _, payload = split_message(content, len(content))
        sent = np.frombuffer(payload, self.dtype, entry.n_values).astype(np.float64)
        own = self.updates[-1].setdefault(entry.sender, {})
        own |= unpack(sent, like)


def replayed(
    config: Config, task: Task, progress: Progress, participants: Sequence[RoundParticipants] = ()
) -> Replay:
    """Play all rounds of a run in the clear: totals are the run's, but for sealing's error.

    A sealed total errs by `SUMS.noise` (1.7e-9 for five clients) in each slot, drawn anew by every
    sealing, and by its rounding; so a replay of a sealed run is near to it, and not to the bit.

    Args:
        config: the run's settings.
        task: its data and model.
        progress: called after each round.
        participants: who took part in the run, where not all clients did: they take part again,
            and count again or not. Without them others may: what is sealed takes longer, and scores
            of sealed profiles err by `OneTimeMatcher.precision`.

    Raises:
        ConfigError, DataError, Diverged: as the run itself.
    """
    tensors = averaged_tensors(task.model)
    in_clear = tensors.keys() - sealed_kinds(config)
    size = sum(value.numel() for kind in in_clear for value in tensors[kind].values())
    every = 1 + config.run.rounds * len(task.clients) * size // MOST_VALUES
    recorder = _Recorder(precision_of(task.model), every)
    record = Record(Ledger(tap=recorder))
    # A round in which nobody counted passes again, whatever the run did with others.
    passing = config.sites.model_copy(update={"late": "pass"})
    config = in_the_clear(config).model_copy(update={"sites": passing})
    rounds = simulated(config, task, record=record)
    rounds.follow(participants)
    models = [global_model(rounds.state, tensors)]
    with closing(rounds):
        while not rounds.complete:
            travelling = _travelling(config, rounds.state, task)
            recorder.begin_round({kind: travelling[kind] for kind in in_clear})
            rounds.step()
            models.append(global_model(rounds.state, tensors))
            progress(rounds.round, rounds.last_round)
    return Replay(models, recorder.updates, tuple(record.ledger.entries))


def in_the_clear(config: Config) -> Config:
    """Return the same training without keys, without a budget's stop, with noise that repeats.

    Raises:
        ConfigError: the settings need ciphertexts.
    """
    changes: dict[str, dict[str, Any]] = {
        "exchange": {"encrypt": (), "officers": 1, "threshold": None, "blind": False},
    }
    if config.privacy.private:
        changes["privacy"] = {"noise": "seeded", "budget": None}
    return with_changes(config, changes)


def inspect_rounds(config: Config, task: Task, n_rounds: int) -> InspectedRounds:
    """Play the first rounds of a run as they were, encrypted, and look at every byte."""
    data, batch_size = client_data(config, task)
    identities, keys = Identities.ephemeral(data), KeySet.ephemeral(quorum_of(config))
    plain = PlainChannel(precision_of(task.model))
    weights = client_weights(config, {name: len(of) for name, of in data.items()}, batch_size)
    inspector = ByteInspector(config, SealedMessages(keys, identities), plain, weights)
    record = Record(Ledger(tap=inspector))
    rounds = simulated(config, task, keys, identities, record)
    stopped, ended = "", list[Leak]()
    try:
        with closing(rounds):
            while rounds.round < min(n_rounds, rounds.last_round):
                under = partial(profiled_under, rounds.state)
                inspector.begin_round(rounds.plan, partial(_received_by, rounds), under)
                rounds.step()
    except _ENDS as error:
        stopped = str(error)
    except SecureFLError as error:
        stopped = str(error)
        ended.append(Leak(rounds.round + 1, "all", "the run", f"it does not go on: {error}"))
    written = sum(entry.bytes for entry in record.ledger.entries)
    return InspectedRounds(
        rounds.round, [*inspector.leaks(), *ended], inspector.n_bytes, written, stopped
    )


def _received_by(rounds: Rounds, client: str) -> tuple[str, str]:
    """Return the digests of what a client was sent in the round that goes on, and of the model."""
    ongoing = rounds.ongoing
    return (ongoing.received_by(client), ongoing.context.model) if ongoing else ("", "")


def _travelling(config: Config, state: State, task: Task) -> dict[Kind, NamedTensors]:
    """Return what clients send of the model in the round after `state`."""
    tensors, stays = averaged_tensors(task.model), set[str]()
    if task.algorithm is None:  # of one's own nobody knows; what is of another size is not kept
        stays = chosen_algorithm(config).normalisation(state, task.model).stays(state, task.model)
    return {
        kind: {name: value for name, value in named.items() if name not in stays}
        for kind, named in tensors.items()
    }


def global_model(state: State, model: Mapping[Kind, NamedTensors]) -> NamedTensors:
    """Return a state's tensors of the names of `model`, without what an algorithm has beside it."""
    return copied({name: state.tensors[kind][name] for kind in model for name in model[kind]})

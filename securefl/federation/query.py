"""Profiling of clients' data (FedProf): the layer, and the noise of differential privacy.

Queries of the server to single clients, and their answers: one signed message each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss, load_tensors
from securefl.algorithms.mean_loss import mean_loss
from securefl.algorithms.profiling import View, profiles
from securefl.data.samples import Samples, in_order
from securefl.errors import DataError, ValueRefused
from securefl.exchange.noise import Draw
from securefl.exchange.profile_match import Profile
from securefl.exchange.whole import in_parts
from securefl.federation.clients_round import RoundContext
from securefl.federation.contribution import Refused, cannot_send
from securefl.federation.message import CARD, SCORE_MEAN, SCORE_VALUE, SCORES
from securefl.federation.survey import profiled_under
from securefl.federation.total import state_digest
from securefl.privacy.randomness import Randomness, Secret
from securefl.types import (
    LOSS,
    PROFILE,
    SIZE,
    ClientState,
    MessageSpec,
    NamedTensors,
    Plan,
    State,
)

if TYPE_CHECKING:
    from securefl.algorithms.scoring import Score
    from securefl.federation.client import Client


class Profiler(Protocol):
    """Function that makes profiles other than the exact ones."""

    def __call__(self, view: View, batches: Iterable[Tensor], randomness: Randomness) -> Profile:
        """Return a profile in the view's unit; raises DataError where there is none."""


@dataclass(frozen=True, slots=True)
class Profiling:
    """Settings of profiles, the same for all clients of a run."""

    layer: str | None
    """Name of the layer; `default_layer` where None."""
    profiler: Profiler | None = None
    """Profiler of clients; profiles are exact where None, as the server's baseline always is."""
    randomness: Callable[[int, str], Randomness] = lambda _version, _client: Secret()
    """Source of a client's noise, on its profile or on its score in the clear, by the number of
    rounds completed and the client's name."""

    def draw(self, version: int, client: str) -> Draw:
        """Return the source of the noise on a client's score."""
        return self.randomness(version, client).gaussian

    def profiles(self, view: View, data: Mapping[str, Samples]) -> dict[str, Profile | DataError]:
        """Return each client's profile, or the error of one that has none."""
        if self.profiler is None:
            return profiles(view, data)
        made: dict[str, Profile | DataError] = {}
        for client, of in data.items():
            randomness = self.randomness(view.version, client)
            try:
                made[client] = self.profiler(view, inputs(of), randomness)
            except DataError as error:
                made[client] = error
        return made


def inputs(data: Samples) -> Iterator[Tensor]:
    """Yield the samples in batches, without their labels."""
    return (x for x, _ in in_order(data))


@dataclass(frozen=True, slots=True)
class Query:
    """Query that several clients get alike."""

    name: str
    """Name of the message that answers it: `CARD`, `SIZE`, `LOSS`, `PROFILE`, `SCORE_MEAN`'s, or
    one of `SCORES`."""
    unit: float = 1.0
    """Unit that a profile is measured in."""


def scoring(
    run: str, state: State, since: Mapping[str, int], job: str, spec: MessageSpec
) -> RoundContext:
    """Return the terms of the sum of scores under a state, of the clients in `since`, in order."""
    once = dict.fromkeys(since, 1)
    return RoundContext(run, state, Plan(update=(spec,)), once, since, job=job)


class Respondent:
    """Answers to queries, of the clients whose data are in this process."""

    def __init__(  # noqa: PLR0913, PLR0917  (what clients may be asked for)
        self,
        clients: Mapping[str, Client],
        data: Mapping[str, Samples],
        model: nn.Module,
        loss: Loss,
        profiling: Profiling | None = None,
        score: Callable[[nn.Module, State, str, NamedTensors], Score] | None = None,
        score_sum: MessageSpec | None = None,
    ) -> None:
        """Take the clients and their data.

        Args:
            clients: clients by name, which sign.
            data: samples by client.
            model: model of the run; copied once it is needed.
            loss: mean loss over a batch, of (model output, y).
            profiling: settings of profiles; None where nobody asks for one.
            score: scores a client's own model, the state's with its own tensors laid over it; None
                where nobody asks for it.
            score_sum: message that its sum travels in (`scores_sum`); None where nobody asks.
        """
        self._clients = clients
        self._data = data
        self._untrained = model
        self._loss = loss
        self._profiling = profiling
        self._score = score
        self._score_sum = score_sum
        self._copy: nn.Module | None = None
        self._scored: dict[str, tuple[tuple[int, str], Score]] = {}
        """Last score of each client, after its state: two queries ask for a part of it each."""

    def answers(
        self,
        run: str,
        query: Query,
        state: State,
        names: Collection[str],
        client_states: Mapping[str, ClientState] = MappingProxyType({}),
    ) -> dict[str, bytes | Refused]:
        """Return each client's signed message, or its refusal.

        `client_states` are the states that clients keep; scores need them.
        """
        if query.name == CARD:
            return {name: self._clients[name].send_cards(run) for name in names}
        if query.name == PROFILE:
            return self._profiles(run, query, state, names)
        number: Callable[[str], float]
        if query.name == SIZE:
            number = self._size
        elif query.name == LOSS:
            load_tensors(self._model, state)
            number = self._mean_loss
        elif query.name in SCORES:
            number = self._part_of_score(query.name, state, client_states)
        else:
            raise DataError(f"clients are asked for {query.name!r:.80}, which they do not know")
        return {
            name: self._clients[name].send_number(run, state.round + 1, query.name, number(name))
            for name in names
        }

    def scores(
        self,
        run: str,
        state: State,
        since: Mapping[str, int],
        job: str,
        client_states: Mapping[str, ClientState],
    ) -> dict[str, bytes | Refused]:
        """Return each client's contribution to the sum of scores (`scoring`), or its refusal."""
        scored, found = self._scorer(state, client_states), dict[str, bytes | Refused]()
        spec = self._score_sum
        if spec is None:
            raise DataError("clients are asked for a sum of scores, which these settings have none")
        context = scoring(run, state, since, job, spec)
        for name in context.times:
            score, received = scored(name), context.terms(name).bind(context.told)
            about, model = (run, context.number, spec), context.model
            try:
                sent = _as_sent(score)
                found[name] = self._clients[name].contribute(
                    *about, sent, state=received, model=model
                )
            except ValueRefused as error:
                found[name] = cannot_send(name, SCORE_MEAN, str(error))
        return found

    def last_score(self, name: str) -> Score | None:
        """Return what a client has worked out of its own model last; None before."""
        return self._scored[name][1] if name in self._scored else None

    def _part_of_score(
        self, name: str, state: State, client_states: Mapping[str, ClientState]
    ) -> Callable[[str], float]:
        scored = self._scorer(state, client_states)

        def number(client: str) -> float:
            return scored(client).value if name == SCORE_VALUE else scored(client).loss

        return number

    def _scorer(
        self, state: State, client_states: Mapping[str, ClientState]
    ) -> Callable[[str], Score]:
        score = self._score
        if score is None:
            raise DataError("clients are asked for scores, which they have no test data for")

        now = state.round, state_digest(state)

        def scored(client: str) -> Score:
            if client not in self._scored or self._scored[client][0] != now:
                found = score(self._model, state, client, client_states[client].scored)
                self._scored[client] = now, found
            return self._scored[client][1]

        return scored

    @property
    def _model(self) -> nn.Module:
        if self._copy is None:
            self._copy = copy.deepcopy(self._untrained)
        return self._copy

    def _size(self, name: str) -> float:
        return float(len(self._data[name]))

    def _mean_loss(self, name: str) -> float:
        return mean_loss(self._model, self._data[name], self._loss)

    def _profiles(
        self, run: str, query: Query, state: State, names: Collection[str]
    ) -> dict[str, bytes | Refused]:
        if self._profiling is None:
            raise DataError("clients are asked for profiles, which these settings have none of")
        load_tensors(self._model, state)
        data = {name: self._data[name] for name in names}
        view = View(self._model, self._profiling.layer, state.round, query.unit)
        made, under = self._profiling.profiles(view, data), profiled_under(state, query.unit)
        about = run, state.round + 1
        return {name: self._sealed(about, name, made[name], under) for name in names}

    def _sealed(
        self, about: tuple[str, int], name: str, made: Profile | DataError, under: str
    ) -> bytes | Refused:
        try:
            if isinstance(made, DataError):
                raise made
            return self._clients[name].send_profile(*about, made.in_range(), under)
        except (ValueRefused, DataError) as error:
            return cannot_send(name, PROFILE, f"{name}: {error}")


def _as_sent(score: Score) -> NamedTensors:
    """Return a score as `scores_sum` has it; raises ValueRefused for sums out of range."""
    assert score.sums is not None  # noqa: S101 -- for mypy: it was worked out here
    scored = not math.isnan(score.value)
    numbers = {"value": score.value if scored else 0.0, "loss": score.loss, "scored": scored}
    values = {name: torch.tensor(of, dtype=torch.float64) for name, of in numbers.items()}
    return {**values, "sums": in_parts(score.sums)}

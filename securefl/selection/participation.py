"""Participants of each round: clients are asked, selected, and lost by simulated devices.

A round:
    1. clients that have not yet given the answers that the selector goes by are asked for them
    2. the selector draws clients from those whose answers count
    3. the selected are sent the model, and asked again where their answers depend on it
    4. those train whose new answer counts, that are not lost and that keep the deadline
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from securefl.errors import RunFolderError, TooFewContributions
from securefl.federation.broadcast import Broadcast
from securefl.federation.questions import Question
from securefl.federation.training import DROPOUT, SELECTION, round_generator
from securefl.selection.device_simulation import (
    ClientWorkloads,
    Cost,
    Device,
    SimulatedDevices,
    dropouts,
    round_outcome,
)
from securefl.selection.round_participants import RoundParticipants
from securefl.selection.selector import Selects, Standing
from securefl.types import Plan, State

SELECTED_IN = "selected_in"


@dataclass(frozen=True, slots=True)
class RoundSelection:
    """Selection of each round's clients."""

    selector: Selects
    n_selected: int
    questions: Sequence[Question] = ()
    """Questions for the selector's numbers; waiting and round times need none."""
    by_time: bool = False
    """True where the selector goes by round times, which are then computed for every client."""
    scores: Callable[[Standing], dict[str, float]] = lambda _standing: {}
    """Scores by which the selector draws, where it has any: they are recorded."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Simulated devices, deadline and dropout of a round."""

    devices: SimulatedDevices | None = None
    """Devices of the clients; rounds take no time where None."""
    deadline_s: float | None = None
    dropout: float = 0.0


@dataclass(frozen=True, slots=True)
class _Passed:
    """A round on simulated devices; without them nothing took time."""

    lost: tuple[str, ...]
    late: tuple[str, ...] = ()
    time_s: float | None = None
    energy_wh: float | None = None


@dataclass(slots=True)
class Participation:
    """The clients of each round, and what the server knows of them between rounds."""

    clients: Sequence[str]
    choice: RoundSelection | None
    """Choice of each round's clients; all of them where None."""
    conditions: Conditions
    workloads: ClientWorkloads
    broadcast: Broadcast
    seed: int
    needed: int
    """Least clients of a round; with fewer it passes without any."""
    _known: dict[str, dict[str, float]] = field(default_factory=dict)
    """Answers by quantity, then by client."""
    _selected_in: dict[str, int] = field(default_factory=dict)
    """The last round of each client that was ever selected."""
    _followed: dict[int, RoundParticipants] = field(default_factory=dict)
    """Recorded participants of a replayed run, by round."""

    @property
    def devices(self) -> Mapping[str, Device]:
        """Each client's device; empty where none are simulated."""
        return self.conditions.devices.devices if self.conditions.devices else {}

    @property
    def recorded(self) -> bool:
        """True where selections.jsonl is written: clients are selected, or devices simulated."""
        return self.choice is not None or self.conditions != Conditions()

    def participants(
        self,
        state: State,
        plan: Plan,
        here: Sequence[str] | None = None,
        again: Mapping[str, int] | None = None,
    ) -> RoundParticipants:
        """Ask and select the clients of the round after `state`, which is to follow `plan`.

        Args:
            state: the round before.
            plan: the round's messages.
            here: the clients to choose from; all where None.
            again: clients that the round is of, by how often each counts, as an earlier one at this
                model was; None where they are to be drawn.

        Where fewer than `needed` are present, the round passes without any. Answers come before
        training, so those of late and lost clients count.

        Raises:
            TooFewContributions: no client has given an answer that counts.
            OpeningRefused: the authority does not open the scores.
        """
        here = self.clients if here is None else here
        new = self._unknown(here)
        asked = self._costs(state, None, new, self._questions)
        first = self._ask(state, new, self._questions)
        times, scores = self._selected(state, plan, here, again)
        known = [client for client in times if client not in new]
        costs = self._costs(state, plan, [c for c in times if c in new], ())
        costs |= self._costs(state, plan, known, self._repeated)
        self.broadcast.send(state, times)
        later = self._ask(state, known, self._repeated)
        refused = {c for c in known if any(c not in found for found in later.values())}
        passed = self._passed(state, tuple(times), asked, costs)
        self.broadcast.forget(passed.lost)
        self._selected_in |= dict.fromkeys(times, state.round + 1)
        present = tuple(c for c in times if c not in {*passed.lost, *passed.late, *refused})
        if followed := self._followed.get(state.round + 1):
            return followed
        return RoundParticipants(
            round=state.round + 1,
            selected=times,
            present=present if len(present) >= self.needed else (),
            lost=passed.lost,
            late=passed.late,
            measured={
                client: value
                for found in (first, later)
                for question in self._repeated
                for client, value in found.get(question.quantity, {}).items()
            },
            scores=scores,
            simulated_s=passed.time_s,
            energy_wh=passed.energy_wh,
        )

    @property
    def _questions(self) -> Sequence[Question]:
        return self.choice.questions if self.choice else ()

    @property
    def _repeated(self) -> list[Question]:
        return [question for question in self._questions if question.reads_data]

    def _unknown(self, here: Sequence[str]) -> list[str]:
        """Return the clients that have not yet given all answers."""
        known = [self._known.get(question.quantity, {}) for question in self._questions]
        return [c for c in here if any(c not in answers for answers in known)]

    def _passed(
        self,
        state: State,
        selected: tuple[str, ...],
        asked: Mapping[str, Cost],
        costs: Mapping[str, Cost],
    ) -> _Passed:
        """Simulate the round on the devices: first answers, then work of the selected."""
        rng = round_generator(self.seed, state.round, DROPOUT)
        lost = dropouts(selected, self.conditions.dropout, rng)
        if self.conditions.devices is None:
            return _Passed(lost)
        outcome = round_outcome(costs, lost, self.conditions.deadline_s)
        before_s = max((cost.time_s for cost in asked.values()), default=0.0)
        before_wh = math.fsum(cost.energy_wh for cost in asked.values())
        return _Passed(
            lost, outcome.stragglers, before_s + outcome.time_s, before_wh + outcome.energy_wh
        )

    def _ask(
        self, state: State, clients: Collection[str], questions: Sequence[Question]
    ) -> dict[str, dict[str, float]]:
        """Return new answers by quantity; a client whose answer is refused keeps its last one."""
        if not clients:
            return {}
        if any(question.reads_data for question in questions):
            self.broadcast.send(state, clients)
        answers: dict[str, dict[str, float]] = {}
        for question in questions:
            answers[question.quantity] = found = question.ask(state, clients)
            self._known.setdefault(question.quantity, {}).update(found)
        return answers

    def _selected(
        self, state: State, plan: Plan, here: Sequence[str], again: Mapping[str, int] | None
    ) -> tuple[dict[str, int], dict[str, float]]:
        """Return clients by how often they are selected, and FedProf's scores."""
        if followed := self._followed.get(state.round + 1):
            return dict(followed.selected), dict(followed.scores)
        if again is not None:
            return dict(again), {}
        if self.choice is None:
            return dict.fromkeys(here, 1), {}
        known = {q.quantity: self._known.get(q.quantity, {}) for q in self._questions}
        candidates = tuple(c for c in here if all(c in a for a in known.values()))
        if not candidates:
            raise TooFewContributions(
                f"round {state.round + 1}: of {len(here)} clients none has given an answer "
                "that counts, so none can be selected: see incidents.jsonl for the reasons"
            )
        timed = candidates if self.choice.by_time else ()
        costs = self._costs(state, plan, timed, self._repeated)
        standing = Standing(
            candidates,
            time_s={client: cost.time_s for client, cost in costs.items()},
            rounds_waited={c: state.round - self._selected_in.get(c, 0) for c in candidates},
            **known,
        )
        rng = round_generator(self.seed, state.round, SELECTION)
        select, n = self.choice.selector.select, self.choice.n_selected
        drawn = candidates if plan.of_all else select(standing, n, rng)
        scores = self.choice.scores(standing)
        return dict(Counter(drawn)), scores

    def _costs(
        self, state: State, plan: Plan | None, clients: Collection[str], asked: Sequence[Question]
    ) -> dict[str, Cost]:
        devices = self.conditions.devices
        if devices is None:
            return {}
        return {c: devices.cost(c, self.workloads.of(state, plan, c, asked)) for c in clients}

    def follow(self, participants: Sequence[RoundParticipants]) -> None:
        """Repeat these rounds: draw, lose and delay exactly the clients that they record."""
        self._followed = {each.round: each for each in participants}

    def numbers(self) -> dict[str, Mapping[str, float]]:
        """Return the numbers that a resumed run needs, for a checkpoint."""
        return {**self._known, SELECTED_IN: dict(self._selected_in), **self.broadcast.numbers()}

    def go_on_from(self, numbers: Mapping[str, Mapping[str, float]]) -> None:
        """Take over what `numbers` gave; raises RunFolderError where it is of other clients."""
        mine = {question.quantity for question in self._questions}
        for quantity in {*mine, SELECTED_IN}:
            if not numbers.get(quantity, {}).keys() <= set(self.clients):
                raise RunFolderError(f"the checkpoint's {quantity} is of other clients")
        self._known = {q: dict(numbers[q]) for q in mine if q in numbers}
        self._selected_in = {c: int(r) for c, r in numbers.get(SELECTED_IN, {}).items()}
        self.broadcast.go_on_from(numbers)

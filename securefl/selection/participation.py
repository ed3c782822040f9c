"""Who takes part in each round: asked, selected, and simulated devices' losses taken off.

A round:
    1. whoever has not yet given the answers that the selector goes by is asked for them
    2. the selector draws clients from those whose answers count
    3. the selected are sent the model, and asked again where their answers depend on it
    4. of them train those whose new answer counts, who are not lost, and who keep the deadline
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from securefl.errors import RunFolderError, TooFewContributions
from securefl.federation.broadcast import Broadcast
from securefl.federation.questions import Question
from securefl.federation.training import DROPOUT, SELECTION, round_generator
from securefl.selection.base import Selector, Standing
from securefl.selection.device_simulation import Fleet, Loads
from securefl.selection.devices import Cost, Device, dropouts, round_outcome
from securefl.selection.fedprof import FedProf
from securefl.selection.round_participants import Turnout
from securefl.types import Plan, State

SELECTED_IN = "selected_in"


@dataclass(frozen=True, slots=True)
class Choice:
    """How a round's clients are chosen."""

    selector: Selector
    n_selected: int
    questions: Sequence[Question] = ()
    """What the selector goes by; of waiting and of round times nobody is asked."""
    by_time: bool = False
    """Whether it goes by round times, which are then worked out for every client."""
    scores: FedProf | None = None
    """Where the selector draws by scores: what gives them, for the record."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What simulated devices make of a round."""

    fleet: Fleet | None = None
    """None: nothing takes time."""
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
    choice: Choice | None
    """None: all of them."""
    conditions: Conditions
    loads: Loads
    broadcast: Broadcast
    seed: int
    needed: int
    """Clients without whom a round comes to nothing."""
    _known: dict[str, dict[str, float]] = field(default_factory=dict)
    """By quantity, then by client."""
    _selected_in: dict[str, int] = field(default_factory=dict)
    """The last round of each client that was ever selected."""
    _followed: dict[int, Turnout] = field(default_factory=dict)
    """By round, the turnouts of a run that is played again."""

    @property
    def devices(self) -> Mapping[str, Device]:
        """Each client's; empty where none are simulated."""
        return self.conditions.fleet.devices if self.conditions.fleet else {}

    @property
    def recorded(self) -> bool:
        """Whether there is something to say of a round's clients."""
        return self.choice is not None or self.conditions != Conditions()

    def turnout(self, state: State, plan: Plan, here: Sequence[str] | None = None) -> Turnout:
        """The clients of the round after `state`, which is to follow `plan`.

        Of those that are `here`; of all where None.

        Where fewer than `needed` are present, nobody is: the round passes without them. Answers
        come before training, so those of late and lost clients count.

        Raises:
            TooFewContributions: no client has given an answer that counts.
            OpeningRefused: the authority does not open the scores.
        """
        here = self.clients if here is None else here
        new = self._unknown(here)
        asked = self._costs(state, None, new, self._questions)
        first = self._ask(state, new, self._questions)
        times, scores = self._selected(state, plan, here)
        again = [client for client in times if client not in new]
        costs = self._costs(state, plan, [c for c in times if c in new], ())
        costs |= self._costs(state, plan, again, self._repeated)
        self.broadcast.send(state, times)
        later = self._ask(state, again, self._repeated)
        refused = {c for c in again if any(c not in found for found in later.values())}
        passed = self._passed(state, tuple(times), asked, costs)
        self.broadcast.forget(passed.lost)
        self._selected_in |= dict.fromkeys(times, state.round + 1)
        present = tuple(c for c in times if c not in {*passed.lost, *passed.late, *refused})
        if followed := self._followed.get(state.round + 1):
            return followed
        return Turnout(
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
        """Clients of those here that have not yet given all answers."""
        known = [self._known.get(question.quantity, {}) for question in self._questions]
        return [c for c in here if any(c not in answers for answers in known)]

    def _passed(
        self,
        state: State,
        selected: tuple[str, ...],
        asked: Mapping[str, Cost],
        costs: Mapping[str, Cost],
    ) -> _Passed:
        """What devices made of the round: the first answers, then that of the selected."""
        rng = round_generator(self.seed, state.round, DROPOUT)
        lost = dropouts(selected, self.conditions.dropout, rng)
        if self.conditions.fleet is None:
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
        """New answers by quantity; those of before stay where one is refused."""
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
        self, state: State, plan: Plan, here: Sequence[str]
    ) -> tuple[dict[str, int], dict[str, float]]:
        """Clients by how often they are selected, and FedProf's scores."""
        if followed := self._followed.get(state.round + 1):
            return dict(followed.selected), dict(followed.scores)
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
        drawn = self.choice.selector.select(standing, self.choice.n_selected, rng)
        scores = self.choice.scores.scores(standing) if self.choice.scores else {}
        return dict(Counter(drawn)), scores

    def _costs(
        self, state: State, plan: Plan | None, clients: Collection[str], asked: Sequence[Question]
    ) -> dict[str, Cost]:
        fleet = self.conditions.fleet
        if fleet is None:
            return {}
        return {c: fleet.cost(c, self.loads.of(state, plan, c, asked)) for c in clients}

    def follow(self, turnouts: Sequence[Turnout]) -> None:
        """From now on nobody is drawn, lost or late in these rounds but who is so in them."""
        self._followed = {turnout.round: turnout for turnout in turnouts}

    def numbers(self) -> dict[str, Mapping[str, float]]:
        """What a resumed run must know, for a checkpoint."""
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

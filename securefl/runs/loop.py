"""Loop of rounds: one for simulations, worker processes and real sites."""

import copy
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from securefl.algorithms.algorithm import Algorithm, copied, lay_over, load_tensors
from securefl.algorithms.rng_isolation import seeded_layers
from securefl.algorithms.scoring import Score
from securefl.errors import (
    ClientLost,
    ConfigError,
    Diverged,
    MessageRefused,
    OpeningRefused,
    RunFolderError,
    TooFewContributions,
    TotalRefused,
    WorkerLost,
)
from securefl.exchange.blind import BlindTotal
from securefl.exchange.card_keys import Quorum
from securefl.exchange.sums import OpenedSum
from securefl.federation.broadcast import Broadcast
from securefl.federation.cards import Cards
from securefl.federation.checks import most_lists
from securefl.federation.clients_round import RoundContext
from securefl.federation.engine import Engine, Opener
from securefl.federation.incidents import PASSED, SITS_OUT, SPOILED, Incident
from securefl.federation.ledger import Ledger, utc_now
from securefl.federation.left_out import Interruptions, ListsOfModel, Suspects, next_list
from securefl.federation.lineage import Shown
from securefl.federation.message import SCORING
from securefl.federation.opening import Opening
from securefl.federation.round import ServerRound
from securefl.federation.server import Server, SumRequest
from securefl.federation.total import Terms, state_digest
from securefl.federation.training import Training, round_generator
from securefl.metrics.by_name import SHARES, accuracy_of, shown_compared, title
from securefl.privacy.history import History
from securefl.privacy.odometer import Odometer, Spending
from securefl.runs.checkpoint import Checkpoint, check_client_state
from securefl.runs.divergence import check_loss
from securefl.runs.folder_files import BEST, MODEL, is_finished
from securefl.runs.folder_writer import RunFolder
from securefl.runs.frame import frame
from securefl.runs.progress import MEGABYTE, RunProgress
from securefl.runs.round_metrics import ClientScore, RoundMetrics, best_of, read_metrics
from securefl.runs.session import InFlight, torch_threads
from securefl.runs.stopwatch import Stopwatch
from securefl.selection.participation import Participation
from securefl.selection.round_participants import RoundParticipants
from securefl.settings.tables import Config
from securefl.task import Task
from securefl.types import NamedTensors, Plan, State

_WITH_IT = "totals at this model were opened with it, and without it would show too few"
_APART = "totals at this model were opened of other clients, and the difference would show too few"
_STILL = "the round passes: its totals left the model as it was, bit for bit (train.lr, run.rounds)"
COUNTED_IN = "counted_in"
OnRound = Callable[[RoundMetrics], None]
OnStart = Callable[[str], None]
OnEnd = Callable[["Result"], None]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """Result of a run, in memory.

    Examples:
        >>> result.metric, len(result.metrics), len(result.openings) > 0
        ('accuracy', 2, True)
        >>> result.best.score >= result.score
        True
        >>> rows = result.frame()  # a row for each round: pandas, or a list of dicts without it
        >>> probabilities = result.model.eval()(test[0]).softmax(dim=1)
    """

    config: Config
    model: nn.Module
    metrics: list[RoundMetrics]
    ledger: Ledger
    openings: list[Opening]
    incidents: list[Incident]
    key_id: str
    """Id of the key; empty where nothing was encrypted."""
    participants: list[RoundParticipants]
    """Participants of each of this session's rounds."""
    history: History
    """Releases of differential privacy; empty where no noise was added."""
    stopped: str
    """Reason why the run ended before its last round; empty where it did not."""
    task: Task
    """Task that was trained; its model is the untrained one."""
    own: Mapping[str, NamedTensors]
    """Tensors of the model that each client keeps to itself; empty where no client does."""

    @property
    def score(self) -> float:
        """Score of the last round, by `metric`; the clients' mean where they have own models."""
        return self.metrics[-1].score

    @property
    def best(self) -> RoundMetrics | None:
        """Round of the best score; None where none has a score: see `best_of`."""
        return best_of(self.metrics)

    @property
    def loss(self) -> float:
        """Loss of the last round on the test data."""
        return self.metrics[-1].loss

    @property
    def metric(self) -> str:
        """Name of the score's metric."""
        return self.metrics[-1].metric

    @property
    def accuracy(self) -> float:
        """Score, 0..1; raises ConfigError where the metric is no accuracy, such as R²."""
        return accuracy_of(self.metric, self.score)

    @property
    def clients(self) -> Mapping[str, ClientScore]:
        """Scores of the last round by client; empty where clients are not scored by themselves."""
        return self.metrics[-1].clients

    @property
    def client_models(self) -> dict[str, nn.Module]:
        """New models of each client: the global one with the client's own tensors laid over it.

        Empty where no client has own tensors: all have `model`.
        """
        models = {name: copy.deepcopy(self.model) for name in self.own}
        for name, model in models.items():
            lay_over(model, self.own[name])
        return models

    def frame(self) -> Any:
        """Return a row for each round: see `securefl.runs.frame.frame`."""
        return frame(self.metrics)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: figures, the score by round, and scores by client."""
        from securefl.runs.result_html import result_html

        sent = sum(m.upload_bytes for m in self.metrics) / MEGABYTE
        counts = {
            "Sent by clients": f"{sent:,.1f} MB",
            "Totals opened": f"{len(self.openings):,}",
            "Incidents": f"{len(self.incidents):,}",
        }
        if self.metrics and self.config.privacy.private:
            spent = self.metrics[-1].epsilon
            counts["ε spent"] = "not bounded" if spent is None else f"{spent:.3g}"
        return result_html(self.config.name, self.metrics, counts)

    def __repr__(self) -> str:
        if not self.metrics:
            return f"Result({self.config.name}, no rounds)"
        last = self.metrics[-1]
        sent = sum(m.upload_bytes for m in self.metrics) / MEGABYTE
        score = shown_compared(last.metric, last.score, last.pooled)
        scored = f"{title(last.metric)} {score}, loss {last.loss:.3g}"
        return (
            f"Result({self.config.name}, {len(self.metrics)} rounds, {scored},\n"
            f"  {sent:.1f} MB sent by clients, {len(self.openings)} totals opened, "
            f"{len(self.incidents)} incidents,\n"
            f"  read: .metrics .model .clients .client_models .ledger .openings .incidents)"
        )


@dataclass(slots=True)
class Record:
    """Logs that the roles write while a run goes on."""

    ledger: Ledger = field(default_factory=Ledger)
    incidents: list[Incident] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)
    folder: RunFolder | None = None

    def log_opening(self, opening: Opening) -> None:
        """Write an opening down, on disk before the total is released."""
        self.openings.append(opening)
        if self.folder:
            self.folder.note_opening(opening)


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts that the loop is made of."""

    config: Config
    task: Task
    algorithm: Algorithm
    training: Training
    server: Server
    engine: Engine
    opener: Opener
    cards: Cards
    broadcast: Broadcast
    participation: Participation
    score: Callable[[nn.Module, State], Score]
    """Scorer of the models after a round; the module holds the global one before and after."""
    metric: str
    """Name of the score's metric."""
    record: Record
    engine_words: str
    """Description of the engine that trains the clients, and why."""
    least_clients: int
    """Number of clients without which a round passes, or no total is opened."""
    quorum: int = 1
    """Number of clients without which no round begins."""
    in_flight: InFlight | None = None
    """Round whose totals an earlier session has asked for; None where none was."""
    note_in_flight: Callable[[InFlight], None] = lambda _in_flight: None
    """Writes down, before a total is asked for, whose it is: the next session goes by it."""
    spending: Spending | None = None
    """Accounting of differential privacy; None where no noise is added."""
    key_id: str = ""
    """Id of the key; empty where nothing is encrypted."""
    qualities: Mapping[str, str] = field(default_factory=dict)
    """Quality of each client's data; empty where unknown."""
    advice: Callable[[int], str] = lambda _done: ""
    """Explanation of a divergence after so many rounds, with a remedy."""
    at_end: Callable[[RunFolder, History], None] = lambda _folder, _history: None
    """Function that leaves pages and pictures in the folder."""


class Rounds:
    """State of a run between two rounds, and its rounds one after the other."""

    def __init__(self, parts: Parts) -> None:
        """Begin before the first round; raises DataError where the algorithm cannot be run."""
        self.parts = parts
        """Parts that the loop is made of."""
        self.config = parts.config
        self.key_id = parts.key_id
        """Id of the key; empty where nothing is encrypted."""
        self.session = parts.server.run
        """Id of this session, 64 hex digits."""
        self.engine = parts.engine_words
        """Description of the engine that trains the clients, and why."""
        self._record = parts.record
        self._metrics: list[RoundMetrics] = []
        self.participants: list[RoundParticipants] = []
        """Participants of each of this session's rounds."""
        self._participation = parts.participation
        self._odometer = Odometer(parts.spending) if parts.spending else None
        self._suspects = Suspects(parts.least_clients)
        self._interruptions = Interruptions(max(parts.least_clients, parts.quorum))
        exchange = parts.config.exchange
        self._officers = Quorum(exchange.needed, exchange.officers)
        self._lists = ListsOfModel(parts.least_clients, most_lists(self._officers))
        self._begun = parts.in_flight
        """Totals that an earlier session has asked for, until the first round begins."""
        self._noted: InFlight | None = None
        self._watch = Stopwatch()
        self._left_out: list[str] = []
        """Clients that sit out the last round, since no list with them can be had at its model."""
        self._scored: Score | None = None
        """Score of the state, where a round of this session has made it."""
        self.ongoing: ServerRound | None = None
        """The round that was begun last."""
        self.counted_in: dict[str, int] = {}
        """The last round of each client whose contributions counted."""
        self._model = copy.deepcopy(parts.task.model)
        self._state = parts.algorithm.init(self._model)
        parts.algorithm.plan(self._state, self._model)  # raises where it cannot

    @property
    def complete(self) -> bool:
        """True once no round is left."""
        return self._state.round >= self.last_round

    @property
    def last_round(self) -> int:
        """Number of the last round, within the budget of differential privacy."""
        return self._odometer.last_round if self._odometer else self.config.run.rounds

    @property
    def stopped(self) -> str:
        """Reason why no round is left before the last; empty without one."""
        return self._odometer.stopped(self.round) if self._odometer else ""

    @property
    def round(self) -> int:
        """Number of rounds done."""
        return self._state.round

    @property
    def state(self) -> State:
        """State after the last round."""
        return self._state

    @property
    def plan(self) -> Plan:
        """Messages that clients will send in the next round."""
        return self.parts.algorithm.plan(self._state, self._model)

    def go_back_to(self, checkpoint: Checkpoint | None) -> None:
        """Start from a checkpoint; raises RunFolderError where it does not fit."""
        if checkpoint is None:
            return
        if _layout(checkpoint.state) != _layout(self._state):
            raise RunFolderError(
                "the checkpoint is of another model, or of another algorithm, than this run's: "
                "resume with the model that the run began with, and with its config.json unchanged"
            )
        if not checkpoint.client_states.keys() <= set(self._participation.clients):
            raise RunFolderError(
                "the checkpoint is of other clients than this run's: resume with the data that the "
                "run began with, and with its config.json unchanged"
            )
        if self.parts.task.algorithm is None:  # what that one keeps, it alone knows
            for client, client_state in checkpoint.client_states.items():
                check_client_state(client, client_state, self._model)
        checkpoint = checkpoint.beside(self._state)
        self._state = checkpoint.state
        self.parts.engine.restore(checkpoint.client_states)
        self._participation.go_on_from(checkpoint.numbers)
        self._suspects.go_on_from(checkpoint.numbers)
        self._interruptions.go_on_from(checkpoint.numbers)
        counted_in = checkpoint.numbers.get(COUNTED_IN, {})
        self.counted_in = {client: int(number) for client, number in counted_in.items()}
        load_tensors(self._model, self._state)

    def go_on_in(self, folder: RunFolder) -> None:
        """Go on from a folder's checkpoint, and drop its lines of an unfinished round.

        Raises:
            RunFolderError: the folder is damaged or of another run, or the run is complete.
        """
        self.go_back_to(folder.checkpoint())
        before = [m for m in read_metrics(folder.path) if m.round <= self.round]
        self.take_over(before, folder.history())
        folder.rewind(self.round)
        if self.complete and is_finished(folder.path):
            done = self.stopped or f"complete, all {self.config.run.rounds} rounds"
            raise RunFolderError(f"{folder.path}: this run is {done}")
        self._keep_best(folder)  # the run may have ended before it was written

    @property
    def first_loss(self) -> float | None:
        """Loss on the test data after the first round that has a score; None before."""
        return next((m.loss for m in self._metrics if not math.isnan(m.loss)), None)

    def follow(self, participants: Sequence[RoundParticipants]) -> None:
        """Repeat the participants of another run's rounds."""
        self._participation.follow(participants)

    def take_over(self, metrics: Sequence[RoundMetrics], history: History | None) -> None:
        """Take over the record of the rounds before; raises RunFolderError where it has gaps."""
        if self._odometer:
            self._odometer = Odometer(self._odometer.spending, history, self.round)
        if len(metrics) != self.round or any(m.round != i for i, m in enumerate(metrics, 1)):
            raise RunFolderError(
                f"metrics.jsonl has not one line for each of the {self.round} rounds before: put a "
                "copy of it back if you have one, or start the run anew in another folder"
            )
        self._metrics += metrics

    def close(self) -> None:
        """End processes and threads; `run` does so by itself."""
        self.parts.engine.close()

    def run(
        self,
        on_round: OnRound | None,
        folder: RunFolder | None = None,
        progress: RunProgress | None = None,
    ) -> Result:
        """Run all rounds that are left; processes and threads end with them."""
        with ExitStack() as ends:
            ends.callback(self.close)
            told: list[Callable[[str], None]] = [progress.on_phase] if progress else []
            told += [ends.enter_context(folder.phases())] if folder else []

            def tell(name: str) -> None:
                for on_phase in told:
                    on_phase(name)

            self._watch.on_phase = tell
            return self._run(on_round, folder, progress)

    def _run(
        self, on_round: OnRound | None, folder: RunFolder | None, progress: RunProgress | None
    ) -> Result:
        self._record.folder = folder
        if folder:
            folder.note_clients(self.parts.qualities, self._participation.devices)
        while not self.complete:
            try:
                metrics = self.step(folder)
            except Diverged as error:
                advice = self.parts.advice(self.round)
                raise Diverged(f"{error}{advice}{self._keep_last_good(folder)}") from error
            if progress:
                progress.on_round(metrics)
            if on_round:
                on_round(metrics)
        if folder:
            self._finish(folder)
        record = self._record
        return Result(
            self.config,
            self._model,
            self._metrics,
            record.ledger,
            record.openings,
            record.incidents,
            self.key_id,
            self.participants,
            self._odometer.history if self._odometer else History(),
            self.stopped,
            self.parts.task,
            self._own_tensors(),
        )

    def _own_tensors(self) -> dict[str, NamedTensors]:
        client_states = self.parts.engine.client_states
        if not any(client_state.scored for client_state in client_states.values()):
            return {}
        return {name: copied(client_state.scored) for name, client_state in client_states.items()}

    def step(self, folder: RunFolder | None = None) -> RoundMetrics:
        """Run one more round; raises as `run` does."""
        with torch_threads(self.parts.training.threads):
            return self._step(folder)

    def _step(self, folder: RunFolder | None) -> RoundMetrics:
        started = time.perf_counter()
        record, lr = self._record, self.parts.training.sgd(self._state.round).lr
        if self._odometer:
            spent = self._odometer.charge(self.round)
            if folder:
                folder.note_history(spent)
        n_entries, n_incidents = len(record.ledger.entries), len(record.incidents)
        try:
            with self._watch.phase("clients, messages"):
                participants, state = self._next_state()
            with self._watch.phase("scoring"):
                score = self._score_after(state)
        finally:  # a round that fails leaves evidence too
            entries = record.ledger.entries[n_entries:]
            incidents = record.incidents[n_incidents:]
            if folder:
                folder.note_messages(entries, incidents)
        self._state, self._scored = state, score
        metrics = RoundMetrics(
            round=self._state.round,
            accuracy=score.value if score.metric in SHARES else None,
            loss=score.loss,
            lr=lr,
            upload_bytes=sum(Ledger(entries).upload_bytes().values()),
            dropped=tuple(sorted({i.client for i in incidents if i.name not in SCORING})),
            seconds=time.perf_counter() - started,
            simulated_s=participants.simulated_s,
            energy_wh=participants.energy_wh,
            epsilon=self._odometer.epsilon(self.round) if self._odometer else None,
            metric=score.metric,
            score=score.value,
            clients={name: ClientScore(of.value, of.loss) for name, of in score.clients.items()},
            pooled=score.pooled,
            phases=self._watch.take(),
            n_clients=len(participants.present) - len(participants.uncounted),
        )
        self._metrics.append(metrics)
        self.participants.append(participants)
        if folder:
            numbers = {
                **self._participation.numbers(),
                **self._suspects.numbers(),
                **self._interruptions.numbers(),
                COUNTED_IN: self.counted_in,
            }
            checkpoint = Checkpoint(self._state, self.parts.engine.client_states, numbers)
            fewer = metrics.n_clients != len(self._participation.clients)
            recorded = self._participation.recorded or fewer
            noted = participants if recorded else None
            folder.note_round(metrics, checkpoint, noted)
            self._keep_best(folder)
        return metrics

    def _keep_best(self, folder: RunFolder) -> None:
        """Write the model of the last round where its score is the best so far."""
        if (best := best_of(self._metrics)) and best.round == self.round:
            load_tensors(self._model, self._state)
            folder.note_model(self._model.state_dict(), BEST)

    def _next_state(self) -> tuple[RoundParticipants, State]:
        """Return a round's participants, and the state after it.

        The state stays where no client is present, and where one has spoilt a sealed total or was
        lost between two; with `sites.late = "pass"` or `"wait"` also where clients are too few.

        Raises:
            TooFewContributions: clients are too few.
        """
        parts, state, plan = self.parts, self._state, self.plan
        parts.opener.be_ready_for(state.round + 1, (*plan.sums, *plan.update))
        self._begin_lists(plan)
        among = [c for c in self._participation.clients if c not in self._suspects.guilty]
        here = parts.engine.present(state.round + 1, among)
        if len(here) < parts.quorum:
            error = TooFewContributions(
                f"round {state.round + 1}: {len(here)} clients are there, and at least "
                f"{parts.quorum} are needed (sites.quorum, exchange.min_clients): start the "
                "others, then this run again with the same command"
            )
            away = [client for client in among if client not in here]
            return self._not_begun(error, away, "away, and the round passes without its quorum")
        participants = self._participants(here, plan)
        if participants is None:
            error, missing = self._no_list(here)
            return self._not_begun(error, missing, f"missing, and the round passes: {_WITH_IT}")
        if not participants.present:
            return participants, self._passed()
        times = {client: participants.selected[client] for client in participants.present}
        parts.broadcast.send(state, times)
        ongoing = self.round_of(times, state, frozenset(participants.uncounted))
        nobody = replace(participants, uncounted=participants.present)
        try:
            after = self.after(ongoing)
        except TotalRefused as error:
            return nobody, self._without_total(ongoing, error)
        except TooFewContributions as error:
            if isinstance(error, ClientLost):
                self._interruptions.note(state.round + 1, error.clients)
            else:
                self._require_passing(error)
            for client in ongoing.present:
                ongoing.lose(client, PASSED, f"{client}: the round passes: {error}")
            return nobody, self._passed()
        self._suspects.opened(ongoing.present, self._left_out)
        self._interruptions.counted(ongoing.present)
        parts.broadcast.changed(plan.update, after)
        missed = (c for c in participants.present if self.counted_in.get(c) != after.round)
        return replace(participants, uncounted=tuple(missed)), after

    def _begin_lists(self, plan: Plan) -> None:
        """Hold the next round against those of the same model, of the session before, too."""
        sealed = {spec.kind for spec in (*plan.sums, *plan.update)} & set(self.parts.server.sealed)
        self._lists.at(state_digest(self._state) if sealed else "")
        if self._begun and self._lists.model:
            about = self._lists.model, self.round + 1, self.counted_in
            self._lists.take_up(self._begun.lists_at(*about))
            self._begun = None

    def _participants(self, here: Sequence[str], plan: Plan) -> RoundParticipants | None:
        """Return the next round's participants; None where no total of theirs may be opened.

        Raises:
            TooFewContributions: too few are left without those that sit out.
        """
        parts, who, taking = self.parts, self._participation, self._taking_part(here)
        drawn: Sequence[str] | None = taking
        again: dict[str, int] | None = None
        if who.choice is None:
            drawn = self._listed(dict.fromkeys(taking, 1))
        elif known := self._lists.again(taking):
            again = {client: of.times for client, of in known.items()}
        if drawn is None:
            return None
        participants = who.participants(self._state, plan, drawn, again)
        if self._lists.model:
            holders = tuple(parts.cards.holders(self._state, participants.present))
            participants = replace(participants, present=holders)
        if not participants.present:
            return participants
        present = {client: participants.selected[client] for client in participants.present}
        listed = self._listed(present)
        if listed is None:
            return None
        self._left_out = [client for client in present if client not in listed]
        if who.choice is None:
            self._left_out += [client for client in taking if client not in drawn]
        for client in self._left_out:
            why = f"{client}: sits out this round: {_APART}"
            parts.server.report(Incident(self.round + 1, SITS_OUT, client, why))
        return replace(participants, present=tuple(listed))

    def _listed(self, times: Mapping[str, int]) -> list[str] | None:
        """Return those of these clients whose totals may be opened at this model; None of none."""
        present = {c: Terms(n, self.counted_in.get(c, 0)) for c, n in times.items()}
        return next_list(self._lists, self._suspects, present, self.round)

    def missing(self, here: Collection[str]) -> Sequence[str]:
        """Return the clients that the next round waits for: without them no list can be had."""
        if self._participation.choice or self._suspects.suspected:
            return ()
        among = [c for c in self._participation.clients if c not in self._suspects.guilty]
        once = {client: 1 for client in among if client in here}
        return () if self._listed(once) is not None else self._lists.missing(here)

    def _no_list(self, here: Collection[str]) -> tuple[TooFewContributions, Sequence[str]]:
        """Return the error of a round without a list, and who has to come back."""
        missing = self._lists.missing(here)
        whom = ", ".join(missing) or "clients on the terms that they had"
        return TooFewContributions(
            f"round {self.round + 1}: totals at this model were opened, and with those of the "
            f"clients that are there they would show fewer than {self._lists.least}, whoever else "
            f"is left out: it takes {whom:.200}; start them, then this run again with the same "
            "command, or begin anew with another run.seed"
        ), missing

    def _not_begun(
        self, error: TooFewContributions, clients: Sequence[str], why: str
    ) -> tuple[RoundParticipants, State]:
        """Pass a round before it begins, and name the clients; or raise the error."""
        self._require_passing(error)
        for client in clients:
            self.parts.server.report(Incident(self.round + 1, PASSED, client, f"{client}: {why}"))
        return RoundParticipants(self.round + 1, {}, ()), self._passed()

    def _taking_part(self, here: Sequence[str]) -> Sequence[str]:
        """Return the clients of these that the next round is of, and report who sits out.

        Raises:
            TooFewContributions: without those that sit out there are too few, or no list of them
                can be had at this model.
        """
        number, among = self.round + 1, self._suspects.taking_part(here)
        out = self._interruptions.out_of(number, among)
        rest = [client for client in among if client not in out]
        if out and (
            len(rest) < self._interruptions.least or self._listed(dict.fromkeys(rest, 1)) is None
        ):
            error = TooFewContributions(
                f"round {number}: {', '.join(out):.200}: lost time and again between two totals of "
                "a round, and without these clients too few are left (sites.quorum, "
                "exchange.min_clients; at this model, so that no difference shows one): mend that, "
                "then start this run again with the same command"
            )
            self._require_passing(error)
            return among
        for client in out:
            why = self._interruptions.words(client)
            self.parts.server.report(Incident(number, SITS_OUT, client, why))
        return rest

    def after(self, ongoing: ServerRound) -> State:
        """Have a round's clients train, and return the state after their contributions.

        Raises:
            Diverged, TooFewContributions: no client's values can be used.
            OpeningRefused, TotalRefused: the authority does not open a total.
        """
        parts, state = self.parts, ongoing.context.state
        ongoing = self._trained(ongoing)
        totals = ongoing.totals()
        seed = round_generator(parts.training.seed, state.round, 0).initial_seed()
        device = next(self._model.parameters()).device
        with seeded_layers(device, seed):  # one's own algorithm may draw here
            after = parts.algorithm.update(state, totals)
        if not isinstance(after, State):
            raise ConfigError(
                f"the algorithm's update() gave a {type(after).__name__}: it must return a "
                "securefl.types.State"
            )
        if self._lists.model and state_digest(after) == self._lists.model:
            # The next round is at this model, too: its clients have to go on from where this did.
            for client in ongoing.counted:
                parts.server.report(Incident(after.round, PASSED, client, f"{client}: {_STILL}"))
            return after
        parts.engine.counted(ongoing)
        self.counted_in |= dict.fromkeys(ongoing.counted, after.round)
        return after

    def round_of(
        self,
        times: Mapping[str, int],
        state: State,
        uncounted: frozenset[str] = frozenset(),
    ) -> ServerRound:
        """Begin the round after a state, with these clients by how often each counts."""
        server, in_memory = self.parts.server, frozenset[str]()
        plan = self.parts.algorithm.plan(state, self._model)
        if self.parts.engine.in_memory and not server.ledger.tap:
            specs = (*plan.sums, *plan.update)
            in_memory = frozenset(spec.name for spec in specs if spec.kind not in server.sealed)
        since = {client: self.counted_in.get(client, 0) for client in times}
        lineage, number = server.lineage, state.round + 1
        past = lineage.before(number) if lineage else ""
        about = server.run, state, plan, times, since, in_memory, server.job, uncounted, past
        context = RoundContext(*about)
        if lineage:
            lineage.note(Shown(number, context.model or state_digest(state), utc_now()))
        self.ongoing = ServerRound(server, context, self._lists)
        return self.ongoing

    def _trained(self, ongoing: ServerRound) -> ServerRound:
        """Have clients train, again from the round's start where a worker is lost; same seeds.

        No total is opened twice.
        """
        opened: dict[str, OpenedSum | BlindTotal] = {}

        def open_once(request: SumRequest) -> OpenedSum | BlindTotal:
            name = request.expected.name
            if name not in opened:
                opened[name] = self._opened(request)
            return opened[name]

        entries, incidents = self._record.ledger.entries, self._record.incidents
        n_entries, n_incidents = len(entries), len(incidents)
        while True:
            try:
                self.parts.engine.train(ongoing, open_once)
            except WorkerLost:
                # The round is told once: what the lost attempt wrote is written again.
                del entries[n_entries:], incidents[n_incidents:]
                again = ServerRound(self.parts.server, ongoing.context, ongoing.lists)
                ongoing = self.ongoing = again
            else:
                return ongoing

    def _opened(self, request: SumRequest) -> OpenedSum | BlindTotal:
        """Have a total opened, whose clients are noted before: a session that resumes knows them.

        Where one authority refuses it, nobody has read it; officers may have told sums of keys.
        """
        signers, is_new = request.signers, self._lists.note(request.signers)
        self._note_in_flight(request)
        try:
            with self._watch.phase("opening"):
                return self.parts.opener.open(request)
        except (OpeningRefused, MessageRefused):
            if is_new and self._officers.officers == 1:
                self._lists.forget(signers)
                self._note_in_flight(request)
            raise

    def _note_in_flight(self, request: SumRequest) -> None:
        lists, about = self._lists, (request.expected.round, tuple(request.signers))
        now = InFlight(*about, lists.model, lists.as_rows())
        if now != self._noted:
            self.parts.note_in_flight(now)
            self._noted = now

    def _require_passing(self, error: TooFewContributions) -> None:
        """Raise the error unless rounds without enough clients are to pass."""
        if self.config.sites.late == "go-on":
            raise error

    def _passed(self) -> State:
        """Return the state after a round without any contribution: the model stays."""
        self.parts.broadcast.changed((), self._state)
        return replace(self._state, round=self.round + 1)

    def _without_total(self, ongoing: ServerRound, error: TotalRefused) -> State:
        """Pass a round whose total was refused, and search for the client that has spoilt it.

        Raises:
            TotalRefused: too few clients are left to find the one at fault.
        """
        among, known = ongoing.present, set(self._suspects.guilty)
        names = ", ".join(among)
        for client in among:
            ongoing.lose(client, SPOILED, f"{client}: {error}; one of {names} has spoiled it")
        if not self._suspects.refused(among):
            raise TotalRefused(
                f"{error}; one of {names} has spoiled it, and where one is left out the others are "
                "too few, or do so too: revoke whom you do not trust"
            ) from error
        next_ones = dict.fromkeys(self._suspects.taking_part(self._participation.clients), 1)
        if self._listed(next_ones) is None:
            one_of = sorted(self._suspects.guilty - known) or self._suspects.suspected
            least = self._lists.least
            raise TotalRefused(
                f"{error}; one of {', '.join(one_of)} has spoiled it, and totals at this model "
                f"were opened before: without it they would show fewer than {least} clients, "
                "whoever else is left out. Begin anew with another run.seed, without whom you do "
                "not trust"
            ) from error
        why = "left out from now on: totals open without it, and with it are refused"
        found = {name: f"{name}: {why}" for name in sorted(self._suspects.guilty - known)}
        for client, reason in found.items():
            ongoing.lose(client, SPOILED, reason)
        self.parts.engine.leave_out(found)
        return self._passed()

    def _score_after(self, state: State) -> Score:
        """Return the score after a round; one that passes, or without a mean, has that before.

        Raises:
            TooFewContributions: too few clients are left for a mean, and rounds are not to pass.
        """
        if state.tensors is self._state.tensors and (self._scored or self._metrics):
            return self._scored or self._last_score()
        try:
            return self._score(state)
        except OpeningRefused as error:  # clients have left, or spoilt it, or others are here now
            if isinstance(error, TooFewContributions):
                self._require_passing(error)
            return self._last_score()

    def _last_score(self) -> Score:
        """Return the score of the round before; NaN before the first."""
        if not self._metrics:
            return Score(math.nan, math.nan, self.parts.metric)
        last = self._metrics[-1]
        clients = {n: Score(of.score, of.loss, last.metric) for n, of in last.clients.items()}
        return Score(last.score, last.loss, last.metric, clients, last.pooled)

    def _score(self, state: State) -> Score:
        """Score the model after a round; raises Diverged where it is lost."""
        load_tensors(self._model, state)
        score = self.parts.score(self._model, state)
        try:
            check_loss(state.round, score.loss, self.first_loss)
        except Diverged:
            load_tensors(self._model, self._state)
            raise
        return score

    def _keep_last_good(self, folder: RunFolder | None) -> str:
        if folder is None or not self._metrics:
            return ""
        folder.note_model(self._model.state_dict())
        return f". The last good model, of round {self.round}, is {folder.path / MODEL}"

    def _finish(self, folder: RunFolder) -> None:
        folder.note_model(self._model.state_dict())
        self.parts.at_end(folder, self._odometer.history if self._odometer else History())


def _layout(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
    groups: dict[str, NamedTensors] = {str(k): named for k, named in state.tensors.items()}
    groups["private"] = state.private
    return {
        f"{group}/{name}": (value.shape, value.dtype)
        for group, named in groups.items()
        for name, value in named.items()
    }

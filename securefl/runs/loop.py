"""A run's objects, and its rounds one after the other."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from securefl.algorithms.base import copied, lay_over, load_tensors
from securefl.build.algorithm import divergence_advice
from securefl.build.compose import Record, compose
from securefl.build.privacy import warmed_up
from securefl.build.terms import check_reproducible, noise_seed, score_seed
from securefl.config.schema import Config
from securefl.errors import ConfigError, Diverged, RunFolderError
from securefl.evaluation.evaluate import Score
from securefl.evaluation.evaluator import TestBench, check_loss
from securefl.exchange.committee import Committee
from securefl.exchange.keyset import KeySet, OpeningKeys
from securefl.exchange.match_open import MatchKeys
from securefl.federation.authority import Opening
from securefl.federation.identities import Identities
from securefl.federation.incidents import Incident
from securefl.federation.ledger import Ledger
from securefl.metrics import SHARES, accuracy_of, shown, title
from securefl.privacy.history import History
from securefl.privacy.meter import Meter
from securefl.report.pictures import pictures
from securefl.report.protection import protection_page
from securefl.runs.checkpoint import Checkpoint, check_memory
from securefl.runs.folder_reader import MODEL, ClientScore, RoundMetrics, read_run
from securefl.runs.folder_writer import RunFolder
from securefl.selection.round_participants import Turnout
from securefl.simulation.threads import torch_threads
from securefl.task import Task, client_names, configured_task, own_settings, placed
from securefl.types import NamedTensors, Plan, State

MEGABYTE = 1e6
OnRound = Callable[[RoundMetrics], None]
OnStart = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """What a run leaves in memory."""

    config: Config
    model: nn.Module
    metrics: list[RoundMetrics]
    ledger: Ledger
    openings: list[Opening]
    incidents: list[Incident]
    key_id: str
    """Empty where nothing was encrypted."""
    turnouts: list[Turnout]
    """Who took part in each of this session's rounds."""
    history: History
    """What differential privacy was spent on; empty where no noise was added."""
    stopped: str
    """Why the run ended before its last round, in words; empty where it did not."""
    task: Task
    """What was trained, on whose data; its model is the untrained one."""
    own: Mapping[str, NamedTensors]
    """By client, the tensors of the model that it keeps to itself; empty where no client does."""

    @property
    def score(self) -> float:
        """Of the last round, by `metric`; where clients have models of their own, their mean."""
        return self.metrics[-1].score

    @property
    def loss(self) -> float:
        """Of the last round on the test data."""
        return self.metrics[-1].loss

    @property
    def metric(self) -> str:
        """The name of what the score is by."""
        return self.metrics[-1].metric

    @property
    def accuracy(self) -> float:
        """The score, 0..1; raises ConfigError where the metric is no accuracy, such as R²."""
        return accuracy_of(self.metric, self.score)

    @property
    def clients(self) -> Mapping[str, ClientScore]:
        """Of the last round, by client; empty where clients are not scored by themselves."""
        return self.metrics[-1].clients

    @property
    def client_models(self) -> dict[str, nn.Module]:
        """Each client's model, made anew: the global one with what the client keeps laid over it.

        Empty where no client keeps any of it: all have `model`.
        """
        models = {name: copy.deepcopy(self.model) for name in self.own}
        for name, model in models.items():
            lay_over(model, self.own[name])
        return models

    def __repr__(self) -> str:
        if not self.metrics:
            return f"Result({self.config.name}, no rounds)"
        last = self.metrics[-1]
        sent = sum(m.upload_bytes for m in self.metrics) / MEGABYTE
        scored = f"{title(last.metric)} {shown(last.metric, last.score)}, loss {last.loss:.3g}"
        return (
            f"Result({self.config.name}, {len(self.metrics)} rounds, {scored},\n"
            f"  {sent:.1f} MB sent by clients, {len(self.openings)} totals opened, "
            f"{len(self.incidents)} incidents,\n"
            f"  read: .metrics .model .clients .client_models .ledger .openings .incidents)"
        )


class Rounds:
    """A run's objects, and its state between two rounds."""

    def __init__(
        self,
        config: Config,
        task: Task | None,
        keys: OpeningKeys | None,
        match_keys: MatchKeys | None,
        identities: Identities | None = None,
        record: Record | None = None,
    ) -> None:
        """Nothing has happened yet; `record` is a fresh one where None."""
        if not config.exchange.seals_sums:
            keys = None
        elif keys is None:
            keys = _ephemeral(config)
        elif config.exchange.committee:
            raise ConfigError(
                f"exchange.committee = {config.exchange.committee} makes keys of its own, and keys "
                "are given: leave one of them out"
            )
        if task is not None:
            config = own_settings(config, task)
        if keys:
            check_reproducible(noise_seed(config), keys.seed)
        if match_keys:
            check_reproducible(score_seed(config), match_keys.seed)
        task = placed(task or configured_task(config), config.run.device)
        task = warmed_up(config, task)
        self.config, self._task = config, task
        self.key_id = keys.public.key_id if keys else ""
        self._test = TestBench(task, client_names(config, task))
        self._record = record or Record()
        self._metrics: list[RoundMetrics] = []
        self._turnouts: list[Turnout] = []
        composed = compose(config, task, keys, self._record, match_keys, identities)
        self._algorithm, self._training = composed.algorithm, composed.training
        self._local, self._participation = composed.rounds, composed.participation
        self.engine = composed.engine
        """Which one trains the clients, and why."""
        self._meter = Meter(composed.spending) if composed.spending else None
        self._own_algorithm = task.algorithm is not None
        self._qualities = _by_client(config, task)
        self._model = copy.deepcopy(task.model)
        self._state = self._algorithm.init(self._model)

    @property
    def complete(self) -> bool:
        """Whether all rounds are done that there will be."""
        return self._state.round >= self.last_round

    @property
    def last_round(self) -> int:
        """Of all rounds, or of those within the budget of differential privacy."""
        return self._meter.last_round if self._meter else self.config.run.rounds

    @property
    def stopped(self) -> str:
        """Why there will be no more rounds; empty where all are done."""
        return self._meter.stopped(self.round) if self._meter else ""

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._state.round

    @property
    def state(self) -> State:
        """Where the run is at."""
        return self._state

    @property
    def plan(self) -> Plan:
        """What clients will send in the next round."""
        return self._local.plan(self._state)

    def go_back_to(self, checkpoint: Checkpoint | None) -> None:
        """Start from a checkpoint; raises RunFolderError where it does not fit."""
        if checkpoint is None:
            return
        if _layout(checkpoint.state) != _layout(self._state):
            raise RunFolderError(
                "the checkpoint is of another model, or of another algorithm, than this run's: "
                "resume with the model that the run began with, and with its config.json unchanged"
            )
        if not checkpoint.memories.keys() <= self._local.memories.keys():
            raise RunFolderError(
                "the checkpoint is of other clients than this run's: resume with the data that the "
                "run began with, and with its config.json unchanged"
            )
        if not self._own_algorithm:  # what that one keeps, it alone knows
            for client, memory in checkpoint.memories.items():
                check_memory(client, memory, self._model)
        checkpoint = checkpoint.beside(self._state)
        self._state = checkpoint.state
        for client, memory in checkpoint.memories.items():
            self._local.memories[client] = memory
        self._participation.go_on_from(checkpoint.numbers)
        load_tensors(self._model, self._state)

    def follow(self, turnouts: Sequence[Turnout]) -> None:
        """Whoever took part in these rounds of another run takes part in them, too."""
        self._participation.follow(turnouts)

    def take_over(self, metrics: Sequence[RoundMetrics], history: History | None) -> None:
        """What was noted of the rounds before; raises RunFolderError where some is missing."""
        if self._meter:
            self._meter = Meter(self._meter.spending, history, self.round)
        if len(metrics) != self.round or any(m.round != i for i, m in enumerate(metrics, 1)):
            raise RunFolderError(
                f"metrics.jsonl has not one line for each of the {self.round} rounds before: put a "
                "copy of it back if you have one, or start the run anew in another folder"
            )
        self._metrics += metrics

    def close(self) -> None:
        """Let go of processes and threads; `run` does so by itself."""
        self._local.close()

    def run(self, on_round: OnRound | None, folder: RunFolder | None = None) -> Result:
        """All rounds that are left; processes and threads end with them."""
        try:
            return self._run(on_round, folder)
        finally:
            self.close()

    def _run(self, on_round: OnRound | None, folder: RunFolder | None) -> Result:
        self._record.folder = folder
        if folder:
            folder.note_clients(self._qualities, self._participation.devices)
        while not self.complete:
            try:
                metrics = self.step(folder)
            except Diverged as error:
                advice = divergence_advice(self.config, self.round)
                raise Diverged(f"{error}{advice}{self._keep_last_good(folder)}") from error
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
            self._turnouts,
            self._meter.history if self._meter else History(),
            self.stopped,
            self._task,
            self._own_tensors(),
        )

    def _own_tensors(self) -> dict[str, NamedTensors]:
        memories = self._local.memories
        if not any(memory.own for memory in memories.values()):
            return {}
        return {name: copied(memory.own) for name, memory in memories.items()}

    def step(self, folder: RunFolder | None = None) -> RoundMetrics:
        """One round more; raises as `run` does."""
        with torch_threads(self._training.threads):
            return self._step(folder)

    def _step(self, folder: RunFolder | None) -> RoundMetrics:
        started = time.perf_counter()
        record, lr = self._record, self._training.sgd(self._state.round).lr
        if self._meter:
            spent = self._meter.charge(self.round)
            if folder:
                folder.note_history(spent)
        n_entries, n_incidents = len(record.ledger.entries), len(record.incidents)
        try:
            turnout, state = self._next_state()
        finally:  # a round that fails leaves evidence too
            entries = record.ledger.entries[n_entries:]
            incidents = record.incidents[n_incidents:]
            if folder:
                folder.note_messages(entries, incidents)
        score = self._score(state)
        self._state = state
        metrics = RoundMetrics(
            round=self._state.round,
            accuracy=score.value if score.metric in SHARES else None,
            loss=score.loss,
            lr=lr,
            upload_bytes=sum(Ledger(entries).upload_bytes().values()),
            dropped=tuple(sorted({incident.client for incident in incidents})),
            seconds=time.perf_counter() - started,
            simulated_s=turnout.simulated_s,
            energy_wh=turnout.energy_wh,
            epsilon=self._meter.epsilon(self.round) if self._meter else None,
            metric=score.metric,
            score=score.value,
            clients={name: ClientScore(of.value, of.loss) for name, of in score.clients.items()},
        )
        self._metrics.append(metrics)
        self._turnouts.append(turnout)
        if folder:
            numbers = self._participation.numbers()
            checkpoint = Checkpoint(self._state, self._local.memories, numbers)
            noted = turnout if self._participation.recorded else None
            folder.note_round(metrics, checkpoint, noted)
        return metrics

    def _next_state(self) -> tuple[Turnout, State]:
        """A round's clients, and what they make of the state; it stays where nobody is present."""
        state, local = self._state, self._local
        turnout = self._participation.turnout(state, local.plan(state))
        if not turnout.present:
            return turnout, local.passed(state)
        return turnout, local.round(state, {c: turnout.selected[c] for c in turnout.present})

    def _score(self, state: State) -> Score:
        """Of the model after a round; Diverged where it is lost, before its numbers run out."""
        load_tensors(self._model, state)
        score = self._test.score(self._model, state, self._local.memories)
        try:
            check_loss(state.round, score.loss, self._metrics)
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
        if self._meter:
            folder.note_protection(protection_page(self.config, self._meter.history))
        for name, png in pictures(read_run(folder.path)).items():
            folder.note_picture(name, png)


def _ephemeral(config: Config) -> OpeningKeys:
    n_officers, seed = config.exchange.committee, noise_seed(config)
    if n_officers:
        return Committee.ephemeral(n_officers, seed=seed)
    return KeySet.ephemeral(seed=seed)


def _layout(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
    groups: dict[str, NamedTensors] = {str(k): named for k, named in state.tensors.items()}
    groups["private"] = state.private
    return {
        f"{group}/{name}": (value.shape, value.dtype)
        for group, named in groups.items()
        for name, value in named.items()
    }


def _by_client(config: Config, task: Task) -> dict[str, str]:
    """What each client's data are like, where the task says so."""
    if len(task.qualities) not in {0, len(task.clients)}:
        raise ConfigError(
            f"{len(task.qualities)} qualities for {len(task.clients)} clients: name each client's, "
            "or none"
        )
    names = client_names(config, task) if task.qualities else ()
    return dict(zip(names, task.qualities, strict=True))

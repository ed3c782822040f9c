"""All audits of one run, one after the other."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch

from securefl.audit.assessment import outline, sealed_in
from securefl.audit.bounds.canaries import (
    alignment,
    drawn_canaries,
    thinned,
    with_canaries,
    with_room,
)
from securefl.audit.bounds.crafted import can_craft, crafted, with_other_noise
from securefl.audit.bounds.record_bounds import RecordBounds
from securefl.audit.bounds.report_section import bounds_of_records, client_test, epsilon_section
from securefl.audit.encryption import opened as encryption
from securefl.audit.encryption.report_section import encryption_section
from securefl.audit.exposure.evidence import FolderEvidence, leaks_in
from securefl.audit.exposure.report_section import exposure_section
from securefl.audit.findings import Findings, Section
from securefl.audit.fitting_advice import fitting
from securefl.audit.incident_table import incident_table, incidents_in_words, passed_in_words
from securefl.audit.inversion import report_section as inversion
from securefl.audit.inversion.hidden_statistics import Hidden
from securefl.audit.membership.candidates import candidates
from securefl.audit.membership.report_section import membership_section
from securefl.audit.membership.shadows import train_shadows
from securefl.audit.noise_advice import noise_advice
from securefl.audit.provenance import NO_DATA, Auditor, Provenance
from securefl.audit.replay import Replay, in_the_clear, inspect_rounds, replayed
from securefl.audit.retention import RETENTION
from securefl.audit.rules import NOT_MEASURED, Verdict
from securefl.audit.targets import (
    hidden_from_server,
    inversion_target,
    observed,
    opened_round,
    public_rows,
    sent_statistics,
)
from securefl.audit.thresholds import MOST_CANARIES, SAME
from securefl.audit.tracing.report_section import tracing_section
from securefl.build.job import job_of
from securefl.build.own_data import task_at
from securefl.build.own_model import require_allowed
from securefl.build.selection import numbers_of
from securefl.build.training import precision_of
from securefl.data.samples import samples, whole
from securefl.errors import ConfigError, DataError, RunFolderError, SecureFLError
from securefl.evaluation.evaluate import Trained, load_trained, with_trained_tensors
from securefl.federation.message import SCORES
from securefl.losses.kinds import compares_samples, loss_name
from securefl.metrics.by_name import heading, shown, shown_over_all
from securefl.norms.find import batch_norm_layers
from securefl.privacy.history import History
from securefl.report.reading import scores_kept
from securefl.runs.folder_reader import RunRecord, read_run, unopened
from securefl.runs.folder_writer import RunFolder, own_task_needed
from securefl.runs.round_metrics import RoundMetrics
from securefl.runs.task_record import require_same_task
from securefl.settings.axes import Weights
from securefl.settings.clashes import require_global_model
from securefl.settings.tables import Config
from securefl.task import Task, placed, with_metric
from securefl.types import NamedTensors

OnStep = Callable[[str, int, int], None]
"""Callback with the step's name, how much of it is done, and of how much."""


@final
@dataclass(frozen=True, slots=True)
class AuditEffort:
    """Effort of an audit: numbers of rounds, shadow models and canaries, and length of attacks."""

    name: Literal["quick", "full"]
    inspected_rounds: int
    """Rounds that are played again with every byte looked at."""
    shadow_passes: int
    """Shadow models that have not seen a record, of each record."""
    canaries: int
    inversion: inversion.InversionEffort
    workers: int = 2
    """Processes that shadow models are trained in: as many as the smallest machine has cores, or
    one where all of them take less time than a process takes to start."""


QUICK = AuditEffort("quick", 2, 2, 300, inversion.QUICK)
FULL = AuditEffort("full", 10, 12, MOST_CANARIES, inversion.FULL)
TRY_AGAIN = (
    "This section says nothing, good or bad. Give what its sentence names, where it names "
    "something, and audit again; what cannot be measured stands in the assessment as not known."
)
"""Advice of a section that was not measured."""
OF_THE_REPLAY = (
    "Of another run are thus what was looked at byte by byte, what canaries show, and the attacks "
    "'rounds' and 'updates' on membership."
)
"""Sentence on what follows from playing a run again."""


def audit_run(
    folder: Path | str,
    effort: AuditEffort = QUICK,
    *,
    task: Task | None = None,
    seed: int = 0,
    on_step: OnStep | None = None,
    by: Auditor = Auditor(),  # noqa: B008  (it does not change)
) -> Findings:
    """Audit a finished run: what each party saw, what attackers make of it, what is promised.

    The same run, effort and seed give the same findings, but for the time at which they were made,
    and for noise that no seed gives again: that of canary clients (`privacy.noise = "secret"`), and
    of encryption, so that the precision of sums and scores may differ by a bit.

    Args:
        folder: the run's; nothing in it is changed.
        effort: `QUICK` or `FULL`.
        task: the one that the run was started with, where it had its own. Without it logs alone
            are audited of a run whose sites have their own data, and no section on records.
        seed: of all that is drawn.
        on_step: told of progress.
        by: whoever audits, and what they bring: members' certificates, the authority's own log.

    Raises:
        ConfigError: the run had a task of its own and `task` is None, or the other way round, or
            `task` is another than the run's; or it trained no global model; or `effort` is none.
        RunFolderError: no run's folder, an unfinished or a damaged one.

    Examples:
        >>> findings = securefl.audit_run("runs/first", task=task)  # takes minutes
        >>> verdicts = {section.title: section.verdict for section in findings.sections}
        >>> from pathlib import Path
        >>> Path("audit.json").write_bytes(findings.to_json()) > 0
        True
    """
    if not isinstance(effort, AuditEffort):
        raise ConfigError(
            f"effort = {effort!r:.80}: must be QUICK or FULL of securefl.audit.audits, no name"
        )
    recorded = run = read_run(Path(folder))
    own = RunFolder(Path(folder)).has_own_task()
    if task is None and own and not run.config.samples:
        raise ConfigError(
            own_task_needed(
                folder,
                f"securefl.audit_run({str(folder)!r}, task=task), or with securefl audit --task",
            )
        )
    # Wherever it was trained: here, and one's own model where the replayed one will be.
    on_cpu = run.config.run.model_copy(update={"device": "cpu"})
    run = replace(run, config=run.config.model_copy(update={"run": on_cpu}))
    logs_alone = task is None and own
    if logs_alone:
        trained = _without_data(run)
    else:
        trained = load_trained(folder, task and placed(task, "cpu"))
    if task is not None:
        require_same_task(Path(folder), task, run.config, weights=True)
    if not (run.metrics and run.ledger):
        raise RunFolderError(
            f"{folder}: metrics.jsonl or ledger.jsonl says nothing, and without them nobody knows "
            "who saw what: put a copy back, or make the run anew"
        )
    shipped, evidence = not own, FolderEvidence.of(run, by.openings)
    audits = _Audits(
        run,
        trained,
        effort,
        seed,
        on_step or _silent,
        evidence,
        shipped=shipped,
        logs_alone=logs_alone,
    )
    given = None if logs_alone else trained.task
    of = Provenance.of(recorded, given, evidence.all_openings, by, shipped=shipped)
    facts = audits.facts(of) | of.facts()
    sections = tuple(audits.sections())
    return Findings(
        run.config.name,
        effort.name,
        seed,
        facts,
        sections,
        of.as_json(),
        (outline(evidence, of, sections), RETENTION, *incident_table(evidence), *of.tables()),
    )


def _without_data(run: RunRecord) -> Trained:
    """Return a run of sites' own data as their server has it: no data, and the trained model.

    Raises:
        ConfigError: the model is code that the settings name, or none was trained for all.
    """
    config = run.config
    require_allowed(config.model.name, None, f"--model {config.model.name} beside each --site")
    require_global_model(config)
    task = with_metric(task_at(config, {}), config)
    return Trained(config, task, with_trained_tensors(run.path, task.model))


def _scored(last: RoundMetrics) -> str:
    """Return the last round's score in words: over which clients or samples it is."""
    score = shown(last.metric, last.score)
    if not (last.pooled or last.clients):
        return score
    said = f"mean over clients {score}"
    if last.pooled and last.pooling:
        said += f"; {shown_over_all(last.metric, last.pooled)}"
    return said


def _apart(value: torch.Tensor, recorded: torch.Tensor) -> float:
    """Return the largest difference of two tensors, of values beyond 1 relative to them."""
    return float(((value - recorded).abs() / recorded.abs().clamp_min(1)).max())


def _silent(what: str, done: int, total: int) -> None:
    del what, done, total


@dataclass(eq=False)
class _Audits:
    """Audits of one run, with what they share: its model and data, and its replay."""

    run: RunRecord
    trained: Trained
    effort: AuditEffort
    seed: int
    on_step: OnStep
    evidence: FolderEvidence
    _: KW_ONLY
    shipped: bool
    """True where another process can make model and loss anew, unlike those of a notebook."""
    logs_alone: bool = False
    """True where no data were given: zeros stand for them, which say what messages there are."""

    @property
    def config(self) -> Config:
        return self.run.config

    @property
    def task(self) -> Task:
        return self.trained.task

    @cached_property
    def replay(self) -> Replay:
        again = self._of("playing the run again")
        return replayed(self.config, self.task, again, self.run.participants)

    @cached_property
    def history(self) -> History:
        return RunFolder(self.run.path).history() or History()

    def facts(self, of: Provenance) -> dict[str, str]:
        """Return what was audited, and whether it is what was played again."""
        config, n, last = self.config, len(self.task.clients), self.run.metrics[-1]
        own = not self.shipped
        return {
            "Folder": self.run.path.name,
            "Algorithm": f"{self._algorithm()}, solver {config.solver.name}",
            "Model": f"{type(self.task.model).__name__}, its own"
            if own and not config.samples
            else f"{config.model.name}, norm {config.model.norm}",
            "Data": of.with_origin(f"{n} clients, " + self._dealt(own=own)),
            "Rounds": f"{len(self.run.metrics):,}{passed_in_words(self.run)}",
            "Incidents": incidents_in_words(self.evidence),
            heading(last.metric): _scored(last),
            "Encrypted": sealed_in(self.run.ledger),
            "Privacy": config.privacy.level,
            "Played again": self._compared(of),
        }

    def _dealt(self, *, own: bool) -> str:
        if own:
            return "each site's own" if self.config.samples else "its own"
        data = self.config.data
        return f"{data.dataset}, " + (
            "each domain a client" if data.traits.by_domain else data.partition
        )

    def _algorithm(self) -> str:
        own = self.task.algorithm
        return self.config.algorithm.name if own is None else f"{type(own).__name__}, its own"

    def _compared(self, of: Provenance) -> str:
        """Return in words how far the replay is the run."""
        if self.logs_alone:
            return f"not: {NO_DATA}"
        if self.config.privacy.private:
            return "with noise drawn anew: another run of the same settings"
        try:
            again = self.replay.models[-1]
        except SecureFLError as error:
            return f"not possible: {error}"
        away = self._away(again)
        if not self._another_run:
            return f"the final model is within {away:.1e} of the recorded one"
        why = "it was on another machine, by another version, or files were changed"
        if self._drawn_anew:
            why = (
                "clients of separate processes draw anew in each session (run.reproducible = "
                "false), so that nobody can tell whether it would be the same otherwise"
            )
        if of.unproven:
            return (
                f"the final model is {away:.1e} away from the recorded one: {why}; or the files "
                "given to this audit are not the run's, and then all that is said of records is "
                f"of others. {OF_THE_REPLAY}"
            )
        return (
            f"the final model is {away:.1e} away from the recorded one: {why}. {OF_THE_REPLAY} "
            "All else is of the recorded model and files"
        )

    def _away(self, again: NamedTensors) -> float:
        """Return how far the replay's final model is from the recorded one."""
        recorded = self.trained.model.state_dict()
        return max(_apart(value, recorded[name]) for name, value in again.items())

    @property
    def _another_run(self) -> bool:
        """True where the replay is another run of the same settings."""
        if self.config.privacy.private or self._drawn_anew:
            return True
        return self._away(self.replay.models[-1]) > SAME

    @property
    def _drawn_anew(self) -> bool:
        """True where clients drew what the settings do not repeat."""
        return not (self.evidence.in_one_process or self.config.run.reproducible)

    def sections(self) -> Iterator[Section]:
        """Yield the sections in the report's order; one that cannot be measured says why."""
        for key, title, make in (
            ("exposure", "Who saw what", self._exposure),
            ("membership", "Membership inference", self._membership),
            ("epsilon", "Bounds on ε", self._epsilon),
            ("inversion", "Gradient inversion with and without BN statistics", self._inversion),
            ("tracing", "Does a statistic show that a record was there?", self._tracing),
            ("encryption", "Encryption", self._encryption),
        ):
            self.on_step(title, 0, 1)
            try:
                section = make()
                do = fitting(section.do, self.config, self.task, self._noise)
                yield replace(section, do=do)
            except (SecureFLError, RuntimeError) as error:
                # torch's own errors are RuntimeErrors: not every model can be attacked by all.
                yield Section(key, title, Verdict.OPEN, f"{NOT_MEASURED} {error}.", do=TRY_AGAIN)
            self.on_step(title, 1, 1)

    def _exposure(self) -> Section:
        n = self.effort.inspected_rounds
        dtype = precision_of(self.task.model)
        job = job_of(self.config, self.task)
        scores = {spec.name: spec.n_values for spec in job.score_sums}
        scores |= {name: 1 for name in numbers_of(job) if name in SCORES}
        leaks = leaks_in(self.evidence, self.replay.ledger, dtype, scores)
        seen = None if self.logs_alone else inspect_rounds(self.config, self.task, n)
        noisy = self.config.privacy.of_records
        weighed = self.config.algorithm.weights is Weights.SAMPLES
        section = exposure_section(
            self.run.ledger,
            leaks,
            seen,
            noisy=noisy,
            weighed=weighed,
            openings=self.evidence.all_openings,
        )
        kept = scores_kept(self.run)
        return replace(section, notes=(*([kept] if kept else []), *section.notes))

    def _noise(self) -> str:
        """Return the advice to add noise to this run."""
        return noise_advice(
            self.config,
            has_bn=bool(batch_norm_layers(self.trained.model)),
            fewest_records=min(len(samples(data, "a client")) for data in self.task.clients),
        )

    def _require_data(self) -> None:
        """Raise DataError where no data were given."""
        if self.logs_alone:
            raise DataError(
                f"{NO_DATA}. Give each site's file with --site NAME=SITE.toml, in Python "
                "task=securefl.task_of_sites(config, files)"
            )

    def _require_losses_of_one(self) -> None:
        """Raise DataError where no sample has a loss by itself."""
        if compares_samples(self.task.loss):
            raise DataError(
                f"the loss {loss_name(self.task.loss)} compares samples, and this attack goes by "
                "the loss of each alone"
            )

    def _membership(self) -> Section:
        self._require_data()
        self._require_losses_of_one()
        pool = candidates(self.task, np.random.default_rng(self.seed))
        shadows = train_shadows(
            in_the_clear(self.config),
            self.task,
            pool,
            passes=self.effort.shadow_passes,
            seed=self.seed,
            workers=self.effort.workers if self.shipped else 1,
            on_shadow=self._of("training shadow models"),
        )
        models, updates = self.replay.models, self.replay.updates
        seen = observed(self.config, self.trained, models, updates, pool)
        seen = replace(seen, another_run=self._another_run)
        return membership_section(pool, seen, shadows, seed=self.seed)

    def _epsilon(self) -> Section:
        self._require_data()
        clients = None
        if self.config.privacy.of_clients:
            clients = client_test(self.config, len(self.task.clients), self.seed)
        return epsilon_section(self.config, self.history, self._canaries(), clients, self.seed)

    def _canaries(self) -> RecordBounds:
        self._require_losses_of_one()
        task, config = self.task, self.config
        public, trained = public_rows(config, task), config
        canaries = drawn_canaries(public, self.effort.canaries, self.seed)
        if config.privacy.of_records and can_craft(task.model, canaries):
            self.on_step("crafting canary records", 0, 1)
            clip, models = config.privacy.clip, self.replay.models
            canaries = crafted(canaries, public, task.model, task.loss, models, clip)
            trained = with_other_noise(config)
        planted = with_canaries(task, canaries)
        room = with_room(trained, planted)
        again = replayed(room, planted, self._of("training with canary records"))
        scores = alignment(task.model, task.loss, thinned(again.models), canaries)
        return bounds_of_records(scores, canaries, config, self.history)

    def _inversion(self) -> Section:
        self._require_data()
        if self.config.privacy.private:
            raise DataError(
                "what clients send has privacy noise, and this attack is on exact gradients"
            )
        if self.config.train.precision != "model":
            raise DataError(
                f"gradients were made in {self.config.train.precision}, and this attack is on "
                "exact ones"
            )
        attacked = [
            inversion_target(self.config, "the trained model", self.trained.model, self.task)
        ]
        if self.effort.name == "full":
            attacked.append(
                inversion_target(self.config, "the first model", self.task.model, self.task)
            )
        hidden = hidden_from_server(self.run.ledger)
        opened = None
        if hidden is Hidden.UPDATES:
            opened = opened_round(self.config, attacked[0], self.task)
        return inversion.inversion_section(
            attacked, self.seed, self.effort.inversion, hidden, opened
        )

    def _tracing(self) -> Section:
        self._require_data()
        clients = [whole(data, "a client") for data in self.task.clients]
        public, _ = public_rows(self.config, self.task)
        sent = sent_statistics(self.config, self.run.ledger, self.task)
        openings = self.evidence.all_openings
        known = not unopened(openings, self.run.ledger)
        pairs = encryption.differing_by_one(openings) if known else None
        return tracing_section(
            self.trained.model,
            (torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])),
            public,
            replace(sent, pairs=pairs),
            self.seed,
            self.effort.name,
        )

    def _encryption(self) -> Section:
        seen = encryption.EncryptionEvidence(
            self.config,
            self.evidence.all_openings,
            self.run.ledger,
            own=self.evidence.own,
            foreign=[
                f"round {of.row.round}, {of.row.name!r:.100}: {of.why}"
                for of in self.evidence.differences
            ],
            in_one_process=self.evidence.in_one_process,
        )
        return encryption_section(seen, self.seed, self.effort.name)

    def _of(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self.on_step(what, done, total)

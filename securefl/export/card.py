"""Model card of a run: a Markdown page with the front matter that model hubs read."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from securefl.audit.findings import FINDINGS, MAX_BYTES, verdict_said
from securefl.errors import RunFolderError
from securefl.io.files import read_bounded
from securefl.io.json import parsed
from securefl.io.text import printable
from securefl.metrics.by_name import shown, shown_over_all, title
from securefl.privacy.history import History
from securefl.report.census import clients_said
from securefl.report.protection import epsilon_said, opening_said
from securefl.runs.folder_reader import ENVIRONMENT, RoundMetrics, RunRecord, read_run
from securefl.runs.folder_writer import RunFolder
from securefl.runs.session import read_environment
from securefl.runs.task_record import TaskRecord, read_task_record

_VERDICTS = TypeAdapter(dict[str, Any])


def model_card(folder: Path) -> str:
    """Return the card of a finished run's model, as Markdown with YAML in front.

    Sites and data stand there as counts alone, no name of a site among them; of tables the columns
    that the model reads. What is said of
    privacy is what the run's folder shows, and the verdicts of its audit where there is one.

    Raises:
        RunFolderError: no run's folder, one without a complete round, or a damaged one.
    """
    record = read_run(folder)
    if not record.metrics:
        raise RunFolderError(f"{folder}: no round is complete, so there is no model to describe")
    history = RunFolder(folder).history() or History()
    parts = (
        _front(record),
        f"# {printable(record.config.name)}",
        "A neural network that was trained by federated learning, with SecureFL.",
        *_section("Training", _training(record)),
        *_section("Data", _data(record, read_task_record(folder))),
        *_section("Scores", _scores(record)),
        *_section("Privacy", (epsilon_said(record.config, history), opening_said(record.config))),
        *_section("Audit", _audit(folder / FINDINGS)),
        *_section("Limits", _limits(record)),
    )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _front(record: RunRecord) -> str:
    """Return the YAML that hubs read: JSON's strings are YAML's."""
    config, last = record.config, record.metrics[-1]
    name = json.dumps(printable(config.name))
    data = (
        "own data of the sites"
        if config.samples or RunFolder(record.path).has_own_task()
        else config.data.dataset
    )
    return "\n".join([
        "---",
        "library_name: pytorch",
        f"tags: {json.dumps(['federated-learning', 'securefl', config.algorithm.name])}",
        f"metrics: {json.dumps([last.metric])}",
        "model-index:",
        f"- name: {name}",
        "  results:",
        f"  - task: {{type: {json.dumps(str(config.targets))}}}",
        f"    dataset: {{type: federated, name: {json.dumps(data)}}}",
        f"    metrics: [{{type: {json.dumps(last.metric)}, value: {last.compared:.6g}}}]",
        "---",
    ])  # fmt: skip


def _section(heading: str, paragraphs: Sequence[str] | Iterator[str]) -> Iterator[str]:
    yield f"## {heading}"
    yield from paragraphs


def _training(record: RunRecord) -> Iterator[str]:
    config = record.config
    sessions = read_environment(record.path / ENVIRONMENT).sessions
    began = next((s["began"] for s in sessions if "began" in s), "an unknown time")
    versions = {f"{p} {s[p]}" for s in sessions for p in ("securefl", "torch") if p in s}
    rows = {
        "Rounds": f"{len(record.metrics):,} of {config.run.rounds:,}",
        "Batch normalisation": config.algorithm.name,
        "Local solver": config.solver.name,
        "Server": config.server.name,
        "Selection of clients": config.selection.name,
        "Sealed": ", ".join(config.exchange.encrypt) or "nothing",
        "From, to": f"{began}, {record.metrics[-1].at}",
        "Versions": ", ".join(sorted(versions)),
    }
    yield _table(("Setting", "Value"), rows.items())


def _data(record: RunRecord, own: TaskRecord | None) -> Iterator[str]:
    config = record.config
    yield f"{clients_said(record)}, each with data of its own that did not leave it."
    if own is not None:
        sizes = sorted(of.n_samples for of in own.clients.values())
        yield (
            f"{sum(sizes):,} samples to train, {sizes[0]:,} to {sizes[-1]:,} a client; "
            f"{own.test.n_samples:,} to test. A sample is {own.test.x}, a target {own.test.y}."
        )
        yield f"Model: `{own.model.name}`, {own.model.n_parameters:,} parameters."
    elif config.samples is None:
        yield (
            f"Data set: `{config.data.dataset}`, dealt by `{config.data.partition}`. "
            f"Model: `{config.model.name}`, norm `{config.model.norm}`."
        )
    else:
        yield f"Tables, arrays or pictures of the sites' own. Model: `{config.model.name}`."
        yield config.samples.form_said


def _scores(record: RunRecord) -> Iterator[str]:
    rounds: dict[str, RoundMetrics] = {"last": record.metrics[-1]}
    if record.best:
        rounds["best"] = record.best
    rows = []
    for name, of in rounds.items():
        over_all = shown_over_all(of.metric, of.pooled) if of.pooled else "-"
        spread = "-"
        if of.clients:
            scores = [x.score for x in of.clients.values() if not math.isnan(x.score)] or [math.nan]
            spread = " to ".join(shown(of.metric, end(scores)) for end in (min, max))
        rows.append((f"{of.round:,} ({name})", shown(of.metric, of.score), over_all, spread))
    metric = title(record.metrics[-1].metric)
    columns = "Round", metric[:1].upper() + metric[1:], "Over all samples", "By client, from to"
    yield _table(columns, rows)


def _audit(path: Path) -> Iterator[str]:
    if not path.is_file():
        yield "This run was not audited: `securefl audit RUN` attacks it, and says what leaks."
        return
    try:
        found = parsed(_VERDICTS, read_bounded(path, MAX_BYTES), RunFolderError)
        rows = [
            (str(of["title"]), verdict_said(of), str(of["words"]))
            for of in found["chapters"].values()
        ]
    except (OSError, LookupError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{path}: no findings of an audit ({error}); audit it anew") from error
    yield _table(("What", "Verdict", "In words"), rows)


def _limits(record: RunRecord) -> Iterator[str]:
    config = record.config
    yield (
        "Scores are of the test data that the run had; on data from elsewhere expect less, above "
        "all where sensors or patients differ from those that trained. The best round was chosen "
        "by the data that score it."
    )
    if not config.privacy.private:
        yield (
            "Training added no noise: the model itself tells, to some extent, whose records "
            "trained it. Treat it as personal data unless an audit and your own judgement say "
            "otherwise."
        )
    if config.models_at_clients:
        yield (
            "Each client keeps a part of the model. The global model alone has not this part, or "
            "has it from before training."
        )


def _table(columns: Sequence[str], rows: Any) -> str:
    def line(cells: Sequence[str]) -> str:
        safe = (printable(cell).replace("|", "\\|") for cell in cells)
        return f"| {' | '.join(safe)} |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *map(line, rows)])

"""Model card of a run: a Markdown page with the front matter that model hubs read."""

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from securefl.audit.findings import FINDINGS, MAX_BYTES, verdict_said
from securefl.errors import RunFolderError
from securefl.io.files import read_bounded
from securefl.io.json import parsed
from securefl.io.text import in_markdown, printable
from securefl.metrics.by_name import shown, shown_over_all, title
from securefl.privacy.history import History
from securefl.report.census import clients, clients_said
from securefl.report.protection import epsilon_said, opening_said
from securefl.runs.folder_files import ENVIRONMENT
from securefl.runs.folder_reader import RunRecord, read_run
from securefl.runs.folder_writer import RunFolder
from securefl.runs.round_metrics import RoundMetrics
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
    history, own = RunFolder(folder).history() or History(), read_task_record(folder)
    privacy = epsilon_said(record.config, history), opening_said(record.config)
    how = "on data in one place" if _is_pooled(record, own) else "by federated learning"
    parts = (
        _front(record),
        f"# {in_markdown(record.config.name)}",
        f"A neural network that was trained {how}, with SecureFL.",
        *_section("Training", _training(record)),
        *_section("Data", _data(record, own)),
        *_section("Scores", _scores(record)),
        *_section("Privacy", map(in_markdown, privacy)),
        *_section("Audit", _audit(folder / FINDINGS, _names(record, own))),
        *_section("Limits", _limits(record)),
    )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _front(record: RunRecord) -> str:
    """Return the YAML that hubs read: JSON's strings are YAML's."""
    config, last = record.config, record.metrics[-1]
    value = re.sub(r"nan|inf", r".\g<0>", f"{last.compared:#.6g}")  # with a point, a YAML number
    data = (
        "own data of the sites"
        if config.samples or RunFolder(record.path).has_own_task()
        else config.data.dataset
    )
    return "\n".join([
        "---",
        "library_name: pytorch",
        f"tags: {_quoted(['federated-learning', 'securefl', config.algorithm.name])}",
        f"metrics: {_quoted([last.metric])}",
        "model-index:",
        f"- name: {_quoted(printable(config.name))}",
        "  results:",
        f"  - task: {{type: {_quoted(str(config.targets))}}}",
        f"    dataset: {{type: federated, name: {_quoted(data)}}}",
        f"    metrics: [{{type: {_quoted(last.metric)}, value: {value}}}]",
        "---",
    ])  # fmt: skip


_LIVE = re.compile(r"[<>&`()]")


def _quoted(value: str | list[str]) -> str:
    """Return JSON, thus YAML, that is no HTML, link or code where it is read as Markdown."""
    return _LIVE.sub(lambda mark: f"\\u{ord(mark[0]):04x}", json.dumps(value))


def _section(heading: str, paragraphs: Iterable[str]) -> Iterator[str]:
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
        "From, to": f"{began}, {record.metrics[-1].at or 'an unknown time'}",
        "Versions": ", ".join(sorted(versions)),
    }
    yield _table(("Setting", "Value"), rows.items())


def _is_pooled(record: RunRecord, own: TaskRecord | None) -> bool:
    """Return whether one party trained on all data."""
    return record.config.algorithm.joins_data and not (own and own.algorithm)


def _whose_data(record: RunRecord, own: TaskRecord | None) -> str:
    if _is_pooled(record, own):
        return "All data were pooled: one party trained on them."
    said = clients_said(record)
    said = f"{said[:1].upper()}{said[1:]}"
    if RunFolder(record.path).is_over_processes():
        return f"{said}, each with data of its own that did not leave it."
    return f"{said}, simulated: whoever ran it had the data of all."


def _data(record: RunRecord, own: TaskRecord | None) -> Iterator[str]:
    config = record.config
    yield _whose_data(record, own)
    if own is not None:
        sizes = sorted(of.n_samples for of in own.clients.values())
        tested = sum(of.n_samples for of in own.client_tests or (own.test,))
        yield (
            f"{sum(sizes):,} samples to train, {sizes[0]:,} to {sizes[-1]:,} a client; "
            f"{tested:,} to test."
        )
    if config.samples is not None:  # a rehearsal of such sites has a task, too
        yield in_markdown(
            f"Tables, arrays or pictures of the sites' own. Model: {config.model.name}."
        )
        yield in_markdown(config.samples.form_said)
    elif own is not None:
        yield f"A sample is {in_markdown(own.test.x)}, a target {in_markdown(own.test.y)}."
        yield f"Model: {in_markdown(own.model.name)}, {own.model.n_parameters:,} parameters."
    else:
        yield in_markdown(
            f"Data set: {config.data.dataset}, dealt by {config.data.partition}. "
            f"Model: {config.model.name}, norm {config.model.norm}."
        )


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
    columns = "Round", metric[:1].upper() + metric[1:], "Over all", "By client, from to"
    yield _table(columns, rows)


def _names(record: RunRecord, own: TaskRecord | None) -> set[str]:
    """Return all names of clients that the folder has."""
    scored = (name for of in record.metrics for name in of.clients)
    return {
        *clients(record),
        *scored,
        *(record.config.data.names or ()),
        *(own.clients if own else ()),
    }


def _audit(path: Path, names: Collection[str]) -> Iterator[str]:
    """Yield the verdicts, with "a client" for each name of one."""
    if not path.is_file():
        yield "This run was not audited: `securefl audit RUN` attacks it, and says what leaks."
        return
    try:
        longest_first = sorted(map(re.escape, names), key=len, reverse=True)
        unnamed = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first) or '(?!)'})(?!\w)")
        found = parsed(_VERDICTS, read_bounded(path, MAX_BYTES), RunFolderError)
        rows = [
            [
                unnamed.sub("a client", said)
                for said in (str(of["title"]), verdict_said(of), str(of["words"]))
            ]
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
        return f"| {' | '.join(map(in_markdown, cells))} |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *map(line, rows)])

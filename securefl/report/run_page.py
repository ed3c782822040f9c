"""Report of a run, or of several side by side: one HTML file that needs nothing else."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from securefl.federation.incidents import Incident
from securefl.federation.ledger import ANSWERS, AUTHORITY, MEBIBYTE, SERVER, Ledger
from securefl.federation.opening import Opening
from securefl.io.html import PageTable, Picture, rendered
from securefl.metrics.by_name import heading, shown, shown_compared, title, worst_of
from securefl.privacy.history import History
from securefl.report.census import clients, clients_said, rounds_counted, times_selected
from securefl.report.key_tallies import key_tallies
from securefl.report.plots import by_client_figure, epsilon_plot, png, score_plot, traffic_figure
from securefl.report.protection import HEADINGS, epsilon_said, opening_said, protections
from securefl.report.reading import scores_kept, what_the_server_reads
from securefl.report.repeated import commands_of_roles, repeated
from securefl.report.views import Shows, views
from securefl.runs.folder_files import (
    ACCURACY,
    ENVIRONMENT,
    INCIDENTS,
    LEDGER,
    OPENINGS,
    SCORE,
    TRAFFIC,
)
from securefl.runs.folder_reader import RunRecord, read_rows, unopened, untold
from securefl.runs.folder_writer import RunFolder
from securefl.runs.round_metrics import RoundMetrics
from securefl.runs.session import read_environment
from securefl.settings.load import flat

TEMPLATE = "report/run.html.jinja"
TO_AN_OFFICER: dict[Shows, str] = {
    Shows.KEYS: "keys of its own from each client, which open nothing without others' answers",
    Shows.TOTAL: "no value: it answers with a sum of keys",
    Shows.SCORES: "no value: it answers with a sum of keys",
}
"""Content for one of several officers of what tells a single authority more."""


@dataclass(frozen=True, slots=True)
class PageSection:
    """Section of the page."""

    title: str
    words: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[PageTable] = ()


def run_page(record: RunRecord, drawn: Mapping[str, bytes] | None = None) -> str:
    """Return the report of a run with at least one complete round.

    Args:
        record: the run.
        drawn: its pictures by name, of whoever has just drawn them. Those in its folder may be
            anybody's, and are not read.

    Raises:
        RunFolderError: a file of its folder is damaged.
    """
    return rendered(
        TEMPLATE,
        title=record.config.name,
        runs=1,
        in_short=list(_in_short(record)),
        sections=[section for section in _sections(record, drawn or {}) if section is not None],
    )


def comparison_page(records: Mapping[str, RunRecord]) -> str:
    """Return one report of several runs by name, each with at least one complete round."""
    metrics = {name: record.metrics for name, record in records.items()}
    curves = Picture("Score and loss by round", _ends(metrics), score_plot(metrics))
    return rendered(
        TEMPLATE,
        title=", ".join(records),
        runs=len(records),
        in_short=[f"`{name}`: {_short(of)}" for name, of in records.items()],
        sections=[
            PageSection("Results", pictures=[curves], tables=[_results(records)]),
            PageSection("Settings in which they differ", tables=[_differing(records)]),
        ],
    )


def _sections(record: RunRecord, drawn: Mapping[str, bytes]) -> Iterator[PageSection | None]:
    yield _curves(record, drawn)
    if record.unlisted:
        words = f"{record.unlisted[:1].upper()}{record.unlisted[1:]}. Put a copy of {LEDGER} back."
        yield PageSection("Who took part, and could read what", [words])
    else:
        yield _who_took_part(record)
        yield _who_could_read(record)
        yield _traffic(record, drawn)
    yield _keys(record)
    yield _privacy(record)
    yield _time(record)
    yield _settings(record)


def _in_short(record: RunRecord) -> Iterator[str]:
    yield _short(record)
    read = what_the_server_reads(Ledger(list(record.ledger)), record.metrics)
    yield f"Of each client the server could read: {read}."
    if kept := scores_kept(record):
        yield kept
    if record.config.privacy.private:
        yield epsilon_said(record.config, RunFolder(record.path).history() or History())


def _short(record: RunRecord) -> str:
    last, best, rounds = record.metrics[-1], record.best, record.config.run.rounds
    found = f"{heading(last.metric)} {_score(last)} after {last.round:,} of {rounds:,} rounds"
    if best and best.round != last.round:
        found += f"; the best was {shown(best.metric, best.compared)}, in round {best.round:,}"
    of = clients_said(record)
    return f"{found}. {of[:1].upper()}{of[1:]}."


def _score(of: RoundMetrics) -> str:
    return shown_compared(of.metric, of.score, of.pooled)


def _ends(metrics: Mapping[str, Sequence[RoundMetrics]]) -> str:
    """Return in words what curves show: where each ends."""
    return "; ".join(
        f"{name}: {title(rounds[-1].metric)} {_score(rounds[-1])}, loss "
        f"{rounds[-1].loss:.3g} in round {rounds[-1].round:,}"
        for name, rounds in metrics.items()
    )


def _curves(record: RunRecord, drawn: Mapping[str, bytes]) -> PageSection:
    metrics = {record.config.name: record.metrics}
    of_this_run = [drawn[name] for name in (ACCURACY, SCORE) if name in drawn]
    curves = of_this_run[0] if of_this_run else score_plot(metrics)
    pictures = [Picture("Score and loss by round", _ends(metrics), curves)]
    words, last = [], record.metrics[-1]
    scores = {n: of.score for n, of in last.clients.items() if not math.isnan(of.score)}
    if scores:
        worst = worst_of(last.metric, scores)
        said = f"the worst client in the last round is {worst}, {shown(last.metric, scores[worst])}"
        pictures.append(
            Picture(
                "Score by client: median, and from the worst to the best",
                said,
                png(by_client_figure(record.metrics)),
            )
        )
        words.append(f"{said[:1].upper()}{said[1:]}.")
    else:
        words.append(f"There is no curve of the worst client: {_unscored(record)}.")
    return PageSection("Curves", words, pictures)


def _unscored(record: RunRecord) -> str:
    """Return why the last round has no score of any client."""
    config = record.config
    own = config.models_at_clients
    over_processes = RunFolder(record.path).is_over_processes()
    if over_processes and (config.samples or own) and config.sites.scores == "mean":
        return (
            'of sites\' scores the mean alone is known (`sites.scores = "mean"`; with "each" the '
            "server reads every site's, and there is one)"
        )
    if own or record.metrics[-1].clients or (over_processes and config.samples):
        return "the last round has no score of any"
    return (
        "all have one model, which is scored on test data that they share. There is one where each "
        "client has a test of its own: sites' own data, a data set with a client per domain, or "
        "`securefl.Task(client_tests=…)`"
    )


def _who_took_part(record: RunRecord) -> PageSection:
    sent, rounds = Ledger(list(record.ledger)).upload_bytes(), rounds_counted(record)
    drawn = times_selected(record) if record.config.selection.selects else Counter[str]()
    incidents = read_rows(record.path / INCIDENTS, Incident)
    told = Counter(incident.client or incident.name for incident in incidents)
    reason = untold(incidents, record.metrics)
    last, rows = record.metrics[-1], []
    for name in clients(record):
        score = shown(last.metric, last.clients[name].score) if name in last.clients else "-"
        times, mib = f"{drawn[name]:,}" if drawn else "-", sent.get(name, 0) / MEBIBYTE
        of = "-" if reason else f"{told[name]:,}"
        rows.append((name, f"{rounds[name]:,}", times, of, f"{mib:,.2f}", score))
    columns = (
        "Client",
        "Rounds it counted in",
        "Drawn",
        "Incidents",
        "MiB sent",
        heading(last.metric),
    )
    told_of = [at for at, cells in enumerate(zip(*rows, strict=True)) if set(cells) != {"-"}]
    known = [[row[at] for at in told_of] for row in rows]
    table = PageTable("Clients", [columns[at] for at in told_of], known)
    words = [f"Incidents are {reason}. Put a copy of {INCIDENTS} back."] if reason else []
    return PageSection("Who took part", words, tables=[table])


def _who_could_read(record: RunRecord) -> PageSection:
    """Return what each party received; of all clients the first stands for the others."""
    found = views(record.ledger)
    shown_of = [view for view in found if view.party in {SERVER, AUTHORITY}]
    members = [view for view in found if view.party in set(clients(record))]
    n_officers = record.config.exchange.officers
    several = f"each of {n_officers} officers, of whom the authority is one"
    opener, tells = (several, TO_AN_OFFICER) if n_officers > 1 else (AUTHORITY, {})
    parties = [(opener if view.party == AUTHORITY else view.party, view) for view in shown_of]
    rows = []
    for party, view in [*parties, *(("a client", view) for view in members[:1])]:
        by_shows: dict[str, set[str]] = {}
        for field in view.fields:
            what = tells.get(field.shows, field.shows) if party == opener else field.shows
            by_shows.setdefault(what, set()).add(ANSWERS.get(field.name, str(field.kind)))
        rows += [(party, what, ", ".join(sorted(kinds))) for what, kinds in by_shows.items()]
    return PageSection(
        "Who could read what",
        [opening_said(record.config)],
        tables=[PageTable("What a message showed its receiver", ("Party", "It reads", "Of"), rows)],
    )


def _traffic(record: RunRecord, drawn: Mapping[str, bytes]) -> PageSection:
    ledger = Ledger(list(record.ledger))
    sums = ledger.bytes_by_kind()
    sealed = {kind for kind, form in sums if form == "ciphertext"} - ledger.server_reads()
    opened = "Plaintext of a kind that clients seal is of opened totals, on their way back to all."
    rows = [(kind, form, f"{n / MEBIBYTE:,.2f}") for (kind, form), n in sums.items()]
    said = "; ".join(f"{kind}, {form}: {mib} MiB" for kind, form, mib in rows)
    bars = drawn[TRAFFIC] if TRAFFIC in drawn else png(traffic_figure(record.ledger))
    return PageSection(
        "Bytes",
        [opened] if any((kind, "plaintext") in sums for kind in sealed) else [],
        pictures=[Picture("MiB in the whole run, all parties", said, bars)],
        tables=[PageTable("By what was sent, and in which form", ("Kind", "Form", "MiB"), rows)],
    )


def _keys(record: RunRecord) -> PageSection | None:
    openings = read_rows(record.path / OPENINGS, Opening)
    if reason := unopened(openings, record.ledger):
        return PageSection("Keys", [f"What was opened is {reason}. Put a copy of {OPENINGS} back."])
    uses = list(key_tallies(openings))
    if not uses:
        return None
    rows = [(u.key_id, f"{u.epoch}", f"{u.opened:,}", f"{u.refused:,}") for u in uses]
    columns = "Key", "Epoch", "Opened", "Refused"
    return PageSection("Keys", tables=[PageTable("What was asked for under them", columns, rows)])


def _privacy(record: RunRecord) -> PageSection | None:
    config = record.config
    if not config.privacy.private:
        return None
    history = RunFolder(record.path).history() or History()
    table = PageTable("From whom it protects", HEADINGS, [p.cells for p in protections(config)])
    pictures = []
    if any(m.epsilon is not None for m in record.metrics):
        last = record.metrics[-1].epsilon
        said = "ε is not bounded" if last is None else f"ε ends at {last:.3g}"
        pictures.append(Picture("ε by round", said, epsilon_plot(record.metrics)))
    return PageSection("Differential privacy", [epsilon_said(config, history)], pictures, [table])


def _time(record: RunRecord) -> PageSection:
    seconds = [m.seconds for m in record.metrics]
    total, phases = sum(seconds), Counter[str]()
    for metrics in record.metrics:
        phases.update(metrics.phases)
    rows = [(name, f"{s:,.1f}", f"{s / total:.0%}") for name, s in phases.most_common() if total]
    if rows and (rest := total - phases.total()) > 0:
        rows.append(("writing, and the rest", f"{rest:,.1f}", f"{rest / total:.0%}"))
    words = [f"{total:,.1f} s in all; {median(seconds):.3g} s a round, in the middle."]
    sessions = read_environment(record.path / ENVIRONMENT).sessions
    about = [
        (
            str(session.get("began", "unknown")),
            str(session.get("engine", "")),
            ", ".join(f"{p} {session[p]}" for p in ("securefl", "torch") if p in session),
        )
        for session in sessions
    ]
    tables = [PageTable("Seconds by phase", ("Phase", "Seconds", "Share"), rows)] if rows else []
    tables.append(PageTable("Sessions", ("Began, UTC", "Engine", "Versions"), about))
    return PageSection("Time", words, tables=tables)


def _settings(record: RunRecord) -> PageSection:
    roles, rows = commands_of_roles(record), list(flat(record.config.read_tables()))
    every = PageTable("All that count", ("Key", "Value"), rows)
    return PageSection("Settings", [repeated(record)], tables=[*([roles] if roles else []), every])


def _results(records: Mapping[str, RunRecord]) -> PageTable:
    rows = []
    for name, record in records.items():
        last, ledger = record.metrics[-1], Ledger(list(record.ledger))
        sent = ledger.upload_bytes()
        rows.append(
            (
                name,
                f"{title(last.metric)} {_score(last)}",
                f"{_score(record.best)} ({record.best.round:,})" if record.best else "-",
                f"{last.loss:.3g}",
                f"{last.round:,}",
                "-" if record.unlisted else f"{max(sent.values(), default=0) / MEBIBYTE:,.2f}",
                f"{sum(m.seconds for m in record.metrics):,.0f}",
                what_the_server_reads(ledger, record.metrics),
            )
        )
    columns = (
        "Run",
        "Last score",
        "Best (round)",
        "Loss",
        "Rounds",
        "MiB a client sent at most",
        "Seconds",
        "The server could read, of each client",
    )
    return PageTable("Runs", columns, rows)


def _differing(records: Mapping[str, RunRecord]) -> PageTable:
    found = {name: dict(flat(record.config.tables())) for name, record in records.items()}
    keys = dict.fromkeys(key for settings in found.values() for key in settings)
    rows = []
    for key in keys:
        values = [settings.get(key, "-") for settings in found.values()]
        if len(set(values)) > 1:
            rows.append((key, *values))
    return PageTable("By key", ("Key", *found), rows)

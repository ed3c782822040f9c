"""`securefl compare`: several runs in one table, and in one plot, with devices in two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from securefl.errors import RunFolderError
from securefl.io.text import printable
from securefl_cli.as_json import json_option, say_json
from securefl_cli.completion import complete_runs

if TYPE_CHECKING:
    from securefl.federation.ledger import Ledger
    from securefl.runs.round_metrics import RoundMetrics


TARGET = 0.9
MEGABYTE = 1e6


def print_runs(runs: Mapping[str, tuple[Sequence[RoundMetrics], Ledger]]) -> None:
    """Print a table to stdout: one row for each run; its cost where any run has devices."""
    from securefl.metrics.by_name import ACCURACY, heading
    from securefl.metrics.metric import PooledBy
    from securefl.report.census import hours, watt_hours
    from securefl.report.reading import what_the_server_reads
    from securefl.runs.folder_reader import unlisted
    from securefl.runs.round_metrics import best_of

    by = {metrics[-1].metric for metrics, _ in runs.values() if metrics} or {ACCURACY}
    costs = {name: (hours(metrics), watt_hours(metrics)) for name, (metrics, _) in runs.items()}
    simulated = any(sums for cost in costs.values() for sums in cost)
    table = Table(box=None, pad_edge=False)
    table.add_column("Run", overflow="fold")
    score = heading(*by) if len(by) == 1 else "Score"
    of = {m[-1].pooling for m, _ in runs.values() if m} - {None}
    if of:
        score += ", mean\nby samples" if of == {PooledBy.MEAN} else " of\nall samples"
    table.add_column(f"{score},\nbest (round)", justify="right")
    table.add_column(f"Rounds\nto {TARGET:.0%}", justify="right")
    table.add_column("Upload per\nclient, MB", justify="right")
    table.add_column("Time\n(s)", justify="right")
    if simulated:
        table.add_column("Simulated\nhours", justify="right")
        table.add_column("\nWh", justify="right")
    # A width of its own leaves rich only the names to fold, so that all fit 80 columns.
    width = len("of each client") if simulated else len("The server could read,")
    table.add_column("The server could read,\nof each client", overflow="fold", width=width)
    for name, (metrics, ledger) in runs.items():
        uploads = {} if unlisted(ledger.entries, metrics) else ledger.upload_bytes()
        table.add_row(
            Text(printable(name)),
            f"{_last_score(metrics, len(by) > 1)}\n{_best_score(best_of(metrics))}",
            rounds_to(metrics, TARGET),
            f"{max(uploads.values()) / MEGABYTE:.1f}" if len(uploads) > 1 else "-",
            f"{sum(m.seconds for m in metrics):.0f}",
            *(_last(sums) for sums in costs[name] if simulated),
            what_the_server_reads(ledger, metrics),
        )
    Console().print(table)


def _last_score(metrics: Sequence[RoundMetrics], named: bool) -> str:
    from securefl.runs.progress import scored

    return scored(metrics[-1], named=named) if metrics else "-"


def _best_score(best: RoundMetrics | None) -> str:
    from securefl.metrics.by_name import shown

    return f"{shown(best.metric, best.compared)} ({best.round})" if best else "-"


def _last(sums: Sequence[float] | None) -> str:
    return f"{sums[-1]:.3g}" if sums else "-"


def rounds_to(metrics: Sequence[RoundMetrics], target: float) -> str:
    """Return the first round of at least accuracy `target`; a dash where the metric is none."""
    shares = [m for m in metrics if m.accuracy is not None]
    if metrics and not shares:
        return "-"
    return next((str(m.round) for m in shares if (m.accuracy or 0) >= target), "never")


@click.command()
@click.argument(
    "runs",
    nargs=-1,
    required=True,
    metavar="RUN…",
    type=click.Path(path_type=Path),
    shell_complete=complete_runs,
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Draw score and loss, too, into this PNG; the cost beside it, with -cost in its name.",
)
@click.option(
    "--html",
    metavar="FILE.html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="One page, too, in a new file: curves, results, and the settings in which runs differ.",
)
@json_option
def compare(runs: tuple[Path, ...], out: Path | None, html: Path | None, as_json: bool) -> None:
    """Print runs side by side, with --out draw their score and loss, with --html write a page.

    Where all runs simulate devices, a second picture has the score against simulated hours and Wh.

    \b
    Example:
      securefl compare runs/fedavg runs/fedtan
      securefl compare runs/fedavg runs/fedtan --out both.png --html both.html
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.federation.ledger import Ledger
    from securefl.io.files import require_new
    from securefl.report.plots import cost_figure, png, score_plot
    from securefl.runs.folder_reader import read_run
    from securefl.runs.folder_writer import way_on, write_atomically

    if html:
        require_new(html)
    records = {str(path): read_run(path) for path in runs}
    names = _labels([record.config.name for record in records.values()], list(records))
    for path, record in records.items():
        if not record.metrics:
            raise RunFolderError(f"{path}: no round is complete; go on with {way_on(Path(path))}")
    found = {
        name: (record.metrics, Ledger(list(record.ledger)))
        for name, record in zip(names, records.values(), strict=True)
    }
    if as_json:
        say_json([as_row(name, *of) for name, of in found.items()])
    else:
        print_runs(found)
    metrics = {name: record.metrics for name, record in zip(names, records.values(), strict=True)}
    if out:
        write_atomically(out, score_plot(metrics))
        click.echo(f"Plot: {out}", err=as_json)
        if cost := cost_figure(metrics):
            beside = out.with_name(f"{out.stem}-cost{out.suffix}")
            write_atomically(beside, png(cost))
            click.echo(f"Cost: {beside}", err=as_json)
    if html:
        from securefl.report.run_page import comparison_page

        page = comparison_page(dict(zip(names, records.values(), strict=True)))
        write_atomically(html, page.encode())
        click.echo(f"Report: {html}", err=as_json)


def as_row(name: str, metrics: Sequence[RoundMetrics], ledger: Ledger) -> dict[str, Any]:
    """Return what `--json` says of a run: its last and its best round, and what it sent."""
    from securefl.report.reading import what_the_server_reads
    from securefl.runs.folder_reader import unlisted
    from securefl.runs.round_metrics import best_of

    best, sent = best_of(metrics), ledger.upload_bytes()
    return {
        "run": name,
        "metric": metrics[-1].metric,
        "last": metrics[-1],
        "best": best,
        "upload_bytes": None if unlisted(ledger.entries, metrics) else sent,
        "seconds": sum(m.seconds for m in metrics),
        "the_server_could_read": what_the_server_reads(ledger, metrics),
    }


def _labels(names: list[str], paths: list[str]) -> list[str]:
    """Return names where they tell the runs apart, paths where they do not."""
    return names if len(set(names)) == len(names) else paths

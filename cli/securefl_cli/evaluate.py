"""`securefl evaluate` and `leave-one-out`: a model on data of clients that did not train it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from securefl.data.domains import leave_out_choices
from securefl.io.text import printable
from securefl.metrics.by_name import METRICS, SHARES, heading, listed, shown
from securefl.settings.clashes import require_global_model
from securefl.settings.data_set import require_data_set
from securefl.settings.load import load_config
from securefl_cli.as_json import json_option, say_json
from securefl_cli.completion import run_argument
from securefl_cli.own_data import Own, allowed_model_option, sites_option
from securefl_cli.progress import progress_bar

if TYPE_CHECKING:
    from securefl.data.samples import ClientData
    from securefl.evaluation.evaluate import Trained
    from securefl.report.external import LeaveOneOut
    from securefl.runs.round_metrics import RoundMetrics
    from securefl.settings.tables import Config


batch_size_option = click.option(
    "--batch-size",
    default=32,
    show_default=True,
    type=click.IntRange(1, 10**6),
    help="Samples that share one step of the statistics.",
)


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A line of the table."""

    names: Sequence[str]
    """Names, as many as the table has columns of them."""
    n_samples: int
    score: float
    adapted: float | None
    """Score with adapted statistics; None where nothing was adapted."""
    metric: str
    """Name of the metric of both scores."""


def print_scores(name_columns: Sequence[str], rows: Sequence[ScoreRow], tau: float | None) -> None:
    """Print a table to stdout; all rows are by one metric."""
    metric = rows[0].metric
    share = metric in SHARES
    table = Table(box=None, pad_edge=False)
    for column in name_columns:
        table.add_column(column, overflow="fold")
    table.add_column("Samples", justify="right")
    table.add_column(f"{heading(metric)},\nglobal statistics", justify="right")
    if tau is not None:
        table.add_column(f"Adapted,\nτ = {tau:g}", justify="right")
        table.add_column("Points" if share else "Gain", justify="right")
    for row in rows:
        cells = [str(row.n_samples), shown(metric, row.score)]
        if row.adapted is not None:
            gain = row.adapted - row.score
            cells += [shown(metric, row.adapted), f"{100 * gain:+.1f}" if share else f"{gain:+.3f}"]
        table.add_row(*map(Text, [*map(printable, row.names), *cells]))
    Console().print(table)


def note_untrained_statistics(config: Config) -> None:
    """Say on stderr where the global statistics are none that training has made."""
    from securefl.evaluation.evaluate import untrained_statistics

    if note := untrained_statistics(config):
        click.echo(f"Note: {note}", err=True)


@click.command("evaluate")
@run_argument
@click.option(
    "--data",
    "names",
    multiple=True,
    metavar="DATA",
    help="What to evaluate on, see above; may be given several times.  [default: test, or with "
    "--site the sites' test samples]",
)
@click.option(
    "--adapt-bn",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="TAU",
    help="Also with BN statistics re-estimated from the data; the weight of the old ones, 0.9.",
)
@batch_size_option
@click.option(
    "--metric",
    type=click.Choice(list(METRICS)),
    help=f"Instead of the run's: {listed()}.",
)
@sites_option(
    "A site of a run whose sites have their own data, and its file here: its own test samples. "
    "May be given several times."
)
@allowed_model_option
@json_option
def evaluate_run(  # noqa: PLR0913, PLR0917  (click gives each option)
    run_folder: Path,
    names: tuple[str, ...],
    adapt_bn: float | None,
    batch_size: int,
    metric: str | None,
    sites: tuple[str, ...],
    model: str | None,
    as_json: bool,
) -> None:
    """Score a finished run's model, with the global BN statistics and with adapted ones.

    \b
    DATA is one of
      test                       the run's own test data
      test:CORRUPTION:SEVERITY   the same corrupted, severity 1 to 5
      external, external:NAME    clients that the run left out (data.leave_out)
      FILE.npz, .safetensors     arrays x (samples) and y (labels)
      FOLDER                     pictures, a folder for each class

    \b
    Example:
      securefl evaluate runs/first --data test --data test:fog:3 --adapt-bn 0.9
      securefl evaluate runs/first --data external --adapt-bn 0.9
      securefl evaluate runs/first --data hospital-9.npz --adapt-bn 0.9 --batch-size 64
      securefl evaluate runs/first --site north=north/site.toml
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.evaluation.evaluate import load_trained
    from securefl.evaluation.named_data import named_data
    from securefl.runs.folder_reader import read_config

    own = Own(sites, model)
    here = own.task_here(read_config(run_folder)) if sites else None
    trained = load_trained(run_folder, here)
    given = [named_data(name, trained.config, trained.task) for name in names]
    if here:
        tests = dict(zip(here.names, here.client_tests, strict=True))
        given.append({name: tests[name] for name in own.files() if name in tests})
    elif not names:
        given.append(named_data("test", trained.config, trained.task))
    rows = [
        _row(label, trained, data, adapt_bn, batch_size, metric)
        for found in given
        for label, data in found.items()
    ]
    if as_json:
        say_json(rows)
    else:
        print_scores(["Data"], rows, adapt_bn)
    note_untrained_statistics(trained.config)


def _row(
    label: str,
    trained: Trained,
    data: ClientData,
    adapt_bn: float | None,
    batch_size: int,
    metric: str | None,
) -> ScoreRow:
    from securefl.data.samples import samples
    from securefl.evaluation.evaluate import evaluate

    n_samples = len(samples(data, label))  # first, since it names what it refuses
    score = partial(
        evaluate,
        trained.model,
        data,
        batch_size=batch_size,
        loss=trained.task.loss,
        metric=metric or trained.task.metric,
    )
    found = score()
    adapted = None
    if adapt_bn is not None:
        adapted = score(adapt_bn=adapt_bn).value
    return ScoreRow([label], n_samples, found.value, adapted, found.metric)


@click.command("leave-one-out")
@click.argument("config_file", metavar="CONFIG.toml", type=click.Path(path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Any setting.")
@click.option(
    "--adapt-bn",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    metavar="TAU",
    help="The weight of the old BN statistics, where they are re-estimated from test data.",
)
@batch_size_option
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the runs and the report go; what is complete there is not run again.",
)
@json_option
def leave_one_out(
    config_file: Path,
    settings: tuple[str, ...],
    adapt_bn: float,
    batch_size: int,
    out: Path,
    as_json: bool,
) -> None:
    """Train without each domain in turn, and score that domain's clients.

    Domains are the families of data.corruptions, or the folders and hospitals of a data set that
    has them. Where the settings encrypt, each run has a key set of its own, in memory.

    \b
    Example:
      securefl leave-one-out corruptions.toml --adapt-bn 0.9 --out runs/unseen
    """  # noqa: D301  (click wants the backspace itself)
    config = load_config(config_file, settings)
    require_data_set(config)
    require_global_model(config)
    leave_out_choices(config.data)
    from securefl import leave_one_out as report_on
    from securefl.evaluation.evaluate import UntrainedStatistics
    from securefl.evaluation.leave_one_out import JSON_REPORT, MARKDOWN_REPORT

    try:
        with warnings.catch_warnings(action="ignore", category=UntrainedStatistics):  # noted below
            report = report_on(config, out, adapt_bn=adapt_bn, batch_size=batch_size, watch=_watch)
    except KeyboardInterrupt:
        click.echo("\nGo on with the same command.", err=True)
        raise
    if as_json:
        click.echo(report.to_json())
    else:
        _print(report)
    note_untrained_statistics(config)
    click.echo(f"Report: {out / MARKDOWN_REPORT}, {out / JSON_REPORT}", err=as_json)


@contextmanager
def _watch(domain: str, rounds: int, done: int) -> Iterator[Callable[[RoundMetrics], None]]:
    with progress_bar(f"without {domain}", rounds, done) as bar:
        yield bar.on_round


def _print(report: LeaveOneOut) -> None:
    rows = [
        ScoreRow([of.left_out, of.client], of.n_samples, of.score, of.adapted, report.metric)
        for of in report.scores
    ]
    n_samples = sum(score.n_samples for score in report.scores)
    mean = ScoreRow(["mean", ""], n_samples, report.score, report.adapted, report.metric)
    print_scores(["Left out", "External client"], [*rows, mean], report.adapt_bn)

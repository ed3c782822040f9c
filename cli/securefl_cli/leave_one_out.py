"""`securefl leave-one-out`: how well training serves clients that have no part in it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.config.load import load_config
from securefl_cli.progress import progress_bar
from securefl_cli.scores import (
    ScoreRow,
    batch_size_option,
    note_untrained_statistics,
    print_scores,
)

if TYPE_CHECKING:
    from securefl.report.external import LeaveOneOut
    from securefl.runs.folder_reader import RoundMetrics


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
def leave_one_out(
    config_file: Path, settings: tuple[str, ...], adapt_bn: float, batch_size: int, out: Path
) -> None:
    """Train without each domain in turn, and score that domain's clients.

    Domains are the families of data.corruptions, or the folders and hospitals of a data set that
    has them. Where the settings encrypt, each run has a key set of its own, in memory.

    \b
    Example:
      securefl leave-one-out corruptions.toml --adapt-bn 0.9 --out runs/unseen
    """  # noqa: D301  (click wants the backspace itself)
    config = load_config(config_file, settings)
    from securefl import leave_one_out as report_on
    from securefl.evaluation.leave_one_out import JSON_REPORT, MARKDOWN_REPORT
    from securefl.evaluation.named_data import UntrainedStatistics

    try:
        with warnings.catch_warnings(action="ignore", category=UntrainedStatistics):  # noted below
            report = report_on(config, out, adapt_bn=adapt_bn, batch_size=batch_size, watch=_watch)
    except KeyboardInterrupt:
        click.echo("\nGo on with the same command.", err=True)
        raise
    _print(report)
    note_untrained_statistics(config)
    click.echo(f"Report: {out / MARKDOWN_REPORT}, {out / JSON_REPORT}")


def _watch(
    domain: str, rounds: int, done: int
) -> AbstractContextManager[Callable[[RoundMetrics], None]]:
    return progress_bar(f"without {domain}", rounds, done)


def _print(report: LeaveOneOut) -> None:
    rows = [
        ScoreRow([of.left_out, of.client], of.n_samples, of.score, of.adapted, report.metric)
        for of in report.scores
    ]
    n_samples = sum(score.n_samples for score in report.scores)
    mean = ScoreRow(["mean", ""], n_samples, report.score, report.adapted, report.metric)
    print_scores(["Left out", "External client"], [*rows, mean], report.adapt_bn)

"""`securefl report`: a finished run, or one that goes on, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl_cli.completion import run_argument

if TYPE_CHECKING:
    from securefl.runs.folder_reader import RunRecord


def report_of(record: RunRecord) -> Path:
    """Return the report that a run has left in its folder; written now where there is none.

    Raises:
        RunFolderError: as `write_report`.
    """
    from securefl.report.finish import write_report
    from securefl.runs.folder_files import REPORT

    left = record.path / REPORT
    return left if left.is_file() else write_report(record)


@click.command()
@run_argument
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="The page; RUN/report.html where absent.",
)
def report(run_folder: Path, out: Path | None) -> None:
    """Write the report of the run RUN: one HTML file that needs no network.

    Curves, who took part, who could read what, bytes by kind, keys, ε by round, time by phase,
    settings and the command that repeats it. A run writes it at its end. Several runs side
    by side: securefl compare --html.

    \b
    Example:
      securefl report runs/first
      securefl report runs/first --out first.html
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.report.finish import write_report
    from securefl.runs.folder_reader import read_run

    click.echo(f"Report: {write_report(read_run(run_folder), out)}")

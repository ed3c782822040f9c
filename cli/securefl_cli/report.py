"""`securefl report`: a finished run, or one that goes on, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.errors import RunFolderError
from securefl_cli.completion import run_argument

if TYPE_CHECKING:
    from securefl.runs.folder_reader import RunRecord


def write_report(record: RunRecord, out: Path | None = None) -> Path:
    """Write the report of a run, into its folder where `out` is None; returns the file.

    Raises:
        RunFolderError: no round is complete, a file is damaged, or none can be written.
    """
    from securefl.report.run_page import run_page
    from securefl.runs.folder_reader import REPORT
    from securefl.runs.folder_writer import way_on, write_atomically

    if not record.metrics:
        way = way_on(record.path)
        raise RunFolderError(f"{record.path}: no round is complete; go on with {way}")
    path = out or record.path / REPORT
    write_atomically(path, run_page(record).encode())
    return path


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
    settings and the command that repeats it. `securefl run` writes it at its end. Several runs side
    by side: securefl compare --html.

    \b
    Example:
      securefl report runs/first
      securefl report runs/first --out first.html
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.runs.folder_reader import read_run

    click.echo(f"Report: {write_report(read_run(run_folder), out)}")

"""`securefl profiles`: clients that a run selected, their scores, and who could read what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from securefl.errors import RunFolderError
from securefl.io.text import printable
from securefl_cli.as_json import json_option, say_json
from securefl_cli.completion import run_argument

if TYPE_CHECKING:
    from securefl.report.selection import ClientLine, QualityLine
    from securefl.runs.folder_reader import RunRecord


@click.command()
@run_argument
@json_option
def profiles(run_folder: Path, as_json: bool) -> None:
    """Print a run's clients: how often each was selected, and its last divergence and score.

    Then what was selected of each quality of data, where a simulation knows it, and what of the
    profiles each party could read, as the ledger has it.

    \b
    Example:
      securefl run --select fedprof:alpha=10 --clients 20 --out runs/p
      securefl profiles runs/p
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.report.selection import client_lines, quality_lines, who_read_what
    from securefl.runs.folder_reader import read_run

    record = read_run(run_folder)
    _check(record)
    if as_json:
        qualities = quality_lines(record) if record.qualities else []
        say_json({"clients": client_lines(record), "qualities": qualities})
        return
    _print_clients(record, client_lines(record))
    if record.qualities:
        _print_qualities(quality_lines(record))
    if record.unlisted:
        said = [f"Who could read what is {record.unlisted}."]
    else:
        said = who_read_what(record.ledger, record.config.exchange.officers)
    click.echo("\n" + " ".join(map(printable, said)))


def _check(record: RunRecord) -> None:
    if not record.config.selection.selects:
        raise RunFolderError(
            f"{record.path}: this run has all clients in every round, and selects none; make one "
            "that does with `securefl run --select fedprof`"
        )
    if not record.participants:
        raise RunFolderError(
            f"{record.path}: no round is complete; go on with `securefl run --resume {record.path}`"
        )


def _print_clients(record: RunRecord, lines: Sequence[ClientLine]) -> None:
    measured = record.config.selection.measured.capitalize()
    scored = any(line.score is not None for line in lines)
    table = Table(box=None, pad_edge=False)
    table.add_column("Client", overflow="fold")
    if record.qualities:
        table.add_column("Quality", overflow="fold")
    table.add_column("Selected", justify="right")
    if measured:
        table.add_column("Last\nmeasured", justify="right")
        table.add_column(measured, justify="right")
    if scored:
        table.add_column("λ", justify="right")
    for line in lines:
        cells = [line.client]
        cells += [line.quality or "unknown"] if record.qualities else []
        cells += [str(line.times_selected)]
        cells += [_number(line.measured_in, "d"), _number(line.measured, ".4f")] if measured else []
        cells += [_number(line.score, ".3g")] if scored else []
        table.add_row(*map(Text, map(printable, cells)))
    Console().print(table)


def _print_qualities(lines: Sequence[QualityLine]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("Quality", overflow="fold")
    for column in ("Clients", "Share of\nclients", "Share of\nselections"):
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(
            Text(printable(line.quality or "unknown")),
            str(line.n_clients),
            f"{100 * line.client_share:.1f} %",
            f"{100 * line.selected_share:.1f} %",
        )
    click.echo()
    Console().print(table)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)

"""The score with the global BN statistics beside that with adapted ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from securefl.io.text import printable

if TYPE_CHECKING:
    from securefl.config.schema import Config

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
    """As many as the table has columns of names."""
    n_samples: int
    score: float
    adapted: float | None
    """None where nothing was adapted."""
    metric: str
    """What both are by."""


def print_scores(name_columns: Sequence[str], rows: Sequence[ScoreRow], tau: float | None) -> None:
    """Print a table to stdout; all rows are by one metric."""
    from securefl.metrics import SHARES, heading, shown

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
    from securefl.evaluation.named_data import untrained_statistics

    if note := untrained_statistics(config):
        click.echo(f"Note: {note}", err=True)

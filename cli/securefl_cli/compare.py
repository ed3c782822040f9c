"""`securefl compare`: several runs in one table and one plot, with devices in two."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.errors import RunFolderError
from securefl_cli.table import print_runs


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", type=click.Path(path_type=Path))
@click.option(
    "--plot",
    default="compare.png",
    show_default=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Where the picture goes; that of the cost beside it, with -cost in its name.",
)
def compare(runs: tuple[Path, ...], plot: Path) -> None:
    """Print runs side by side, and draw their score and loss.

    Where all runs simulate devices, a second picture has the score against simulated hours and Wh.

    \b
    Example:
      securefl compare runs/fedavg runs/fedtan --plot both.png
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.federation.ledger import Ledger
    from securefl.report.cost import cost_figure
    from securefl.report.drawing import png
    from securefl.report.plots import score_plot
    from securefl.runs.folder_reader import read_run
    from securefl.runs.folder_writer import way_on, write_atomically

    records = {str(path): read_run(path) for path in runs}
    names = _labels([record.config.name for record in records.values()], list(records))
    for path, record in records.items():
        if not record.metrics:
            raise RunFolderError(f"{path}: no round is complete; go on with {way_on(Path(path))}")
    print_runs(
        {
            name: (record.metrics, Ledger(list(record.ledger)))
            for name, record in zip(names, records.values(), strict=True)
        }
    )
    metrics = {name: record.metrics for name, record in zip(names, records.values(), strict=True)}
    write_atomically(plot, score_plot(metrics))
    click.echo(f"Plot: {plot}")
    if cost := cost_figure(metrics):
        beside = plot.with_name(f"{plot.stem}-cost{plot.suffix}")
        write_atomically(beside, png(cost))
        click.echo(f"Cost: {beside}")


def _labels(names: list[str], paths: list[str]) -> list[str]:
    """Names where they tell the runs apart, paths where they do not."""
    return names if len(set(names)) == len(names) else paths

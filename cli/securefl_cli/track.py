"""`securefl track`: a run's rounds in TensorBoard or MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl_cli.completion import run_argument

if TYPE_CHECKING:
    from securefl.trackers.tracker import Tracker


@click.command()
@run_argument
@click.option(
    "--tensorboard",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write event files into DIR, for tensorboard --logdir DIR.",
)
@click.option(
    "--mlflow",
    "uri",
    metavar="URI",
    help="Write a run into MLflow at this address, as http://localhost:5000.",
)
def track(run_folder: Path, folder: Path | None, uri: str | None) -> None:
    """Write the rounds of the run in the folder RUN into a tracker, and each new one until it ends.

    The folder is a simulation's or a server's; nothing of the run waits for the tracker, and the
    server needs no access to it. From Python a tracker is told by the run itself: see
    `securefl.trackers`.

    \b
    Example:
      securefl track runs/first --tensorboard logs/first
      securefl track runs/first --mlflow http://localhost:5000
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.runs.folder_reader import read_config
    from securefl.runs.follow import follow
    from securefl.runs.status import status_of

    config = read_config(run_folder)
    trackers: list[Tracker] = []
    if folder:
        from securefl.trackers.tensorboard import TensorBoard

        trackers.append(TensorBoard(config, folder))
    if uri:
        from securefl.trackers.mlflow import MLflow

        trackers.append(MLflow(config, uri))
    if not trackers:
        raise click.UsageError("give --tensorboard or --mlflow")
    failed, rounds = True, 0
    try:
        for metrics in follow(run_folder):
            for tracker in trackers:
                tracker.on_round(metrics)
            rounds = metrics.round
        failed = status_of(run_folder).state == "stopped"
    finally:
        for tracker in trackers:
            tracker.end(failed=failed)
    stopped = ", where the run has stopped before its end" if failed else ""
    click.echo(f"Rounds written: {rounds}{stopped}")

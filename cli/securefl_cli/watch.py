"""`securefl watch`: a run while it goes on, on a page of this machine and in the terminal."""

import threading
import time
from contextlib import suppress
from pathlib import Path

import click

from securefl_cli.completion import run_argument
from securefl_cli.progress import progress_bar

LOOKS_S = 1.0
"""Seconds between two looks at a folder whose run has not begun."""


@click.command()
@run_argument
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Of the page on 127.0.0.1; any that is free where absent.",
)
@click.option("--once", is_flag=True, help="End with the run; else the page stays until Ctrl-C.")
def watch(run_folder: Path, port: int, once: bool) -> None:
    """Follow the run in the folder RUN: a page on this machine alone, and a bar in the terminal.

    The folder is a simulation's or a server's; where its run has not begun, it waits. Nothing of
    the run waits for it: it looks at the folder once a second, and the page asks nobody but this
    process. A run that has stopped is followed anew by the same command, once it goes on.

    \b
    Example:
      securefl watch runs/first
      securefl watch runs/first --port 8080 --once
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.report.watching import FollowedRun, watching
    from securefl.runs.folder_files import is_finished
    from securefl.runs.follow import follow, has_begun, read_title

    if not has_begun(run_folder):
        click.echo(f"{run_folder}: no run has begun here. Waits for one; Ctrl-C ends.", err=True)
        while not has_begun(run_folder):
            time.sleep(LOOKS_S)
    run = read_title(run_folder)
    watched = FollowedRun(run.name, run.rounds)
    with watching(watched, port) as address:
        click.echo(f"Page: {address}")
        with progress_bar(run.name, run.rounds, private=run.private) as bar:

            def on_phase(name: str) -> None:
                watched.phase = name
                bar.on_phase(name)

            for metrics in follow(run_folder, on_phase=on_phase):
                watched.seen.append(metrics)
                bar.on_round(metrics)
        watched.ended = "the run " + ("is complete" if is_finished(run_folder) else "has stopped")
        click.echo(f"{watched.state(watched.seen)}.")
        if not once:
            click.echo("The page stays until Ctrl-C.")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()

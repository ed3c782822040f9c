"""`securefl status`: standing of a run, read from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.io.text import printable
from securefl_cli.as_json import json_option, say_json
from securefl_cli.completion import complete_runs

if TYPE_CHECKING:
    from securefl.runs.status import RunStatus

_AT_WORK = {
    True: "a process is at work on it",
    False: "no process is at work on it",
    None: "and this system does not tell whether a process is at work on it",
}


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path), shell_complete=complete_runs)
@json_option
def status(run: Path, as_json: bool) -> None:
    """Show how the run in the folder RUN stands: its round, who takes part, and who is missing.

    Reads the folder alone, a server's or a simulation's, and changes nothing: no process is asked.
    Exits with 1 where the run has stopped before its end.

    \b
    Example:
      securefl status runs/first
      securefl status runs/first --json
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.runs.status import status_of

    found = status_of(run)
    if as_json:
        say_json(found)
    else:
        click.echo("\n".join(map(printable, _told(found))))
    if found.state == "stopped":
        raise SystemExit(1)


def _told(found: RunStatus) -> list[str]:
    from securefl.metrics.by_name import OVER_ALL, heading, shown
    from securefl.runs.folder_files import BEST

    over = found.state == "complete"
    lines = [f"{found.name}: {found.state}" + ("" if over else f", {_AT_WORK[found.at_work]}")]
    lines.append(f"Round {found.round} of {found.rounds}")
    if found.ended:
        lines[-1] += f", which ended at {found.ended}"
    pooled = f" {OVER_ALL[found.over_all]}" if found.over_all else ""
    if found.score is not None:
        lines.append(f"{heading(found.metric)}{pooled}: {shown(found.metric, found.score)}")
    if found.best_round is not None and found.best_score is not None:
        best = shown(found.metric, found.best_score)
        lines.append(f"Best round: {found.best_round}, {best} ({BEST})")
    if found.clients is None:
        lines.append("Took part, and was opened: not known, as the ledger lacks the last round")
    else:
        lines.append(f"Took part: {', '.join(found.clients) or 'nobody yet'}")
    if found.missing is None or found.uncounted is None:
        lines.append("Missing, or did not count: not known, as incidents lack the last round")
    for name, why in (found.missing or {}).items():
        lines.append(f"Missing: {name}: {why.removeprefix(f'{name}: ')}")
    for name, why in (found.uncounted or {}).items():
        lines.append(f"Did not count: {name}: {why.removeprefix(f'{name}: ')}")
    if found.passed:
        lines.append(
            f"No contribution counted in {found.passed:,} of {found.round:,} rounds, which left "
            "the model as it was"
        )
    if found.openings and found.openings_to_come is not None:
        who, they = "the authority", "it still opens, it says itself"
        if found.officers > 1:
            who = f"{found.officers_needed} of {found.officers} officers"
            they = "they still open, each says itself"
        lines.append(f"Opened by {who}: {found.openings:,}")
        if found.openings_to_come:
            lines[-1] += (
                f"; the rounds left will ask for about {found.openings_to_come:,}. How many {they} "
                "(--metrics)"
            )
    return lines

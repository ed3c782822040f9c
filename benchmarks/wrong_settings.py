"""Time of a refusal: each wrong setting in a process of its own, from its start to its end.

    python benchmarks/wrong_settings.py > docs/results/wrong_settings.md

The settings are those of tests/refused_settings.py, one for each rule. Processes run one after the
other, after one of each kind that is not counted and leaves byte code for the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
from measure import Machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from refused_settings import WRONG  # type: ignore[import-not-found]

LIBRARY = (
    "import sys; from securefl.settings.data_set import require_run; "
    "from securefl.settings.load import load_config; "
    "require_run(load_config(None, sys.argv[1:]))"
)
ASKED_S = 0.5


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one process."""

    wall_s: float
    cpu_s: float


def cost(command: Sequence[str]) -> Cost:
    """Run a command, and return what it cost."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, used = os.wait4(process.pid, 0)
    return Cost(time.perf_counter() - start, used.ru_utime + used.ru_stime)


def in_python(settings: Iterable[str]) -> list[str]:
    """Return the command of a script that loads settings."""
    return [sys.executable, "-c", LIBRARY, *settings]


def on_the_command_line(settings: Iterable[str]) -> list[str]:
    """Return the command of a run with these settings."""
    options = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "securefl_cli", "run", *options]


WAYS = {"`load_config`": in_python, "`securefl run`": on_the_command_line}


def three(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return the least, the median and the largest."""
    return min(seconds), median(seconds), max(seconds)


def row(name: str, costs: Sequence[Cost]) -> str:
    """Return a row of the table, which ends with how many were above half a second."""
    wall, cpu = [cost.wall_s for cost in costs], [cost.cpu_s for cost in costs]
    late = sum(seconds > ASKED_S for seconds in wall), sum(seconds > ASKED_S for seconds in cpu)
    numbers = [f"{s:.2f}" for s in (*three(wall), *three(cpu))]
    return f"| {' | '.join((name, *numbers, *map(str, late)))} |"


@click.command()
@click.option("--settings", "n", type=int, default=len(WRONG), help="So many of them.")
def main(n: int) -> None:
    """Time refusals, and print a page of Markdown."""
    before = os.getloadavg()[0]
    rows = [row("Python that does nothing", [cost([sys.executable, "-c", ""]) for _ in range(n)])]
    asked = [wrong.settings for wrong in WRONG.values()][:n]
    for name, command in WAYS.items():
        cost(command(asked[0]))
        rows.append(row(name, [cost(command(settings)) for settings in asked]))
    print("# Refusals of wrong settings\n")
    print(
        f"`python benchmarks/wrong_settings.py`: {n} wrong settings, one for each rule, each in a"
    )
    print("process of its own, from its start to its end; half a second is asked for.")
    print(f"{Machine.here()}.")
    print(f"Processes that were ready to run, the mean of the last minute: {before:.1f} before,")
    print(f"{os.getloadavg()[0]:.1f} after; with more than cores, other work ran beside it.\n")
    print("| process | s: least | median | largest | s of CPU: least | median | largest | ", end="")
    print("above 0.5 s | by CPU |")
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()

"""Cost of pages: `securefl watch` beside a run, and the report of a long run in a browser.

    python benchmarks/pages.py

prints the tables of docs/results/pages.md. The runs are processes of the command line, on
scikit-learn's digits. Somebody looks at the page of `watch` all the time: it is asked for new
rounds each second, as the page itself does. Times of the report are those of headless Chromium,
from the navigation to the load event.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import click
from measure import Machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser import CHROMIUM, browser  # type: ignore[import-not-found]

MANY = ("--clients", "100", "--partition", "iid", "--set", "train.batch_size=8")
WATCHED = {
    "MLP, 5 clients": (),
    "MLP, 5 clients, with the bar": (),
    "CNN, 5 clients": ("--model", "cnn"),
    "MLP, 100 clients": MANY,
}
"""Options of the runs that are watched, by their names."""
WITH_BAR = {"MLP, 5 clients, with the bar"}
"""Those whose `watch` has a terminal to draw in."""
LONG = (
    *MANY,
    *("--algorithm", "fedbn"),  # each client is scored by itself, in each round
)
OPENED = 5
"""Number of times that the report is opened."""
LOADED_MS = "performance.getEntriesByType('navigation')[0].loadEventEnd"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one process."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Watched:
    """A run, and whoever followed it."""

    run: Cost
    watch: Cost
    asked: int
    """Requests of the page that were answered."""


def started(*arguments: str, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Start the command line with these arguments."""
    command, known = (
        [sys.executable, "-m", "securefl_cli", *arguments],
        os.environ | {"TERM": "xterm"},
    )
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=known)


@contextmanager
def terminal() -> Iterator[int]:
    """Yield the file of a terminal of 120 columns, in which all that is drawn is read."""
    screen, drawn_in = os.openpty()
    termios.tcsetwinsize(drawn_in, (24, 120))

    def read() -> None:
        with suppress(OSError):  # once nobody draws
            while os.read(screen, 65536):
                pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield drawn_in
    finally:
        os.close(drawn_in)
        reader.join()
        os.close(screen)


def ended(process: subprocess.Popen[str], start: float) -> Cost:
    """Wait for the end of a process that was started then; return what it cost."""
    assert process.stdout
    with process.stdout:
        process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"ended with code {process.returncode}: {process.args!r}")
    return Cost(time.perf_counter() - start, used.ru_utime + used.ru_stime)


def watched(folder: Path, rounds: int, options: Sequence[str], stderr: int) -> Watched:
    """Run so many rounds, and follow them from another process, its page and its `stderr`."""
    begun = time.perf_counter()
    run = started("run", "--rounds", str(rounds), "--out", str(folder), *options)
    watch_begun = time.perf_counter()
    watch = started("watch", str(folder), "--once", stderr=stderr)
    assert watch.stdout
    address = watch.stdout.readline().removeprefix("Page: ").strip()
    with urlopen(address) as page:
        page.read()
    asked = last = 0
    with suppress(OSError):  # the page ends with the run
        while True:
            with urlopen(f"{address}rounds?after={last}") as answer:
                found = json.load(answer)
            asked, last = asked + 1, max([last, *(of["round"] for of in found["rounds"])])
            time.sleep(1.0)
    return Watched(ended(run, begun), ended(watch, watch_begun), asked)


def opened_s(page: Path, profile: Path) -> list[float]:
    """Return the seconds until the page has loaded in a browser, time after time."""
    with browser(profile) as tab:
        times = []
        for _ in range(OPENED):
            tab.open(page, 1280)
            while not (loaded := tab.evaluate(LOADED_MS)):
                time.sleep(0.01)
            times.append(loaded / 1000)
    return times


@click.command()
@click.option("--rounds", default=100, help="Of the runs that are watched.")
@click.option("--long-rounds", default=500, help="Of the run whose report is opened.")
@click.option("--runs", default=len(WATCHED), help="So many of the runs are watched.")
def main(rounds: int, long_rounds: int, runs: int) -> None:
    """Measure, and print the tables."""
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        rows = {}
        for number, (kind, options) in enumerate([*WATCHED.items()][:runs]):
            with terminal() if kind in WITH_BAR else nullcontext(subprocess.DEVNULL) as stderr:
                rows[kind] = watched(folder / f"watched-{number}", rounds, options, stderr)
        begun = time.perf_counter()
        alone = ended(started("watch", str(folder / "watched-0"), "--once"), begun)
        ended(started("run", "--rounds", str(long_rounds), "--out", str(folder / "long"), *LONG), 0)
        begun = time.perf_counter()
        report = ended(started("report", str(folder / "long")), begun)
        page = folder / "long" / "report.html"
        size_mb = page.stat().st_size / 1e6
        times = opened_s(page, folder / "profile") if CHROMIUM else []
    print(f"{Machine.here()}.")
    print(f"Processes that were ready to run, the mean of the last minute: {before:.1f} before,")
    print(f"{os.getloadavg()[0]:.1f} after; with more than cores, other work ran beside it.\n")
    print(f"| {rounds} rounds | run: s | s of CPU | watch: s of CPU | share | page's requests |")
    print("|---|--:|--:|--:|--:|--:|")
    for kind, of in rows.items():
        share = 100 * of.watch.cpu_s / of.run.cpu_s
        numbers = f"{of.run.wall_s:.0f} | {of.run.cpu_s:.1f} | {of.watch.cpu_s:.2f} | {share:.1f} %"
        print(f"| {kind} | {numbers} | {of.asked} |")
    print(f"| a run that is over | | | {alone.cpu_s:.2f} | | |\n")
    print(f"| {long_rounds} rounds of 100 clients | |\n|---|--:|")
    print(f"| size, MB | {size_mb:.2f} |")
    print(f"| `securefl report`, s (of CPU) | {report.wall_s:.1f} ({report.cpu_s:.1f}) |")
    if times:
        shown = f"{min(times):.2f}, {median(times):.2f}, {max(times):.2f}"
        print(f"| to the load event, s: least, median, largest of {OPENED} | {shown} |")


if __name__ == "__main__":
    main()

"""The demo's FedTAN run, in the clear and encrypted in two ways, each audited, as one table.

python docs/audited_demo.py runs/audited docs/results/audit.md --full

Runs and audits lie in the folder, and what is there already is not made again. Of the page only
what stands between its two comments is written anew; the words around are ours.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from audit_table import Audit, markdown, sentences, table, written

import securefl
from securefl.audit.audits import FULL, QUICK, AuditEffort
from securefl.audit.page import html_page
from securefl.runs.folder_files import holds_run, is_finished
from securefl.runs.folder_writer import write_atomically

RUNS = {"plain": "none", "statistics sealed": "statistics", "model sealed": "model"}
"""Columns, by `exchange.encrypt`."""
BEGIN = "<!-- by docs/audited_demo.py -->\n"
ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Took:
    """Time that an audit took, and load beside it."""

    wall_s: float
    cpu_s: float
    """Time of all its processes; half of it is what two idle cores need at least."""
    load: float
    """Processes that wanted a core in the minute before it began."""


def made(folder: Path, encrypt: str, effort: AuditEffort, say: Callable[[str], None]) -> None:
    """Make a run and its audit, or what of them is not there yet."""
    run, report = folder / encrypt, folder / f"{encrypt}-{effort.name}"
    if not holds_run(run):
        say(f"{run}: runs …")
        settings = ["algorithm.name=fedtan", f"exchange.encrypt={encrypt}", f"run.rounds={ROUNDS}"]
        securefl.run(securefl.load_config(None, [*settings, "run.seed=0"]), out=run)
    elif not is_finished(run):
        say(f"{run}: goes on …")
        securefl.resume(run)
    if report.with_suffix(".json").exists():
        return
    say(f"{report}.html: audits …")
    load, begin, began = os.getloadavg()[0], time.perf_counter(), _cpu_s()
    findings = securefl.audit_run(run, effort)
    took = Took(time.perf_counter() - begin, _cpu_s() - began, load)
    html = html_page(findings).encode()
    write_atomically(report.with_suffix(".html"), html)
    write_atomically(report.with_suffix(".took"), json.dumps(asdict(took)).encode())
    write_atomically(report.with_suffix(".json"), findings.to_json(html))


def _cpu_s() -> float:
    """Return the time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def read(folder: Path, effort: str) -> dict[str, Audit]:
    """Return the findings of all three runs, by column."""
    return {
        name: Audit(json.loads((folder / f"{encrypt}-{effort}.json").read_text())["chapters"])
        for name, encrypt in RUNS.items()
    }


def timings(folder: Path) -> str:
    """Return how long each audit that lies in the folder took."""
    lines = []
    for effort in (QUICK, FULL):
        for name, encrypt in RUNS.items():
            path = folder / f"{encrypt}-{effort.name}.took"
            if path.exists():
                took = Took(**json.loads(path.read_text()))
                seconds = f"{took.wall_s:.0f}", f"{took.cpu_s:.0f}"
                lines.append([f"{effort.name}, {name}", *seconds, f"{took.load:.1f}"])
    return markdown(["audit", "seconds", "CPU seconds", "load before it"], lines)


def main() -> None:
    """Make what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of runs and audits")
    parser.add_argument("page", type=Path, help="a Markdown file with the two comments")
    parser.add_argument("--full", action="store_true", help="the full audits; the quick ones else")
    args = parser.parse_args()
    effort = FULL if args.full else QUICK
    for encrypt in RUNS.values():
        made(args.folder, encrypt, effort, lambda text: print(text, file=sys.stderr))  # noqa: T201
    audits = read(args.folder, effort.name)
    content = f"{table(audits)}\n{sentences(audits)}\n{timings(args.folder)}"
    args.page.write_text(written(args.page.read_text(), content, BEGIN))


if __name__ == "__main__":  # shadow models are trained in processes of their own
    main()

"""Findings of the benchmark of engines: tables on the screen, and in a page.

A page is one hand-written part, then a section for each part that was measured. A run of the
benchmark replaces the sections of its own parts and leaves the others as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measure import Machine, show

MEASURED = "<!-- Below this line, a benchmark writes. -->"
TITLE = "How fast clients are simulated"
_SECTION = re.compile(r"^<!-- part: (\S+) -->\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Grid:
    """Table; the first column is text, the others are figures."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table as GitHub shows it."""
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the benchmark, measured."""

    title: str
    grids: Mapping[str, Grid]
    """Tables by caption."""
    results: Sequence[Any]
    """Results as dataclasses, for the JSON."""
    notes: Sequence[str] = ()
    """Notes that a reader must know, skipped ways among them."""
    picture: bytes | None = None
    """Picture as PNG."""

    def show(self) -> None:
        """Print the part on the screen."""
        for caption, grid in self.grids.items():
            show(f"{self.title}: {caption}", grid.columns, grid.rows)
        for note in self.notes:
            print(note)

    def markdown(self, command: str, circumstances: str, picture: str) -> str:
        """Return a section of the page; `picture` is the PNG's file name."""
        blocks = [f"## {self.title}", f"    {command}", circumstances]
        for caption, grid in self.grids.items():
            blocks += [f"{caption}:", grid.markdown()]
        if self.notes:
            blocks.append("\n".join(f"- {note}" for note in self.notes))
        if self.picture:
            blocks.append(f"![{self.title}]({picture})")
        return "\n\n".join(blocks) + "\n"


def circumstances() -> str:
    """Describe the machine, torch's threads, and what else the machine does at this moment."""
    waiting = os.environ.get("OMP_WAIT_POLICY", "not set")
    load = os.getloadavg()[0]
    return (
        f"{Machine.here()}; {torch.get_num_threads()} torch threads, OMP_WAIT_POLICY {waiting}; "
        f"load before the start {load:.1f}."
    )


def write_page(
    path: Path,
    parts: Mapping[str, Part],
    commands: Mapping[str, str],
    before: str,
    title: str = TITLE,
) -> None:
    """Put these parts into the page, and their pictures beside it.

    Args:
        path: of the page; what stands above `MEASURED` in it stays.
        parts: by name, in the order in which a new page has them.
        commands: what made each part.
        before: the circumstances when they were made.
        title: of a new page.
    """
    old = path.read_text() if path.exists() else f"# {title}\n\n"
    introduction, _, measured = old.partition(MEASURED)
    _, *found = _SECTION.split(measured)
    sections = dict(zip(found[::2], found[1::2], strict=True))
    for name, part in parts.items():
        picture = path.with_name(f"{path.stem}-{name}.png")
        if part.picture:
            picture.write_bytes(part.picture)
        sections[name] = part.markdown(commands[name], before, picture.name)
    texts = [f"<!-- part: {name} -->\n{text.strip()}\n" for name, text in sections.items()]
    path.write_text("\n".join([f"{introduction.rstrip()}\n", f"{MEASURED}\n", *texts]))

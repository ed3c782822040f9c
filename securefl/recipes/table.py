"""Measured table of a recipe: beside the printed values, as Markdown and as JSON."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

from securefl.io.text import printable
from securefl.recipes.recipe import Cell, Recipe
from securefl.runs.folder_writer import write_atomically

MARKDOWN, JSON = "table.md", "results.json"


class NoValue(StrEnum):
    """Reason why a run has no value."""

    DIVERGED = "diverged"
    NEVER = "never"
    """Target that was not reached."""


Value = float | NoValue


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """Cell with one value for each seed."""

    cell: Cell
    values: tuple[Value, ...]
    folders: tuple[Path, ...]

    @property
    def numbers(self) -> list[float]:
        """Values of the runs that have one."""
        return [value for value in self.values if not isinstance(value, NoValue)]

    @property
    def mean(self) -> float | None:
        """Mean over the runs that have a value."""
        return statistics.mean(self.numbers) if self.numbers else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation; of two runs at least."""
        return statistics.stdev(self.numbers) if len(self.numbers) > 1 else None

    @property
    def text(self) -> str:
        """Mean ± standard deviation, and how many runs have no value."""
        missing = [value for value in self.values if isinstance(value, NoValue)]
        if self.mean is None:
            return " or ".join(sorted(set(missing)))
        decimals = self.cell.measure.row.decimals
        text = f"{self.mean:.{decimals}f}"
        text += "" if self.std is None else f" ± {self.std:.{decimals}f}"
        counts = [f"{missing.count(why)} of {len(self.values)} {why}" for why in NoValue]
        notes = [count for count, why in zip(counts, NoValue, strict=True) if why in missing]
        return f"{text} ({', '.join(notes)})" if notes else text


@dataclass(frozen=True, slots=True)
class RecipeTable:
    """Recipe and all its measured cells."""

    recipe: Recipe
    seeds: int
    cells: tuple[MeasuredCell, ...]

    def lines(self) -> list[list[str]]:
        """Return each row's name, and for each column the printed and the measured value."""
        found = {(m.cell.row, m.cell.column): m for m in self.cells}
        return [
            [row, *(text for column in self.recipe.columns for text in _pair(found, row, column))]
            for row in self.recipe.rows
        ]

    def markdown(self, command: str) -> str:
        """Return the table as a page of its own, with the command that made it."""
        heads = [f"{column}, {side}" for column in self.recipe.columns for side in SIDES]
        table = [["", *heads], ["---", *["--:"] * len(heads)], *self.lines()]
        measured = "mean ± standard deviation over" if self.seeds > 1 else "of"
        seeds = f"{self.seeds} seeds" if self.seeds > 1 else "one seed"
        return (
            f"# {printable(self.recipe.title)}\n\n{printable(self.recipe.paper)}\n\n"
            f"Measured values are {measured} {seeds}. Made by `{printable(command)}`.\n\n"
            + "".join(f"| {' | '.join(_escaped(line))} |\n" for line in table)
        )

    def write(self, folder: Path, command: str) -> None:
        """Write `table.md` and `results.json` into `folder`.

        Raises:
            RunFolderError: it cannot be written.
        """
        results = {
            "title": self.recipe.title,
            "paper": self.recipe.paper,
            "command": command,
            "securefl": version("securefl"),
            "seeds": self.seeds,
            "cells": [_as_json(measured, folder) for measured in self.cells],
        }
        content = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_atomically(folder / JSON, content.encode())
        write_atomically(folder / MARKDOWN, self.markdown(command).encode())


SIDES = ("paper", "measured")


def _pair(found: dict[tuple[str, str], MeasuredCell], row: str, column: str) -> tuple[str, str]:
    measured = found.get((row, column))
    if measured is None:
        return "", ""
    printed = measured.cell.printed
    return printed.text if printed else "-", measured.text


def _as_json(measured: MeasuredCell, folder: Path) -> dict[str, object]:
    cell = measured.cell
    printed = cell.printed
    return {
        "row": cell.row,
        "column": cell.column,
        "measure": cell.measure.model_dump(mode="json", exclude_none=True),
        "paper": {"mean": printed.mean, "std": printed.std} if printed else None,
        "mean": measured.mean,
        "std": measured.std,
        "values": measured.values,
        "runs": [path.relative_to(folder).as_posix() for path in measured.folders],
    }


def _escaped(line: Sequence[str]) -> Iterable[str]:
    return (printable(text).replace("|", r"\|") for text in line)

"""Widths of a linear model, side by side or one after the other: what `auto` goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine_jobs import ENGINES, MLP, N_CLASSES, model_of, task_of
from engine_page import Grid, Part
from engine_ways import Settings, started
from measure import medians
from turns import in_turns, typical_ratio

TWENTY = replace(MLP, n_clients=20)
WIDTHS = (30, 400, 800, 1600, 3200)


def beside_each_other(one_by_one_s: Sequence[float], side_by_side_s: Sequence[float]) -> list[str]:
    """Return the medians, and how many times as fast side by side is."""
    both = list(one_by_one_s), list(side_by_side_s)
    return [*medians(*both), f"{typical_ratio(*both):.2f}"]


@dataclass(frozen=True, slots=True)
class Width:
    """Rounds of one model."""

    width: int
    n_parameters: int
    one_by_one_s: Sequence[float]
    """Seconds of a round: one reading for each repeat."""
    side_by_side_s: Sequence[float]

    def row(self) -> list[str]:
        """Return the row of the table."""
        figures = beside_each_other(self.one_by_one_s, self.side_by_side_s)
        return [f"784-{self.width}-{N_CLASSES}", f"{self.n_parameters:,}", *figures]


def widths_part(settings: Settings) -> Part:
    """Measure a row for each width."""
    job = settings.sized(TWENTY)
    engines = {name: ENGINES[name] for name in ("sequential", "vectorised")}
    results: list[Width] = []
    for width in WIDTHS[:2] if settings.small else WIDTHS:
        settings.note(f"by width: {width} units, {job}")
        model = model_of(job, width)
        with started(job, replace(task_of(job), model=model), engines) as ways:
            found = in_turns({e: r.step for e, r in ways.rounds.items()}, settings.repeats)
        n_parameters = sum(p.numel() for p in model.parameters())
        results.append(Width(width, n_parameters, found["sequential"], found["vectorised"]))
    columns = ("model", "parameters", "sequential", "vectorised", "times as fast")
    grid = Grid(columns, [result.row() for result in results])
    return Part(f"By width: {job}", {"One round": grid}, results)

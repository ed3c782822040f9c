"""Population of ten times the clients, as many of them in a round: its time must not grow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median

from engine_jobs import MANY, task_of
from engine_memory import ROUNDS, peak_mib_of
from engine_page import Grid, Part
from engine_ways import Settings, rates_part, started
from measure import ms_text
from turns import in_turns, typical_ratio


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of one engine's round."""

    engine: str
    few_s: Sequence[float]
    """Seconds of a round of the small population: one reading for each repeat."""
    many_s: Sequence[float]
    """Seconds with ten times as many clients, as many selected."""
    peak_mib: float
    """Peak memory of a process with the large population, in MiB."""

    def row(self) -> list[str]:
        """Return the row of the table."""
        ratio = typical_ratio(list(self.many_s), list(self.few_s))
        figures = ms_text(median(self.few_s)), ms_text(median(self.many_s)), f"{ratio:.2f}"
        return [self.engine, *figures, f"{self.peak_mib:,.0f} MiB"]


def population_part(settings: Settings) -> Part:
    """Measure the job's rates, and beside them its growth and its memory."""
    part = rates_part(MANY, settings)
    many = settings.sized(MANY)
    few = replace(many, n_clients=many.n_clients // 10, fraction=many.fraction * 10)
    settings.note(f"{few}, against ten times as many")
    with ExitStack() as stack:
        ours = [stack.enter_context(started(job, task_of(job))) for job in (few, many)]
        ways = {(e, i): rounds.step for i in (0, 1) for e, rounds in ours[i].rounds.items()}
        found = in_turns(ways, settings.repeats)
    results = []
    for engine in ours[1].rounds:
        settings.note(f"memory of {engine}")
        peak = peak_mib_of(many, engine)
        results.append(Growth(engine, found[engine, 0], found[engine, 1], peak))
    columns = (
        "engine",
        f"{few.n_clients:,} clients",
        f"{many.n_clients:,} clients",
        "ratio",
        "peak",
    )
    caption = f"A round of {many.n_selected} selected clients"
    grids = {**part.grids, caption: Grid(columns, [r.row() for r in results])}
    note = (
        f"Peak: resident memory of a process of its own with {many.n_clients:,} clients, after "
        f"{ROUNDS} rounds; Python, torch and the data are in it. The aim is at most 2,048 MiB."
    )
    return replace(part, grids=grids, results=[*part.results, *results], notes=[*part.notes, note])

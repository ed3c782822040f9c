"""Cost of sealing in a FedTAN round: rounds in the clear and with sealed statistics, in turns.

All that a sealed round has more counts: packing, encrypting, signing, hashing, adding, opening. So
it can be told of workers too, which seal where no timer looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from engine_jobs import ENGINES, Job, task_of
from engine_page import Grid, Part
from engine_ways import Settings, refusals, started
from measure import ms_text
from turns import in_turns, typical_ratio

WAYS = {name: ENGINES[name] for name in ("auto", "parallel") if name in ENGINES}


@dataclass(frozen=True, slots=True)
class Sealing:
    """Rounds of one engine."""

    engine: str
    clear_s: Sequence[float]
    """Seconds of a round: one reading for each repeat."""
    sealed_s: Sequence[float]

    def share(self) -> float:
        """Return the share of a sealed round, 0..1."""
        return 1 - typical_ratio(list(self.clear_s), list(self.sealed_s))

    def row(self) -> list[str]:
        """Return the row of the table."""
        seconds = (ms_text(median(of)) for of in (self.clear_s, self.sealed_s))
        return [self.engine, *seconds, f"{self.share():.1%}"]


def sealing_part(
    sealed: Job, settings: Settings, engines: Mapping[str, Mapping[str, Any]] = WAYS
) -> Part:
    """Measure a row for each engine."""
    sealed = settings.sized(sealed)
    settings.note(f"sealed and in the clear: {sealed}")
    results, refused = [], dict[str, Mapping[str, str]]()
    for engine, run in engines.items():  # not all: each has large graphs
        ways: dict[str, Callable[[], Any]] = {}
        with ExitStack() as stack:
            for encrypt in ("none", sealed.encrypt):
                job = replace(sealed, encrypt=encrypt)
                ours = stack.enter_context(started(job, task_of(job), {engine: run}))
                for rounds in ours.rounds.values():  # one, or none where the settings refuse it
                    ways[encrypt] = rounds.step
                refused[f"encrypt = {encrypt}"] = ours.refused
            if len(ways) == 2:
                found = in_turns(ways, settings.repeats, sealed.wait)
                results.append(Sealing(engine, found["none"], found[sealed.encrypt]))
    columns = ("engine", "in the clear", f"{sealed.encrypt} sealed", "of it for sealing")
    grid = Grid(columns, [result.row() for result in results])
    title = f"What sealing adds: {sealed.algorithm}: {sealed}"
    return Part(title, {"A round": grid}, results, refusals(refused))

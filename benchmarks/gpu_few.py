"""Rounds of few clients on a GPU: one after the other, and side by side in both layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from unittest import mock

from engine_jobs import Job, task_of
from engine_page import Grid, Part
from engine_ways import Settings
from gpu_jobs import CNN, LENET5, MLP, RESNET20
from measure import ms_text
from turns import in_turns

from securefl.simulation import workspace

JOBS = RESNET20, replace(RESNET20, precision="bfloat16"), CNN, replace(LENET5, fraction=1.0), MLP
FEW = (2, 5)
"""Numbers of clients."""
STEPS = (1, 5)
"""Numbers of local steps."""
SIZES = tuple(product(FEW, STEPS))
"""Clients and local steps of each row."""
WAYS = {
    "one after the other": ("sequential", True),
    "side by side, contiguous": ("vectorised", False),
    "side by side, channels_last": ("vectorised", True),
}
"""Engine of a way, and whether convolutions' weights side by side are in channels_last."""


@dataclass(frozen=True, slots=True)
class FewClients:
    """Rounds of one job."""

    job: str
    seconds: Mapping[str, Sequence[float]]
    """Seconds of a round, by way: one reading for each repeat."""

    def row(self) -> list[str]:
        """Return the row of the table."""
        return [self.job, *(ms_text(median(found)) for found in self.seconds.values())]


def few_part(settings: Settings) -> Part:
    """Measure a row for each job, number of clients and number of steps."""
    results = list[FewClients]()
    for large, (n_clients, n_steps) in product(JOBS, SIZES[:1] if settings.small else SIZES):
        few = replace(large, n_clients=n_clients)
        job = replace(settings.sized(few), local_steps=n_steps)
        results.append(_measured(job, settings))
    grid = Grid(("job", *WAYS), [result.row() for result in results])
    return Part("Rounds of few clients", {"A round": grid}, results)


def _measured(job: Job, settings: Settings) -> FewClients:
    settings.note(f"few clients: {job}")
    task = task_of(job)
    with ExitStack() as stack:
        steps = dict[str, Callable[[], object]]()
        for way, (engine, last) in WAYS.items():
            rounds = job.rounds(task, {"engine": engine})
            stack.callback(rounds.close)
            with mock.patch.object(workspace, "_fill_tensor_cores", return_value=last):
                rounds.step()  # in which the model is laid out
            steps[way] = rounds.step
        return FewClients(str(job), in_turns(steps, settings.repeats, job.wait))

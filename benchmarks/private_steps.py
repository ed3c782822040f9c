"""Cost of DP-SGD beside SGD: one step's gradient of one batch, each way in turn.

Noise and sampling are in it; the optimiser's own step, the same for all, is not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from statistics import median

import torch
from measure import Machine, ms_text, show, write_json
from torch import nn
from torch.nn.functional import cross_entropy
from turns import in_turns

from securefl.algorithms.algorithm import Sgd, Work, trained_parameters
from securefl.algorithms.solvers.sgd import SGD
from securefl.algorithms.solvers.solver import LocalSolver, Start
from securefl.data.samples import samples
from securefl.models.build import build_model
from securefl.privacy.clipping import Clipping
from securefl.privacy.dp_sgd import DpSgd, PrivateStep
from securefl.privacy.randomness import secret
from securefl.types import ClientState

BATCH = 64
JOBS = {
    "mlp, group": ("mlp", "group", (784,)),
    "mlp, batch at rest": ("mlp", "batch", (784,)),
    "cnn, group": ("cnn", "group", (3, 32, 32)),
    "resnet20, group": ("resnet20", "group", (3, 32, 32)),
    "resnet20, batch at rest": ("resnet20", "batch", (3, 32, 32)),
}
PLAIN = "plain"
WAYS: dict[str, LocalSolver] = {
    PLAIN: SGD(),
    **{
        clipping.value: DpSgd(SGD(), PrivateStep(1.0, 1.0, clipping, 0.5, BATCH), secret)
        for clipping in Clipping
    },
}


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one model."""

    job: str
    seconds: Mapping[str, float]
    """Median seconds by way."""


def measured(job: str, repeats: int) -> Steps:
    """Measure all ways in turn, in an order that changes."""
    sessions = {way: _session(job, solver) for way, solver in WAYS.items()}
    found = in_turns(sessions, repeats)
    return Steps(job, {way: median(seconds) for way, seconds in found.items()})


def _session(job: str, solver: LocalSolver) -> Callable[[], None]:
    """Return one client's gradients, of samples of about `BATCH` records."""
    name, norm, shape = JOBS[job]
    rng = torch.Generator().manual_seed(0)
    sizes = {"in_channels": shape[0], "n_features": shape[0], "n_classes": 10}
    model: nn.Module = build_model(name, norm, **sizes).train()
    n = 2 * BATCH
    x, y = torch.randn((n, *shape), generator=rng), torch.randint(10, (n,), generator=rng)
    work = Work(
        model,
        samples((x, y), "the client"),
        repeat((x[:BATCH], y[:BATCH])),
        1,
        cross_entropy,
        Sgd(0.1),
        ClientState(),
        rng,
    )
    parameters = trained_parameters(model)
    origin = {key: p.detach().clone() for key, p in parameters.items()}
    session = solver.begin(Start(work, parameters, origin, {}))
    return lambda: session.gradients(nullcontext)


def main(arguments: Sequence[str] | None = None) -> list[Steps]:
    """Measure and print; raises SystemExit where an argument is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    results = [measured(job, chosen.repeats) for job in chosen.jobs]
    rows = [
        [r.job, ms_text(r.seconds[PLAIN])]
        + [
            f"{ms_text(r.seconds[way])} ({r.seconds[way] / r.seconds[PLAIN]:.2f})"
            for way in WAYS
            if way != PLAIN
        ]
        for r in results
    ]
    columns = ["a step of 64 records", *WAYS]
    show(f"DP-SGD and SGD, {Machine.here()}", columns, rows)
    if chosen.json:
        write_json(chosen.json, results)
    return results


if __name__ == "__main__":
    main()

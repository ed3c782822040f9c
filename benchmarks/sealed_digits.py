"""Distance of sealed training on the digits from the same in the clear, as Markdown.

python benchmarks/sealed_digits.py

The demo's five clients and model, by FedTAN and by FedAvg with group normalisation: 20 steps in
float64, a round each, with inputs of several scales; then the demo's own 200 rounds of five steps,
where two engines in the clear, which round otherwise, are beside the sealed runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from sealed_precision import largest
from torch import Tensor

import securefl
from securefl.task import Task, configured_task

SCALES = 1e-3, 1.0, 60.0
WAYS = {
    "FedTAN": ("algorithm.name=fedtan",),
    "FedAvg + GN": ("algorithm.name=fedavg", "model.norm=group"),
}
PAIRS = ("FedTAN", "statistics"), ("FedTAN", "model"), ("FedAvg + GN", "model")
"""Algorithm and what is sealed; group normalisation has no statistics."""


@dataclass(frozen=True, slots=True)
class Case:
    """One pair of runs."""

    way: str
    encrypt: str
    """Part that is sealed; where it is "none", another engine runs in its place."""
    seed: int
    scale: float = 1.0
    """Scale of the inputs; pixels are 0 to 1."""
    rounds: int = 20
    local_steps: int = 1
    dtype: str = "float64"
    lr: float = 0.5
    """Learning rate of the demo."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Difference of a sealed run from the one in the clear."""

    error: float
    """Largest |Δ| / |w| of any tensor."""
    clear: float
    """Accuracy in the clear."""
    sealed: float
    """Accuracy of the sealed run."""
    n_incidents: int
    """Incidents of the sealed run: a value out of range, and what follows from it."""

    def __str__(self) -> str:
        incidents = f" ({self.n_incidents} incidents)" if self.n_incidents else ""
        return f"{self.error:.1e}".replace("e-0", "e-") + incidents


def measured(case: Case) -> Apart:
    """Return how far the sealed run of a case ends from the one in the clear."""
    clear = _run(case, "none", "vectorised")
    sealed = _run(case, case.encrypt, "sequential" if case.encrypt == "none" else "vectorised")
    states = [dict(run.model.state_dict()) for run in (sealed, clear)]
    return Apart(largest(*states), clear.accuracy, sealed.accuracy, len(sealed.incidents))


def _run(case: Case, encrypt: str, engine: str) -> securefl.Result:
    config = securefl.load_config(
        None,
        [
            *WAYS[case.way],
            f"exchange.encrypt={encrypt}",
            f"run.seed={case.seed}",
            f"run.rounds={case.rounds}",
            f"run.engine={engine}",
            f"algorithm.local_steps={case.local_steps}",
            f"model.dtype={case.dtype}",
            f"train.lr={case.lr}",
        ],
    )
    return securefl.run(config, scaled(configured_task(config), case.scale))


def scaled(task: Task, scale: float) -> Task:
    """Return a task with all inputs times a number."""
    pairs = cast("list[tuple[Tensor, Tensor]]", [*task.clients, task.test])
    *clients, test = ((scale * x, y) for x, y in pairs)
    return replace(task, clients=clients, test=test)


def table(label: str, seeds: Sequence[int], rows: Sequence[Case]) -> Iterator[str]:
    """Yield a row for each case, of all seeds, in Markdown; `label` names a field of a case."""
    errors = " | ".join(f"seed {seed}" for seed in seeds)
    yield f"| | sealed | {label} | {errors} | accuracy: in the clear | sealed |"
    yield "| --- | --- | --- |" + " --: |" * (len(seeds) + 2)
    for row in rows:
        apart = [measured(replace(row, seed=seed)) for seed in seeds]
        cells = " | ".join(map(str, apart))
        clear, sealed = (
            " ".join(f"{100 * accuracy:.1f}" for accuracy in accuracies)
            for accuracies in zip(*((one.clear, one.sealed) for one in apart), strict=True)
        )
        what = row.dtype if label == "dtype" else f"{row.scale:g}"
        yield f"| {row.way} | {row.encrypt} | {what} | {cells} | {clear} | {sealed} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--demo-rounds", type=int, default=200, metavar="N")
    parser.add_argument("--lr", type=float, default=0.5)
    args = parser.parse_args(argv)
    seeds, first = range(args.seeds), Case("", "", 0, lr=args.lr)
    demo = replace(first, rounds=args.demo_rounds, local_steps=5)
    tables = {
        "scale": [
            replace(first, way=way, encrypt=encrypt, scale=scale)
            for way, encrypt in PAIRS
            for scale in SCALES
        ],
        "dtype": [
            replace(demo, way=way, encrypt=encrypt, dtype=dtype)
            for way, encrypt in (*PAIRS[1:], ("FedTAN", "none"), ("FedAvg + GN", "none"))
            for dtype in ("float32", "float64")
        ],
    }
    for label, rows in tables.items():
        sys.stdout.write("\n")
        for line in table(label, seeds, rows):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

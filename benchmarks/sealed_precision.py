"""Distance of encrypted training from the same training in the clear, as Markdown.

    python benchmarks/sealed_precision.py

FedTAN in float64, one local step of a whole batch, five clients. Inputs have any scale, and rounds
have all clients or only small ones. An error is the largest over all tensors of |Δ| / |w|.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click
import torch
from torch import nn

from securefl import Config, Task
from securefl.build.simulation import simulated
from securefl.selection.round_participants import RoundParticipants
from securefl.types import NamedTensors, State

SCALES = 1e-3, 1.0, 60.0, 200.0
WEIGHTS = 1.0, 1e-2, 1e-4
N_SMALL, N_SAMPLES = 4, 8


@dataclass(frozen=True, slots=True)
class Case:
    """One pair of runs."""

    scale: float
    """Scale of the inputs."""
    weight: float
    """Share of all samples that the clients of each round have."""
    encrypt: str
    width: int
    """Width of the hidden layer: 12 make 232 parameters, 60 make 1,144 and 300 5,704."""
    rounds: int = 20


def task_of(case: Case) -> Task:
    """Return four clients of a few samples; a large one beside them if they are to weigh little."""
    rng = torch.Generator().manual_seed(1)
    counts = [N_SAMPLES + i for i in range(N_SMALL)]
    n_absent = round(sum(counts) * (1 / case.weight - 1))
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(
            nn.Linear(12, case.width),
            nn.BatchNorm1d(case.width),
            nn.ReLU(),
            nn.Linear(case.width, 4),
        ).double()
    *clients, test = (_samples(n, case.scale, rng) for n in (*counts, 32))
    if n_absent:
        clients.append((torch.zeros(1, 12).double().expand(n_absent, 12), _labels(n_absent, rng)))
    return Task(model, clients, test)


def _samples(n: int, scale: float, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = scale * (torch.randn(n, 12, generator=rng, dtype=torch.float64) + 0.5)
    return x, _labels(n, rng)


def _labels(n: int, rng: torch.Generator) -> torch.Tensor:
    return torch.randint(4, (n,), generator=rng)


def state_after(case: Case, encrypt: str) -> State:
    """Return the state where the small clients' rounds end; the large one is never present."""
    settings = {
        "run": {"rounds": case.rounds, "engine": "sequential"},
        "algorithm": {"name": "fedtan", "local_steps": 1},
        "train": {"batch_size": 2 * N_SAMPLES, "lr": 0.05},
        "exchange": {"encrypt": encrypt},
    }
    rounds = simulated(Config.model_validate(settings), task_of(case), None, None)
    small = {f"client-{i}": 1 for i in range(1, N_SMALL + 1)}
    rounds.follow([RoundParticipants(n, small, tuple(small)) for n in range(1, case.rounds + 1)])
    while not rounds.complete:
        rounds.step()
    rounds.close()
    return rounds.state


def largest(sealed: NamedTensors, clear: NamedTensors) -> float:
    """Return the largest |Δ| / |w| of any tensor; counters are left out."""
    return max(
        float((sealed[name] - value).norm() / value.norm())
        for name, value in clear.items()
        if value.is_floating_point()
    )


def measured(case: Case) -> float:
    """Return how far the encrypted run of a case ends from the one in the clear."""
    sealed, clear = (state_after(case, encrypt).tensors for encrypt in (case.encrypt, "none"))
    return max(largest(sealed[kind], named) for kind, named in clear.items())


def table(encrypt: str, width: int) -> Iterator[str]:
    """Yield a row for each scale, in Markdown."""
    yield "| inputs of scale | " + " | ".join(f"weight {w:g}" for w in WEIGHTS) + " |"
    yield "| --- " + "| --: " * len(WEIGHTS) + "|"
    for scale in SCALES:
        cases = (Case(scale, weight, encrypt, width) for weight in WEIGHTS)
        cells = " | ".join(f"{measured(case):.1e}".replace("e-0", "e-") for case in cases)
        yield f"| {scale:g} | {cells} |"


@click.command(help=__doc__)
def main() -> None:
    """Print all tables."""
    for encrypt, width in (("statistics", 12), ("model", 12), ("model", 60), ("model", 300)):
        click.echo(f"\nencrypt = {encrypt}, {width} hidden units\n")
        for line in table(encrypt, width):
            click.echo(line)


if __name__ == "__main__":
    main()

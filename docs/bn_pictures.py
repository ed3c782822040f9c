"""Pictures of batch normalisation where clients hold different classes, and their numbers.

    python docs/bn_pictures.py docs/explanations

Scikit-learn's digits, five clients (ten of one class each), the first weights of the demo's MLP:
nothing is trained. A batch is all that a client has.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from securefl.build.job import job_of
from securefl.report.plots import BLUE, COLOURS, GREEN, GREY, VERMILLION, bare, png
from securefl.settings.load import load_config

SEEDS = range(5)
PARTITIONS = {"all classes": "iid", "five": "classes:5", "two": "classes:2", "one": "classes:1"}
Batches = list[tuple[Tensor, Tensor]]


def first_weights(partition: str, seed: int) -> tuple[nn.Module, Batches]:
    """Return the model before training and all samples of each client."""
    n_clients = 10 if partition == "classes:1" else 5
    settings = (f"data.partition={partition}", f"data.clients={n_clients}", f"run.seed={seed}")
    task = job_of(load_config(settings=settings), None).task
    return task.model, [(x, y) for x, y in task.clients]


def statistics(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance, each of shape (channels,), of what enters the BN layer."""
    before = model[0](x)
    return before.mean(dim=0), before.var(dim=0, unbiased=False)


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the mean loss over a batch, which BN normalises, as one vector."""
    model.train()
    found = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
    return torch.cat([part.flatten() for part in found])


def agreement(partition: str, seed: int) -> float:
    """Return the cosine of FedAvg's first step and that of all clients' samples as one batch."""
    model, batches = first_weights(partition, seed)
    n = [len(y) for _, y in batches]
    each = torch.stack([gradient(model, x, y) for x, y in batches])
    averaged = (each * torch.tensor(n)[:, None]).sum(dim=0) / sum(n)
    pooled = gradient(model, *map(torch.cat, zip(*batches, strict=True)))
    return float(cosine_similarity(averaged, pooled, dim=0))


@torch.no_grad()
def statistics_figure() -> Figure:
    """Draw each client's batch statistics beside those of all clients, two classes a client."""
    model, batches = first_weights("classes:2", 0)
    own = [statistics(model, x) for x, _ in batches]
    mean, variance = statistics(model, torch.cat([x for x, _ in batches]))
    order, channels = mean.argsort(), range(len(mean))
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, (of_client, _) in enumerate(own):
        label = "each client's" if not i else None
        left.plot(channels, of_client[order], "o", ms=3, color=COLOURS[5], label=label)
    left.plot(channels, mean[order], "_", ms=9, mew=2, color=VERMILLION, label="all clients'")
    left.set(title="Mean of a batch", xlabel="channel, in order of its mean", ylabel="mean")
    averaged = torch.stack([of_client for _, of_client in own]).mean(dim=0)
    order = variance.argsort()
    right.plot(channels, averaged[order], "o", ms=3, color=BLUE, label="mean of the clients'")
    right.plot(channels, variance[order], "_", ms=9, mew=2, color=VERMILLION, label="all clients'")
    right.set(title="Variance of a batch", xlabel="channel, in order of its variance")
    right.set(ylabel="variance", ylim=(0, None))
    for axes in (left, right):
        axes.legend(frameon=False)
        bare(axes)
    missing = float((1 - averaged / variance).mean())
    sys.stdout.write(f"averaged variances lack {missing:.0%} of that of all clients\n")
    return figure


def agreement_figure() -> Figure:
    """Draw by how much FedAvg's first step points elsewhere than a step on all samples."""
    figure = Figure(figsize=(5.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for place, (name, partition) in enumerate(PARTITIONS.items()):
        found = [agreement(partition, seed) for seed in SEEDS]
        axes.plot([place] * len(found), found, "o", ms=4, color=GREY)
        axes.plot(place, np.mean(found), "_", ms=26, mew=2.5, color=GREEN)
        sys.stdout.write(f"{name}: cosine {np.mean(found):.2f} ± {np.std(found, ddof=1):.2f}\n")
    axes.set_xticks(range(len(PARTITIONS)), list(PARTITIONS))
    axes.set(xlabel="classes at a client", ylabel="cosine of the two steps", ylim=(0, 1.05))
    bare(axes)
    return figure


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "bn-statistics.png").write_bytes(png(statistics_figure()))
    (folder / "bn-steps.png").write_bytes(png(agreement_figure()))

"""Crafted canaries: records whose gradients no others hide, for runs that clip each record's.

Maddock, Sablayrolles, Stock, CANIFE: Crafting Canaries for Empirical Privacy Measurement in
Federated Learning, ICLR 2023 (arXiv 2210.02912). A canary's inputs are optimised so that its
gradient is orthogonal to those of other records and at least as long as the clip norm:

    mean over others <u, v>² + max(0, 1 - |g| / C)²,    u = g / |g|, v likewise.

There one canary is made for each round, against that round's model. One run has its canaries from
its beginning to its end, so they are made for three models of a run at once, and orthogonal to each
other as well; their labels stay at random. Coins are flipped apart from all that, and the run with
canaries has noise of its own: so bounds hold as they do of drawn canaries.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from securefl.algorithms.algorithm import Loss
from securefl.audit.bounds.canaries import Canaries, sample_gradients
from securefl.data.samples import ClientData, whole
from securefl.settings.tables import Config
from securefl.types import NamedTensors

STEPS, RATE = 25, 0.5
"""Steps of Adam, and its rate in units of the inputs' standard deviation."""
TOGETHER = 64
"""Canaries that are made at once, and as many records of nobody's beside them."""
MOST_VALUES = 30_000_000
"""Values of one group's gradients, beyond which crafting takes too much memory."""
MARGIN = 1.2
"""Length that gradients are to have at least, in clip norms: training shortens them."""


def can_craft(model: nn.Module, canaries: Canaries) -> bool:
    """Return whether inputs are real numbers, and gradients fit into memory."""
    size = sum(value.numel() for value in model.parameters())
    return canaries.x.is_floating_point() and TOGETHER * size <= MOST_VALUES


def with_other_noise(config: Config) -> Config:
    """Return the settings with draws of their own: canaries must not know the noise."""
    run = config.run.model_copy(update={"seed": config.run.seed + 1})
    return config.model_copy(update={"run": run})


def crafted(
    canaries: Canaries,
    public: ClientData,
    model: nn.Module,
    loss: Loss,
    models: Sequence[NamedTensors],
    clip: float,
) -> Canaries:
    """Return the canaries with inputs made for the first, the middle and the last model of a run.

    Args:
        canaries: the ones to begin with; labels and coins stay.
        public: samples that no client has; gradients are made orthogonal to theirs.
        model: of the run's architecture; copied, not changed.
        loss: the run's.
        models: global tensors before the first round and after later ones.
        clip: norm that each record's gradient is clipped to.
    """
    states = [models[0], models[len(models) // 2], models[-1]]
    gradients = sample_gradients(model, loss)

    def flat(state: NamedTensors, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([g.flatten(1) for g in gradients(state, x, y).values()], 1)

    x, y = (part[:TOGETHER] for part in whole(public, "the canaries' samples"))
    others = [functional.normalize(flat(state, x, y).detach()) for state in states]
    rate = RATE * float(canaries.x.std())

    def made(start: Tensor, labels: Tensor) -> Tensor:
        inputs = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([inputs], lr=rate)
        for _ in range(STEPS):
            total = sum(
                hidden(flat(state, inputs, labels), other, clip)
                for state, other in zip(states, others, strict=True)
            )
            (inputs.grad,) = torch.autograd.grad(total, inputs)  # type: ignore[arg-type]
            optimiser.step()
        return inputs.detach()

    groups = zip(canaries.x.split(TOGETHER), canaries.y.split(TOGETHER), strict=True)
    return replace(canaries, x=torch.cat([made(start, labels) for start, labels in groups]))


def hidden(gradients: Tensor, others: Tensor, clip: float) -> Tensor:
    """Return how much of canaries' gradients others hide: the sum that is made small.

    Args:
        gradients: of k canaries, shape (k, d).
        others: unit vectors, shape (n, d).
        clip: norm that gradients are clipped to.
    """
    lengths = gradients.norm(dim=1)
    units = functional.normalize(gradients)
    among = (units @ units.T).square()
    k = len(units)
    pairs = (among.sum() - among.diagonal().sum()) / max(1, k * (k - 1))
    short = functional.relu(MARGIN - lengths / clip).square().mean()
    return (units @ others.T).square().mean() + pairs + short

"""What is attacked: a client's mini-batches, and the gradients that the server sees of them.

Axes: N mini-batches of B images each; C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

import torch
from torch import Tensor, nn

from securefl.audit.inversion.victim_gradient import (
    Assumed,
    Gradient,
    Statistics,
    batch_gradient,
    running,
)
from securefl.errors import DataError
from securefl.norms.find import batch_norm_layers

FEWEST = 8
"""Images, below which an interval over them says nothing."""


class NormalisedBatch(StrEnum):
    """By which statistics the client normalises its mini-batch."""

    GIVEN = "given"
    """By constants, such as FixBN's frozen ones."""
    POOLED = "pooled"
    """By those of the union of all clients' mini-batches, the gradient through them: FedTAN."""
    BATCH = "batch"
    """By its own, with the gradient through them: FedAvg with BN."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """One model at one time, and whose images are attacked."""

    name: str
    """In the report: `after round 10`."""
    model: nn.Module
    """As the client gets it. It is not changed."""
    client: tuple[Tensor, Tensor]
    """Images in 0..1, flat or (channels, height, width), and their labels."""
    public: tuple[Tensor, Tensor]
    """Labelled images that anybody may have; none of the client's."""
    normalised: NormalisedBatch
    given: Statistics | None = None
    """GIVEN's constants, each of shape (C,); the model's running statistics where None."""
    others: tuple[Tensor, Tensor] | None = None
    """POOLED: the other clients' mini-batches of the round, together."""

    def __post_init__(self) -> None:
        if not batch_norm_layers(self.model):
            raise DataError(
                f"{self.name}: the model ({type(self.model).__name__}) has no BN layer, so there "
                'are no statistics to hide: audit a run with model.norm = "batch"'
            )
        x, y = self.client
        if len(x) < FEWEST or len(x) != len(y):
            raise DataError(
                f"{self.name}: {len(x)} images with {len(y)} labels: gradient inversion needs "
                f"{FEWEST} images at least, for an interval over them; take a larger client"
            )
        if not all(float(z.min()) >= 0 and float(z.max()) <= 1 for z in (x, self.public[0])):
            raise DataError(f"{self.name}: pixels are not in 0..1: scale them first")
        if (self.normalised is NormalisedBatch.POOLED) != (self.others is not None):
            raise DataError(f"{self.name}: `others` are for POOLED, and needed there alone")

    def picture_shape(self) -> tuple[int, ...]:
        """(height, width) or (channels, height, width); a flat image is taken for a square.

        Raises:
            DataError: flat samples whose features make no square.
        """
        shape = tuple(self.client[0].shape[1:])
        if len(shape) == 3:
            return shape[1:] if shape[0] == 1 else shape
        side = round(shape[0] ** 0.5)
        if len(shape) != 1 or side**2 != shape[0]:
            raise DataError(f"{self.name}: samples of shape {shape} are no images: no inversion")
        return side, side


@final
@dataclass(frozen=True, slots=True, eq=False)
class MiniBatches:
    """N mini-batches and what becomes of them."""

    x_NB: Tensor
    """With the axes of an image behind."""
    y_NB: Tensor
    gradients: Gradient
    """Each of shape (N, …)."""
    exact: Statistics
    """That normalised them; each of shape (N, C)."""
    totals: Statistics
    """FedTAN's; empty otherwise."""


def mini_batches(target: Target, n: int, batch: int, rng: torch.Generator) -> MiniBatches:
    """At most n mini-batches of the client's images, no image twice, and their gradients.

    Raises:
        DataError: fewer images than one mini-batch, or a batch that cannot be normalised.
    """
    x, y = target.client
    n = min(n, len(x) // batch)
    if not n or (batch < 2 and target.normalised is NormalisedBatch.BATCH):
        raise DataError(f"{target.name}: no mini-batch of {batch} of {len(x)} images")
    drawn = torch.randperm(len(x), generator=rng)[: n * batch]
    x_NB, y_NB = x[drawn].unflatten(0, (n, batch)), y[drawn].unflatten(0, (n, batch))
    seen = [_seen(target, one_x, one_y) for one_x, one_y in zip(x_NB, y_NB, strict=True)]
    gradients = {name: torch.stack([g[name] for g, _, _ in seen]) for name in seen[0][0]}
    return MiniBatches(
        x_NB, y_NB, gradients, _stacked([s for _, s, _ in seen]), _stacked([t for _, _, t in seen])
    )


def _seen(target: Target, x: Tensor, y: Tensor) -> tuple[Gradient, Statistics, Statistics]:
    """The gradient of one mini-batch, the statistics that normalised it, and FedTAN's totals."""
    model = target.model
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if target.normalised is NormalisedBatch.BATCH:
        gradient, own = batch_gradient(model, parameters, x, y, Assumed())
        return gradient, own, {}
    if target.others is None:
        given = target.given or running(model)
        return batch_gradient(model, parameters, x, y, Assumed(given))[0], given, {}
    given, totals = pooled(model, (x, y), target.others)
    return batch_gradient(model, parameters, x, y, Assumed(given, totals))[0], given, totals


def pooled(model: nn.Module, *batches: tuple[Tensor, Tensor]) -> tuple[Statistics, Statistics]:
    """FedTAN's statistics of the union of these mini-batches, and the totals for β and γ.

    With clients weighted by the sizes of their mini-batches, Σ p_j ∂F_j is the union's gradient.
    """
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    gradient, own = batch_gradient(model, parameters, x, y, Assumed())
    totals = {
        name: (gradient[f"{name}.bias"], gradient[f"{name}.weight"])
        for name in own
        if f"{name}.bias" in gradient
    }
    return own, totals


def _stacked(found: Sequence[Statistics]) -> Statistics:
    return {
        name: (torch.stack([s[name][0] for s in found]), torch.stack([s[name][1] for s in found]))
        for name in found[0]
    }

"""Sums of all clients' updates, as a round whose model is sealed opens them to everybody.

A client takes plain steps of SGD, so that its update is a sum of gradients, and the sum of all
updates that of all samples that clients stepped on. Axes: N sums, S samples in one, D features.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from securefl.audit.inversion.sample_kind import SampleKind, kind_of
from securefl.audit.inversion.target import (
    Assumed,
    Gradient,
    NormalisedBatch,
    Statistics,
    Target,
    batch_gradient,
    pooled,
    running,
)
from securefl.errors import DataError


@final
@dataclass(frozen=True, slots=True)
class RoundShape:
    """Numbers of clients, of local steps and of samples in a mini-batch."""

    clients: int
    steps: int
    batch: int

    def __str__(self) -> str:
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"{self.clients} clients, {steps} of {self.batch}"


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenedRound:
    """Round of a run: what makes the sums that it opens."""

    target: Target
    """Model, public samples, loss and normalisation; its client is one of `clients`."""
    clients: Sequence[tuple[Tensor, Tensor]]
    """Samples and targets of each client."""
    shape: RoundShape
    """Shape of the run's own rounds."""
    lr: float
    """Learning rate of local steps."""

    @property
    def least(self) -> int:
        """Size of the smallest mini-batch that can be trained on."""
        return 2 if self.target.normalised is NormalisedBatch.BATCH else 1

    def fits(self, shape: RoundShape) -> bool:
        """Return whether each client has a mini-batch, where several share what one has."""
        here = min(shape.clients, len(self.clients))
        sharing = -(-shape.clients // here)
        return min(len(y) for _, y in self.clients[:here]) // sharing >= self.least

    def kind(self) -> SampleKind:
        """Return what the samples are; DataError where none of that kind can be rebuilt."""
        return kind_of(torch.cat([x for x, _ in self.clients]), self.target.public[0])


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenedSums:
    """N sums of updates, and the samples in each."""

    x_NS: Tensor
    y_NS: Tensor
    gradients: Gradient
    """Sums over all steps and mean over clients, divided by the learning rate; each (N, …)."""
    groups: Sequence[slice]
    """Samples that the model normalises together."""
    exact: Statistics
    """Statistics that all learn of the first group, each of shape (N, C); empty for none."""


Batches = Sequence[tuple[Tensor, Tensor]]


def opened_sums(found: OpenedRound, shape: RoundShape, n: int, rng: torch.Generator) -> OpenedSums:
    """Play n rounds of this shape, each with mini-batches drawn anew, and return their sums.

    With more clients than the run's, several share what one of these has. Who has fewer samples
    than its steps take goes on with the same mini-batches.

    Raises:
        DataError: a client has too few samples for one mini-batch.
    """
    rounds = [_one_sum(found, _dealt(found, shape, rng), shape.steps) for _ in range(n)]
    x_NS, y_NS = (
        torch.stack([getattr(one, name)[0] for one in rounds]) for name in ("x_NS", "y_NS")
    )
    gradients = {
        name: torch.stack([one.gradients[name] for one in rounds]) for name in rounds[0].gradients
    }
    exact = {
        name: (
            torch.stack([one.exact[name][0] for one in rounds]),
            torch.stack([one.exact[name][1] for one in rounds]),
        )
        for name in rounds[0].exact
    }
    return OpenedSums(x_NS, y_NS, gradients, rounds[0].groups, exact)


def _dealt(found: OpenedRound, shape: RoundShape, rng: torch.Generator) -> list[Batches]:
    """Return the mini-batches of each client."""
    here = min(shape.clients, len(found.clients))
    dealt = []
    for client in range(shape.clients):
        x, y = found.clients[client % here]
        sharing = range(client % here, shape.clients, here)
        dealt.append((x, y, len(sharing), sharing.index(client)))
    orders = [torch.randperm(len(y), generator=rng) for _, y in found.clients[:here]]
    return [
        list(_batches((x, y), orders[i % here].chunk(parts)[place], shape, found.least))
        for i, (x, y, parts, place) in enumerate(dealt)
    ]


def _batches(
    client: tuple[Tensor, Tensor], own: Tensor, shape: RoundShape, least: int
) -> Iterator[tuple[Tensor, Tensor]]:
    size = min(shape.batch, len(own))
    if size < least:
        raise DataError(f"{shape}: a client has {len(own)} samples, too few for a mini-batch")
    for index in own[: len(own) // size * size].split(size)[: shape.steps]:
        yield client[0][index], client[1][index]


def _one_sum(found: OpenedRound, dealt: Sequence[Batches], steps: int) -> OpenedSums:
    target, n = found.target, len(dealt)
    start = {name: p.detach() for name, p in target.model.named_parameters() if p.requires_grad}
    own = [dict(start) for _ in dealt]
    exact: Statistics = {}
    for step in range(steps):
        batches = [of[step % len(of)] for of in dealt]
        for parameters, gradient in zip(own, _gradients(target, own, batches, step), strict=True):
            for name, value in gradient.items():
                parameters[name] = parameters[name] - found.lr * value
        if step == 0 and target.normalised is NormalisedBatch.POOLED:
            exact, _ = pooled(target.model, target.loss, *batches)
    gradients = {
        name: sum((start[name] - one[name] for one in own), torch.zeros_like(start[name]))
        / (n * found.lr)
        for name in start
    }
    together = target.normalised is NormalisedBatch.POOLED
    ordered = [of[step] for step in range(len(dealt[0])) for of in dealt if step < len(of)]
    x, y = (torch.cat(parts) for parts in zip(*ordered, strict=True))
    sizes = [len(one) for _, one in ordered]
    if together:
        sizes = [sum(sizes[:n]), *sizes[n:]]
    if target.normalised is NormalisedBatch.GIVEN:
        sizes = [len(y)]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    groups = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return OpenedSums(x[None], y[None], gradients, groups, exact)


def _gradients(
    target: Target, own: Sequence[Mapping[str, Tensor]], batches: Batches, step: int
) -> Iterator[Gradient]:
    """Yield each client's gradient at its own parameters, in one step."""
    assumed = Assumed()
    if target.normalised is NormalisedBatch.GIVEN:
        assumed = Assumed(target.given or running(target.model))
    elif target.normalised is NormalisedBatch.POOLED and step == 0:
        assumed = Assumed(*pooled(target.model, target.loss, *batches))
    for parameters, (x, y) in zip(own, batches, strict=True):
        yield batch_gradient(target.model, parameters, x, y, assumed, target.loss)[0]

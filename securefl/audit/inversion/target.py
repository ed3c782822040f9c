"""Targets of gradient inversion: a client's mini-batches, and their gradients.

A client's own gradient, and what an attacker compares it with, are the same function.
Axes: N mini-batches of B samples each; C channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional

from securefl.algorithms.algorithm import Loss
from securefl.audit.inversion.sample_kind import SampleKind, kind_of
from securefl.errors import DataError
from securefl.exchange.moments import Batch, along_channels, channel_mean
from securefl.norms.find import BatchNorm, batch_norm_layers, scale_and_shift
from securefl.norms.patch_forward import replaced_forwards
from securefl.types import NamedTensors

Pair: TypeAlias = tuple[Tensor, Tensor]
"""Two vectors of a layer, each of shape (C,): μ and σ², or gradients for β and γ."""
Statistics: TypeAlias = Mapping[str, Pair]
"""Means μ and variances σ² of each BN layer, by its dotted name."""
Gradient: TypeAlias = NamedTensors
"""Gradients by the dotted names of the model's parameters."""


@dataclass(frozen=True, slots=True)
class Belief:
    """Statistics of one layer as μ/σ and log σ, with σ = √(σ² + ε); all of shape (N, C)."""

    ratio_NC: Tensor
    log_sigma_NC: Tensor
    free_ratio_NC: Tensor
    """Mask: 1 where the attack may move μ/σ, 0 where it is known or believed."""
    free_sigma_NC: Tensor

    def free(self) -> bool:
        """Return whether the attack may move anything."""
        return bool(self.free_ratio_NC.any() or self.free_sigma_NC.any())


Beliefs: TypeAlias = Mapping[str, Belief]
"""Beliefs by layer; without an entry, the rebuilt batch's own statistics normalise it."""


def running(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the model's running statistics, of the layers that keep any."""
    return {
        name: (layer.running_mean.detach().clone(), layer.running_var.detach().clone())
        for name, layer in batch_norm_layers(model).items()
        if layer.running_mean is not None and layer.running_var is not None
    }


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumption on how a mini-batch is normalised."""

    given: Statistics = field(default_factory=dict)
    """Constants of the gradient. A layer that is not named normalises the batch by its own
    statistics, and the gradient goes through them: FedAvg's BN."""
    totals: Statistics = field(default_factory=dict)
    """Totals of FedTAN: Σ p_j ∂F_j/∂β and Σ p_j ∂F_j/∂γ over all clients, from which follow those
    for the pooled statistics, which `given` has then."""


def batch_gradient(
    model: nn.Module,
    parameters: NamedTensors,
    x: Batch,
    y: Tensor,
    assumed: Assumed,
    loss: Loss,
) -> tuple[Gradient, Statistics]:
    """Return the gradient of the loss for `parameters`, and the batch's statistics.

    Everything is differentiable, and can be mapped (`torch.func.vmap`) over problems.
    """

    def of_parameters(parameters: NamedTensors) -> tuple[Tensor, Statistics]:
        output, layers = normalised_output(model, parameters, x, assumed)
        found = loss(output, y)
        for layer in layers.values():
            found = found + layer.pooled_part
        return found, {name: layer.own for name, layer in layers.items()}

    gradient, own = grad(of_parameters, has_aux=True)(dict(parameters))
    return gradient, own


def batch_statistics(model: nn.Module, x: Batch) -> Statistics:
    """Return the statistics of this one batch, each layer normalised by them."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    _, layers = normalised_output(model, parameters, x, Assumed())
    return {name: layer.own for name, layer in layers.items()}


def normalised_output(
    model: nn.Module, parameters: NamedTensors, x: Batch, assumed: Assumed
) -> tuple[Tensor, Mapping[str, "_AssumedForward"]]:
    """Return the model's output, and what each BN layer did."""
    layers: dict[str, _AssumedForward] = {}

    def forward(name: str, layer: BatchNorm) -> _AssumedForward:
        given, totals = assumed.given.get(name), assumed.totals.get(name)
        layers[name] = _AssumedForward(name, layer, given, totals)
        return layers[name]

    with replaced_forwards(model, forward):
        output: Tensor = functional_call(model, dict(parameters), (x,))
    return output, layers


@dataclass(slots=True)
class _AssumedForward:
    """Substitute for one BN layer's `forward`."""

    name: str
    layer: BatchNorm
    given: Pair | None
    totals: Pair | None
    own: Pair = field(init=False)
    pooled_part: Tensor = field(init=False)

    def __call__(self, y: Batch) -> Tensor:
        mu_i_C = channel_mean(y)
        mu_C = mu_i_C if self.given is None else self.given[0]
        var_i_C = channel_mean((y - along_channels(mu_i_C, y)).square())
        self.own = (mu_i_C, var_i_C)
        var_C = var_i_C if self.given is None else self.given[1]
        scale_C = torch.rsqrt(var_C + self.layer.eps)
        self.pooled_part = self._pooled_part(y, mu_C, scale_C)
        x = (y - along_channels(mu_C, y)) * along_channels(scale_C, y)
        weight_C, bias_C = scale_and_shift(self.layer, mu_C)
        return x * along_channels(weight_C, y) + along_channels(bias_C, y)

    def _pooled_part(self, y: Batch, mu_C: Tensor, scale_C: Tensor) -> Tensor:
        """Return a term whose gradient is what FedTAN sends back through μ and σ² (Eq. (41)).

        ∂F/∂μ = -γ/σ Σ p_j ∂F_j/∂β and ∂F/∂σ² = -γ/(2σ²) Σ p_j ∂F_j/∂γ.
        """
        if self.totals is None:
            return y.new_zeros(())
        gamma_C = scale_and_shift(self.layer, scale_C)[0].detach()
        shift_C, slope_C = self.totals
        mu_i_C, var_i_C = channel_mean(y), channel_mean((y - along_channels(mu_C, y)).square())
        mean_part = gamma_C * scale_C * shift_C * mu_i_C
        return -(mean_part + gamma_C * scale_C.square() / 2 * slope_C * var_i_C).sum()


FEWEST = 8
"""Number of samples below which an interval over them says nothing."""


class NormalisedBatch(StrEnum):
    """Statistics by which the client normalises its mini-batch."""

    GIVEN = "given"
    """Constants, such as FixBN's frozen ones; of a model without BN none."""
    POOLED = "pooled"
    """Statistics of the union of all mini-batches, the gradient through them: FedTAN."""
    BATCH = "batch"
    """Statistics of its own, with the gradient through them: FedAvg with BN."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Client's samples, and a model at one time, that are attacked."""

    name: str
    """Name in the report: `after round 10`."""
    model: nn.Module
    """Model as the client gets it. It is not changed."""
    client: tuple[Tensor, Tensor]
    """Samples of any shape, and their targets."""
    public: tuple[Tensor, Tensor]
    """Labelled samples that anybody may have; none of the client's."""
    normalised: NormalisedBatch
    given: Statistics | None = None
    """Constants of GIVEN, each of shape (C,); the model's running statistics where None."""
    others: tuple[Tensor, Tensor] | None = None
    """Mini-batches of the other clients in the round, together: of POOLED."""
    loss: Loss = functional.cross_entropy
    """Loss as mean over a batch, of (model output, y)."""

    def __post_init__(self) -> None:
        x, y = self.client
        if len(x) < FEWEST or len(x) != len(y):
            raise DataError(
                f"{self.name}: {len(x)} samples with {len(y)} targets: gradient inversion needs "
                f"{FEWEST} samples at least, for an interval over them; take a larger client"
            )
        if (self.normalised is NormalisedBatch.POOLED) != (self.others is not None):
            raise DataError(f"{self.name}: `others` are for POOLED, and needed there alone")

    def kind(self) -> SampleKind:
        """Return what the samples are; DataError where none of that kind can be rebuilt."""
        try:
            return kind_of(self.client[0], self.public[0])
        except DataError as error:
            raise DataError(f"{self.name}: {error}") from error


@final
@dataclass(frozen=True, slots=True, eq=False)
class MiniBatches:
    """Set of N mini-batches, with their gradients."""

    x_NB: Tensor
    """Samples, with their axes behind."""
    y_NB: Tensor
    gradients: Gradient
    """Gradients, each of shape (N, …)."""
    exact: Statistics
    """Statistics that normalised them; each of shape (N, C)."""
    totals: Statistics
    """Totals of FedTAN; empty otherwise."""


def mini_batches(target: Target, n: int, batch: int, rng: torch.Generator) -> MiniBatches:
    """Draw at most n mini-batches of the client's samples, none twice, with their gradients.

    Raises:
        DataError: fewer samples than one mini-batch, or a batch that cannot be normalised.
    """
    x, y = target.client
    n = min(n, len(x) // batch)
    if not n or (batch < 2 and target.normalised is NormalisedBatch.BATCH):
        raise DataError(f"{target.name}: no mini-batch of {batch} of {len(x)} samples")
    drawn = torch.randperm(len(x), generator=rng)[: n * batch]
    x_NB, y_NB = x[drawn].unflatten(0, (n, batch)), y[drawn].unflatten(0, (n, batch))
    seen = [_seen(target, one_x, one_y) for one_x, one_y in zip(x_NB, y_NB, strict=True)]
    gradients = {name: torch.stack([g[name] for g, _, _ in seen]) for name in seen[0][0]}
    return MiniBatches(
        x_NB, y_NB, gradients, _stacked([s for _, s, _ in seen]), _stacked([t for _, _, t in seen])
    )


def _seen(target: Target, x: Tensor, y: Tensor) -> tuple[Gradient, Statistics, Statistics]:
    """Return a mini-batch's gradient, the statistics that normalised it, and FedTAN's totals."""
    model = target.model
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if target.normalised is NormalisedBatch.BATCH:
        gradient, own = batch_gradient(model, parameters, x, y, Assumed(), target.loss)
        return gradient, own, {}
    if target.others is None:
        given = target.given or running(model)
        return batch_gradient(model, parameters, x, y, Assumed(given), target.loss)[0], given, {}
    given, totals = pooled(model, target.loss, (x, y), target.others)
    assumed = Assumed(given, totals)
    return batch_gradient(model, parameters, x, y, assumed, target.loss)[0], given, totals


def pooled(
    model: nn.Module, loss: Loss, *batches: tuple[Tensor, Tensor]
) -> tuple[Statistics, Statistics]:
    """Return FedTAN's statistics of the union of these mini-batches, and the totals for β and γ.

    With clients weighted by the sizes of their mini-batches, Σ p_j ∂F_j is the union's gradient.
    """
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    gradient, own = batch_gradient(model, parameters, x, y, Assumed(), loss)
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

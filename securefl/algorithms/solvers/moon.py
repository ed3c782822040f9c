"""MOON (Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, Eq. (3), Algorithm 1).

    ℓ_con = -log exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ))
    loss  = ℓ_sup + μ ℓ_con

z, z_glob and z_prev are the features of a batch in w, in w̄ and in the client's last w_i, sim is the
cosine. In a client's first round z_prev = z_glob, and ℓ_con has no gradient.

BN in the two reference models normalises by the batch, as it does in w, so that ℓ_con compares
weights: with running statistics z and z_glob would differ, on non-i.i.d. data, before the first
step. All other layers are in evaluation mode. In FedTAN's pooled step w's features are of the
pooled statistics and the references' of the batch's own: they send no sums.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.algorithms.solvers.solver import End, Solver, Start, StepContext, trained
from securefl.errors import DataError
from securefl.settings.table import NotNegative, Positive
from securefl.types import NamedTensors

if TYPE_CHECKING:
    from torch import Tensor, nn


class Moon(Solver):
    """SGD on the loss and the contrast."""

    name: Literal["moon"] = "moon"
    mu: NotNegative = 1.0
    """μ"""
    temperature: Positive = 0.5
    """τ"""
    second_gradient: ClassVar[str] = "its contrast is a second term"

    def control(self, model: nn.Module) -> NamedTensors:
        """Return nothing; DataError where the model has no features."""
        from securefl.algorithms.features import last_linear

        last_linear(model)
        return {}

    def begin(self, start: Start) -> _Session:
        """Begin a round; the client's last model is remembered."""
        last = start.work.client_state.solver
        references = [_reference(start, last), _reference(start, {})] if last else []
        return _Session(start, self.mu, self.temperature, references)


@dataclass(frozen=True, slots=True)
class _Session:
    start: Start
    mu: float
    temperature: float
    references: list[nn.Module]
    """The client's last model and the global one; none in its first round."""

    def gradients(self, around: StepContext) -> None:
        if not self.references:
            self.start.backward(around)
            return
        from securefl.algorithms.features import observed_features

        with observed_features(self.start.work.model) as seen:
            self.start.backward(around, lambda x: self.mu * self._contrast(x, seen))

    def end(self) -> End:
        from securefl.algorithms.algorithm import copied

        return End(trained(self.start), {}, copied(self.start.parameters))

    def _contrast(self, x: Tensor, seen: list[Tensor]) -> Tensor:
        import torch
        from torch.nn import functional

        from securefl.norms.patch_forward import in_full_precision

        if not seen:
            raise DataError("the model's last linear layer is not called in its forward pass")
        z = in_full_precision(seen[-1]).flatten(1)
        z_last, z_global = (_features(reference, x) for reference in self.references)
        similar = [functional.cosine_similarity(z, other) for other in (z_global, z_last)]
        logits = torch.stack(similar, dim=1) / self.temperature
        return -functional.log_softmax(logits, dim=1)[:, 0].mean()


def _reference(start: Start, parameters: NamedTensors) -> nn.Module:
    """Return a copy of the model as the round begins, with these parameters in it."""
    from securefl.norms.find import batch_norm_layers

    model = copy.deepcopy(start.work.model).eval().requires_grad_(False)
    layers = batch_norm_layers(model)
    for name, layer in batch_norm_layers(start.work.model).items():
        # What this does to running statistics is seen by the copy alone.
        layers[name].train(layer.training)
    own = dict(model.named_parameters())
    for name, value in parameters.items():
        own[name].copy_(value)
    return model


def _features(model: nn.Module, x: Tensor) -> Tensor:
    import torch

    from securefl.algorithms.features import observed_features
    from securefl.norms.patch_forward import in_full_precision

    with torch.no_grad(), observed_features(model) as seen:
        model(x)
    return in_full_precision(seen[-1]).flatten(1)

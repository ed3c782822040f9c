"""A model's features, which its last linear layer gets, and class averages of their norms.

Hu, Qiu & Tang, "Feature Norm Regularized Federated Learning", Algorithm 1. Tensors end with their
axes: B samples of a batch, F features, C classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from securefl.data.samples import Samples, in_order
from securefl.errors import DataError
from securefl.norms.patch_forward import in_full_precision


def last_linear(model: nn.Module) -> nn.Linear:
    """Return the linear layer that makes features into outputs, the last layer with weights.

    Last in the order of definition.

    Raises:
        DataError: the last layer with weights is another.
    """
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        or (not any(module.children()) and any(True for _ in module.parameters()))
    ]
    name, last = layers[-1] if layers else ("", model)
    if not isinstance(last, nn.Linear):
        raise DataError(
            "features are what a model's last linear layer gets, and the last layer with weights "
            f"of this model, {name!r}, is a {type(last).__name__}: let the model end with an "
            "nn.Linear, defined after its other layers"
        )
    return last


@contextmanager
def observed_features(model: nn.Module) -> Iterator[list[Tensor]]:
    """Note the features of every forward pass inside the context, with their graph.

    Raises:
        DataError: the model has no last linear layer.
    """
    seen: list[Tensor] = []

    def note(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    handle = last_linear(model).register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


@dataclass(frozen=True, slots=True)
class ClassNorms:
    """Feature norms by class; a class without a sample has count 0 and sum 0."""

    sum_C: Float[Tensor, " C"]
    count_C: Float[Tensor, " C"]

    @property
    def known_C(self) -> Tensor:
        """Classes that have samples."""
        return self.count_C > 0

    @property
    def mean_C(self) -> Tensor:
        """F_i[k]; 0 where the class has no sample."""
        return self.sum_C / self.count_C.clamp(min=1)  # Eq. (7)


@dataclass(frozen=True, slots=True)
class Assessment:
    """One model on all public samples."""

    norms: ClassNorms
    n_correct: int
    confidence: float
    """Mean probability that it gives to the true label, 0..1."""


def class_norms(
    features_BF: Float[Tensor, "B ..."], y: Int64[Tensor, " B"], n_classes: int
) -> ClassNorms:
    """Return U = ‖features‖₂ of each sample, summed by class; differentiable in the features."""
    norm_B = torch.linalg.vector_norm(in_full_precision(features_BF).flatten(1), dim=1)  # Eq. (6)
    zeros_C = norm_B.new_zeros(n_classes)
    return ClassNorms(
        zeros_C.index_add(0, y, norm_B), zeros_C.index_add(0, y, torch.ones_like(norm_B))
    )


def assess(model: nn.Module, public: Samples, n_classes: int) -> Assessment:
    """Assess the model in evaluation mode, in which it is left."""
    model.eval()
    device = next(model.parameters()).device
    sum_C = count_C = torch.zeros(n_classes, dtype=torch.float64)
    n_correct, confidence = 0, 0.0
    exact = torch.autocast(device.type, enabled=False)  # whatever local steps are in
    with torch.no_grad(), exact, observed_features(model) as seen:
        for batch in in_order(public):
            x, y = (tensor.to(device) for tensor in batch)
            seen.clear()
            output = model(x)
            norms = class_norms(seen[-1], y, n_classes)
            sum_C, count_C = sum_C + norms.sum_C.cpu(), count_C + norms.count_C.cpu()
            n_correct += int((output.argmax(dim=1) == y).sum())
            confidence += float(output.softmax(dim=1).gather(1, y[:, None]).sum())
    return Assessment(ClassNorms(sum_C, count_C), n_correct, confidence / len(public))

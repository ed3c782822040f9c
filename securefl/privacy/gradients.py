"""Per-record gradients of the loss, or their norms, all at once, by Opacus.

Axes: B records, T positions in a record (such as those of a sequence), I and O features.
"""

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import final

from jaxtyping import Shaped
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss, trained_parameters
from securefl.norms.frozen import Affine

ByParameter = dict[Tensor, Tensor]
"""A layer's parameters, as torch types them."""


@contextmanager
def no_warning_of_the_first_layer() -> Iterator[None]:
    """Silence torch's warning that its input needs no gradient; Opacus does without."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield


def per_sample_gradients(
    model: nn.Module,
    x: Shaped[Tensor, "B ..."],
    y: Shaped[Tensor, "B ..."],
    loss: Loss,
) -> dict[str, Tensor]:
    """Return gradients by parameter name, (B, *its shape) each; the model is not changed.

    The model must have passed `require_uncoupled`: of one that couples records these are gradients
    of nothing. `loss` is a mean over records.

    Raises:
        NotImplementedError: Opacus', for a trained layer that has buffers.
    """
    twin = copy.deepcopy(model)
    sampled = GradientSampler(twin, loss_reduction="mean", strict=True)
    with no_warning_of_the_first_layer():
        loss(sampled(x), y).backward()
    return {name: _of_each(p, len(x)) for name, p in trained_parameters(twin).items()}


def _of_each(parameter: nn.Parameter, n: int) -> Tensor:
    """Return what Opacus has left at a parameter; zeros where the loss does not reach it."""
    found: Tensor | None = getattr(parameter, "grad_sample", None)
    return parameter.new_zeros(n, *parameter.shape) if found is None else found


def _affine_gradients(layer: Affine, activations: list[Tensor], backprops: Tensor) -> ByParameter:
    """Return each record's gradients for γ y + β."""
    products: ByParameter = {layer.weight: activations[0] * backprops}
    if layer.bias is not None:
        products[layer.bias] = backprops
    channels = backprops.shape[:2]
    return {p: product.reshape(*channels, -1).sum(2) for p, product in _trained(products)}


def _linear_norms(layer: nn.Linear, activations: list[Tensor], backprops: Tensor) -> ByParameter:
    """Return the norm of each record's gradient Σ_t g_t a_tᵀ, without making it.

    It is √(Σ_st g_sᵀg_t a_sᵀa_t): Li et al., ICLR 2022, section 4. In float64: where the g_t a_tᵀ
    cancel, float32 could lose the norm. Opacus' own is float32, and gives none to inputs of more
    than three axes.
    """
    a_BTI = activations[0].double().reshape(len(backprops), -1, layer.in_features)
    g_BTO = backprops.double().reshape(len(backprops), -1, layer.out_features)
    norms: ByParameter = {}
    if a_BTI.shape[1] == 1:
        norms[layer.weight] = (a_BTI.norm(dim=2) * g_BTO.norm(dim=2))[:, 0]
    else:
        squares_BTT = (a_BTI @ a_BTI.mT) * (g_BTO @ g_BTO.mT)
        norms[layer.weight] = squares_BTT.sum((1, 2)).clamp_min(0).sqrt()
    if layer.bias is not None:
        norms[layer.bias] = g_BTO.sum(1).norm(dim=1)
    return dict(_trained(norms))


def _trained(by_parameter: ByParameter) -> Iterable[tuple[Tensor, Tensor]]:
    return ((p, value) for p, value in by_parameter.items() if p.requires_grad)


class _EachOnce:
    """Mixin of both of Opacus' wrappers, which visits a module once."""

    GRAD_SAMPLERS = {**GradSampleModule.GRAD_SAMPLERS, Affine: _affine_gradients}  # noqa: RUF012

    def iterate_submodules(self, module: nn.Module) -> Iterable[nn.Module]:
        """Yield each module once: Opacus hooks one that stands in two places twice."""
        return dict.fromkeys(super().iterate_submodules(module))  # type: ignore[misc]


@final
class GradientSampler(_EachOnce, GradSampleModule):  # type: ignore[misc]
    """Wrapper that leaves each record's gradient at a parameter as `grad_sample`."""


@final
class NormSampler(_EachOnce, GradSampleModuleFastGradientClipping):  # type: ignore[misc]
    """Wrapper that leaves the norm of each record's gradient at a parameter as `_norm_sample`.

    Linear layers and embeddings have no record's gradient in memory, of others one layer at a time.
    """

    NORM_SAMPLERS = {  # noqa: RUF012
        **GradSampleModuleFastGradientClipping.NORM_SAMPLERS,
        nn.Linear: _linear_norms,
    }

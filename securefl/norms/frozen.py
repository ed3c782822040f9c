"""Batch normalisation at rest: a fixed standardisation, then the scale and shift that may learn.

Apart, nothing of a batch is left in the layer: one sample's output depends on that sample alone.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from securefl.errors import DataError
from securefl.exchange.moments import along_channels
from securefl.norms.find import TORCH_FORWARDS, BatchNorm, batch_norm_layers
from securefl.norms.patch_forward import replaced_forwards
from securefl.types import Freeze

Batch = Float[Tensor, "B C ..."]


@final
class Standardise(nn.Module):
    """Layer (y - μ) / √(σ² + ε) with μ and σ² that no training moves."""

    mu_C: Tensor
    var_C: Tensor

    def __init__(self, mu_C: Tensor, var_C: Tensor, eps: float) -> None:
        super().__init__()
        self.register_buffer("mu_C", mu_C)
        self.register_buffer("var_C", var_C)
        self.eps = eps

    def forward(self, y: Batch) -> Tensor:
        """Standardise each sample by itself."""
        scale_C = torch.rsqrt(self.var_C + self.eps)
        return (y - along_channels(self.mu_C, y)) * along_channels(scale_C, y)


@final
class Affine(nn.Module):
    """Layer γ y + β, or γ y where there is no β."""

    bias: nn.Parameter | None

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias

    def forward(self, y: Batch) -> Tensor:
        """Scale and shift channel by channel."""
        scaled = y * along_channels(self.weight, y)
        return scaled if self.bias is None else scaled + along_channels(self.bias, y)


def at_rest(name: str, layer: BatchNorm) -> nn.Sequential:
    """Return a BN layer's `Standardise`, then `Affine` if it has γ and β, around its tensors.

    Raises:
        DataError: the layer keeps no running statistics.
    """
    if layer.running_mean is None or layer.running_var is None:
        raise DataError(
            f"BN layer {name!r} keeps no running statistics that could be frozen: make it with "
            "track_running_stats=True"
        )
    standardise = Standardise(layer.running_mean, layer.running_var, layer.eps)
    if layer.weight is None:
        return nn.Sequential(standardise)
    return nn.Sequential(standardise, Affine(layer.weight, layer.bias))


def at_rest_twin(model: nn.Module) -> nn.Module:
    """Return the model with its BN layers `at_rest`, in the same mode, around the same tensors.

    Parameters and buffers are shared: what trains one trains the other. Hooks of the model's
    modules are not the twin's. A BN layer is at rest whatever forward it has been given for a while
    (`replaced_forwards`).

    Raises:
        DataError: a BN layer keeps no running statistics, or is of a class whose forward is not
            torch's.
    """
    # What `deepcopy` takes for copied already, by what it is the copy of.
    memo: dict[int, object] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for name, layer in batch_norm_layers(model).items():
        if type(layer).forward not in TORCH_FORWARDS:
            raise DataError(
                f"BN layer {name!r} is a {type(layer).__name__} with a forward of its own, which "
                "is not known at rest: use torch's BatchNorm"
            )
        memo[id(layer)] = at_rest(name, layer).train(model.training)
    for module in model.modules():
        # An empty container in the place of each one of hooks: the twin's are its own.
        hooks = [kept for name, kept in vars(module).items() if name.endswith(_HOOKS)]
        memo.update({id(kept): type(kept)() for kept in hooks})
    return copy.deepcopy(model, memo)


_HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
"""Endings of the names under which a module keeps its hooks."""


@contextmanager
def frozen_batch_norm(model: nn.Module, freeze: Freeze) -> Iterator[None]:
    """Keep what `freeze` names of the model's BN layers as it is, bit for bit, within the block."""
    learnt = [p for layer in batch_norm_layers(model).values() for p in layer.parameters()]
    with ExitStack() as restore:
        if freeze is not Freeze.AFFINE:
            at_rest_forward = replaced_forwards(model, lambda *one: at_rest(*one).forward)
            restore.enter_context(at_rest_forward)
        if freeze is not Freeze.STATISTICS:
            for parameter in learnt:
                restore.callback(parameter.requires_grad_, parameter.requires_grad)
                parameter.requires_grad_(False)
        yield

"""Moments of a model's BN inputs over all of a client's samples, the model in evaluation mode."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from securefl.exchange.moments import along_channels
from securefl.norms.find import batch_norm_layers
from securefl.norms.patch_forward import in_full_precision


@dataclass(slots=True)
class _Sums:
    """Sums over a layer's inputs about a reference, in double precision."""

    reference_C: Tensor
    shift_C: Tensor
    square_C: Tensor
    n: int = 0

    def add(self, y: Tensor) -> None:
        apart = y.double() - along_channels(self.reference_C, y)
        axes = [axis for axis in range(y.dim()) if axis != 1]
        self.shift_C += apart.sum(axes)
        self.square_C += apart.square().sum(axes)
        self.n += y.numel() // y.shape[1]


@torch.no_grad()
def moments_about(
    model: nn.Module, inputs: Iterable[Tensor], references: Mapping[str, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the means of y - m and (y - m)² of layers' inputs y, in double precision.

    Each value of `inputs` is a batch, and all samples count alike. The model is left in evaluation
    mode, in which no sample's y depends on another sample.

    Args:
        model: with BN layers anywhere in it.
        inputs: batches of samples, on the model's device.
        references: m by layer, for the layers that are asked for.

    Returns:
        Both by layer, without the layers that no pass calls.
    """
    model.eval()
    layers, found = batch_norm_layers(model), {}
    with ExitStack() as hooks:
        for name, reference_C in references.items():
            m_C = reference_C.double()
            found[name] = _Sums(m_C, torch.zeros_like(m_C), torch.zeros_like(m_C))
            hooks.callback(layers[name].register_forward_pre_hook(_adding(found[name])).remove)
        for x in inputs:
            model(x)
    return {
        n: (sums.shift_C / sums.n, sums.square_C / sums.n) for n, sums in found.items() if sums.n
    }


def _adding(sums: _Sums) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    return lambda _layer, inputs: sums.add(in_full_precision(*inputs))

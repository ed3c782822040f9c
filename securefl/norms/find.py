"""Find batch normalisation by type, wherever it stands in a model.

By type and not by name: `"bn" in name` misses the shortcut `downsample.1` of a ResNet.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from securefl.errors import DataError

BatchNorm = _BatchNorm
TORCH_FORWARDS = (BatchNorm.forward, nn.SyncBatchNorm.forward)
"""Forwards of BN layers that add nothing of their own."""


def batch_norm_layers(model: nn.Module) -> dict[str, BatchNorm]:
    """Return all BN layers by their dotted name, in the order of definition.

    Raises:
        DataError: a layer averages cumulatively (`momentum=None`), or was never materialised.
    """
    layers = {
        name or "model": module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
    }
    for name, layer in layers.items():
        if layer.momentum is None:
            raise DataError(
                f"BN layer {name!r} has momentum=None, a cumulative average that no aggregation "
                "over clients defines: give it a momentum, 0.1 for example"
            )
        if layer.num_features == 0:
            raise DataError(f"BN layer {name!r} is lazy: run the model once before handing it over")
    return layers


def normalises_by_batch(layer: BatchNorm) -> bool:
    """Return whether a layer, in the mode that it is in, takes its statistics from the batch."""
    return layer.training or layer.running_mean is None


def batch_normalising(model: nn.Module) -> dict[str, BatchNorm]:
    """Return the BN layers that normalise by the batch in training, by their dotted name.

    A model's own `train()` may keep others in evaluation mode; so it is called, to see. Afterwards
    all modes are as they were.

    Raises:
        DataError: as `batch_norm_layers`.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        layers = batch_norm_layers(model).items()
        return {name: layer for name, layer in layers if normalises_by_batch(layer)}
    finally:
        for module, mode in modes:
            module.training = mode


def statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the running means and variances of BN (and instance norm) layers, by dotted name."""
    batch_norm_layers(model)  # raises where a layer's statistics cannot be aggregated
    running = {
        id(buffer)
        for layer in model.modules()
        if isinstance(layer, _NormBase)
        for buffer in (layer.running_mean, layer.running_var)
    }
    return {name: buffer for name, buffer in model.named_buffers() if id(buffer) in running}


def variances(model: nn.Module) -> frozenset[str]:
    """Return the names of the running variances among `statistics`."""
    running = {id(layer.running_var) for layer in model.modules() if isinstance(layer, _NormBase)}
    return frozenset(name for name, buffer in model.named_buffers() if id(buffer) in running)


def scale_and_shift(layer: BatchNorm, like_C: Tensor) -> tuple[Tensor, Tensor]:
    """Return γ and β of a layer; ones and zeros, as `like_C`, for those that it does not have."""
    weight_C, bias_C = layer.weight, layer.bias
    return (
        torch.ones_like(like_C) if weight_C is None else weight_C,
        torch.zeros_like(like_C) if bias_C is None else bias_C,
    )


def affine(model: nn.Module) -> dict[str, Tensor]:
    """Return the scales γ and shifts β of BN layers, by their dotted name."""
    learnt = {
        id(parameter)
        for layer in batch_norm_layers(model).values()
        for parameter in layer.parameters(recurse=False)
    }
    return {name: p.data for name, p in model.named_parameters() if id(p) in learnt}

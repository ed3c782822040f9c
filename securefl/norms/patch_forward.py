"""Replacement of BN layers' forwards for a while, in full precision under autocast."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from securefl.errors import DataError
from securefl.norms.find import TORCH_FORWARDS, BatchNorm, batch_norm_layers


def in_full_precision(y: Tensor) -> Tensor:
    """Return in float32 what autocast has made coarse, exact enough for moments."""
    coarse = y.dtype is torch.bfloat16 and torch.is_autocast_enabled(y.device.type)
    return y.float() if coarse else y


Forward = Callable[[Tensor], Tensor]


@contextmanager
def replaced_forwards(
    model: nn.Module, forward: Callable[[str, BatchNorm], Forward]
) -> Iterator[None]:
    """Run the forward made for its name and itself in each BN layer within; restore it afterwards.

    Raises:
        DataError: a layer has a forward of its own, so that what it computes is not known.
    """
    layers = batch_norm_layers(model)
    for name, layer in layers.items():
        if type(layer).forward not in TORCH_FORWARDS:
            raise DataError(
                f"BN layer {name!r} is a {type(layer).__name__} with a forward of its own, which "
                "no other can stand in for: use torch's BatchNorm, with what it adds in a layer "
                "behind it"
            )
    before = {name: vars(layer).get("forward") for name, layer in layers.items()}
    for name, layer in layers.items():
        # An attribute of the instance hides the class's method, and `del` below uncovers it again.
        layer.forward = _InFullPrecision(forward(name, layer))  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for name, layer in layers.items():
            del layer.forward
            if before[name]:
                layer.forward = before[name]  # type: ignore[method-assign, assignment]


@dataclass(frozen=True, slots=True)
class _InFullPrecision:
    """Forward in full precision, as an object, so that a copy of the model has a copy of it."""

    forward: Forward

    def __call__(self, y: Tensor) -> Tensor:
        return self.forward(in_full_precision(y))

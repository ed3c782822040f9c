"""Weight standardisation: layers that normalise their weights, as norms do their inputs.

Qiao et al., Micro-Batch Training with Batch-Channel Normalization and Weight Standardization,
arXiv 1903.10520: Ŵ = (W - μ) / √(σ² + ε), with μ and σ² over the weights of an output channel.
A norm behind the layer sets the scale. Where there is none, scaled weight standardisation does:
Ŵ = γ (W - μ) / (σ √N), with N weights an output channel (Brock, De, Smith, ICLR 2021; in
FedWon: Zhuang, Lyu, ICLR 2024, Eq. (1)).
SGD acts on W. State dicts have the names of the plain layers.
"""

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from securefl.errors import DataError

Convolution = _ConvNd


def standardised(weight: Float[Tensor, "Cout Cin *K"]) -> Float[Tensor, "Cout Cin *K"]:
    """Return Ŵ: mean 0 and variance 1 (less ε = 1e-5) over the weights of each output channel."""
    return functional.layer_norm(weight, weight.shape[1:], eps=1e-5)


RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
"""γ, one over the standard deviation of the ReLU of a standard normal variable."""


def scaled(weight: Float[Tensor, "Cout Cin *K"]) -> Float[Tensor, "Cout Cin *K"]:
    """Return γ Ŵ / √N, so that a layer of inputs ReLU(z), z of unit variance, has unit variance.

    γ is a constant, as FedWon is read here; the gain that NFNets learn for each channel is left
    out. Their authors divide by √max(N σ², ε), ε = 1e-4; here by √(N σ² + ε), which is smooth.
    """
    n = weight[0].numel()
    return RELU_GAIN / math.sqrt(n) * functional.layer_norm(weight, weight.shape[1:], eps=1e-4 / n)


Standardisation: TypeAlias = Callable[[Tensor], Tensor]
"""Function that makes Ŵ of W: `standardised` or `scaled`."""


@final
class StandardisedConv1d(nn.Conv1d):
    """1d convolution with Ŵ."""

    standardisation: Standardisation

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        """Return Ŵ * input + bias."""
        y: Tensor = self._conv_forward(input, self.standardisation(self.weight), self.bias)
        return y


@final
class StandardisedConv2d(nn.Conv2d):
    """2d convolution with Ŵ."""

    standardisation: Standardisation

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        """Return Ŵ * input + bias."""
        y: Tensor = self._conv_forward(input, self.standardisation(self.weight), self.bias)
        return y


@final
class StandardisedConv3d(nn.Conv3d):
    """3d convolution with Ŵ."""

    standardisation: Standardisation

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        """Return Ŵ * input + bias."""
        y: Tensor = self._conv_forward(input, self.standardisation(self.weight), self.bias)
        return y


@final
class StandardisedLinear(nn.Linear):
    """Linear layer with Ŵ."""

    standardisation: Standardisation

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        """Return Ŵ input + bias."""
        return functional.linear(input, self.standardisation(self.weight), self.bias)


_STANDARDISED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: StandardisedConv1d,
    nn.Conv2d: StandardisedConv2d,
    nn.Conv3d: StandardisedConv3d,
    nn.Linear: StandardisedLinear,
}


def standardise_weights(
    layers: Iterable[tuple[str, nn.Module]], standardisation: Standardisation = standardised
) -> None:
    """Make these convolutions and linear layers, by name, standardise their weights, in place.

    Raises:
        DataError: before any change, for a layer of another class, or one with a single weight an
            output channel, which would be standardised to zero.
    """
    layers = [(name, x) for name, x in layers if type(x) not in _STANDARDISED.values()]
    for name, layer in layers:
        if type(layer) not in _STANDARDISED:
            raise DataError(
                f"layer {name!r} is a {type(layer).__name__}: the weights of "
                f"{', '.join(kind.__name__ for kind in _STANDARDISED)} alone can be standardised, "
                "not those of subclasses; use group, layer or instance"
            )
        if layer.get_parameter("weight")[0].numel() == 1:
            raise DataError(
                f"layer {name!r} has one weight an output channel, which weight standardisation "
                "would make zero: use group, layer or instance"
            )
    for _, layer in layers:
        # A change of class alone keeps parameters, hooks and every place where the layer is used.
        layer.__class__ = _STANDARDISED[type(layer)]
        vars(layer)["standardisation"] = standardisation


def fold_weights(layers: Iterable[nn.Module]) -> None:
    """Make layers that standardise their weights plain ones that hold Ŵ, in place: for inference.

    Other layers stay as they are.
    """
    plain = {standardised: kind for kind, standardised in _STANDARDISED.items()}
    for layer in layers:
        if type(layer) in plain:
            standardisation: Standardisation = vars(layer).pop("standardisation")
            with torch.no_grad():
                weight = layer.get_parameter("weight")
                weight.copy_(standardisation(weight))
            layer.__class__ = plain[type(layer)]

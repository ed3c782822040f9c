"""Stacked model: several clients' models side by side, in groups of channels that do not mix.

Axes: K clients, B batch, C channels. Each parameter has K C in the place of C along its first axis,
each batch K C channels, client after client. Layers that work channel by channel (BN, activations,
pooling) then work client by client, unchanged; convolutions get groups; only linear layers need a
forward of their own. The gradient of the sum of losses is each client's own.
"""

import copy
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from securefl.errors import DataError
from securefl.models.layers import Joined, Shortcut
from securefl.norms.standardised_input import StandardisedInput
from securefl.norms.weight_standardization import Convolution, Standardisation, StandardisedLinear


@final
class StackedLinear(nn.Linear):
    """K linear layers side by side; `weight` is (K Cout, Cin)."""

    n_clients: int
    standardisation: Standardisation | None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        """Map (B, K Cin) to (B, K Cout)."""
        weight = self.standardisation(self.weight) if self.standardisation else self.weight
        x_BKC = input.unflatten(1, (self.n_clients, -1))
        weight_KCC = weight.unflatten(0, (self.n_clients, -1))
        # W x and not xᵀ Wᵀ, so that the gradient has the layout of W.
        y_KCB = torch.bmm(weight_KCC, x_BKC.permute(1, 2, 0))
        y: Tensor = y_KCB.permute(2, 0, 1).flatten(1)
        return y if self.bias is None else y + self.bias.to(y.dtype)  # as under autocast


def stacked(model: nn.Module, n_clients: int) -> nn.Module:
    """Build one model of `n_clients` copies of a model side by side, with the same names.

    Raises:
        DataError: a layer is of a kind that is not known side by side, or draws at random.
    """
    names = dict(model.named_parameters())
    if len(names) < len(list(model.named_parameters(remove_duplicate=False))):
        raise DataError("two of the model's layers share a parameter")
    model = copy.deepcopy(model)
    for name, layer in model.named_modules():
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            raise DataError(f"layer {name!r} draws at random")
        if isinstance(layer, Shortcut | Joined):
            layer.n_groups *= n_clients
        elif any(True for _ in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
            _stack(name, layer, n_clients)
    return model


def _stack(name: str, layer: nn.Module, n_clients: int) -> None:
    if type(layer) in (nn.Linear, StandardisedLinear):
        standardisation = layer.standardisation if isinstance(layer, StandardisedLinear) else None
        vars(layer).update(n_clients=n_clients, standardisation=standardisation)
        # A change of class alone keeps the layer's name, hooks and parameters.
        layer.__class__ = StackedLinear
    elif isinstance(layer, Convolution):
        # Groups keep clients apart, so the weight has the input channels of one client's layer.
        layer.groups *= n_clients
        layer.in_channels *= n_clients
        layer.out_channels *= n_clients
    elif isinstance(layer, _NormBase):
        layer.num_features *= n_clients
    elif isinstance(layer, nn.GroupNorm):
        layer.num_groups *= n_clients
        layer.num_channels *= n_clients
    elif not isinstance(layer, StandardisedInput):
        kind = type(layer).__name__
        raise DataError(f"layer {name!r} is a {kind}, which is not known side by side")
    own_values = (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
    if any(not value.dim() and value.is_floating_point() for value in own_values):
        raise DataError(f"layer {name!r} has a single number of its own")
    for own, parameter in list(layer.named_parameters(recurse=False)):
        value = repeated(parameter.detach(), n_clients)
        setattr(layer, own, nn.Parameter(value, parameter.requires_grad))
    for own, buffer in list(layer.named_buffers(recurse=False)):
        setattr(layer, own, repeated(buffer, n_clients))


def repeated(value: Tensor, n_clients: int) -> Tensor:
    """Repeat a tensor for every client; a tensor without dimensions stays."""
    if not value.dim():
        return value
    return value.repeat(n_clients, *(1,) * (value.dim() - 1))


def parts(value: Tensor, n_clients: int) -> Tensor:
    """Return a view of a stacked tensor with clients along the first axis."""
    if not value.dim():
        return value.expand(n_clients)
    of: Tensor = value.unflatten(0, (n_clients, value.shape[0] // n_clients))
    return of


def side_by_side(x_KB: list[Tensor]) -> Tensor:
    """Join batches of the same shape (B, C, ...) into one of shape (B, K C, ...)."""
    return torch.stack(x_KB, dim=1).flatten(1, 2)

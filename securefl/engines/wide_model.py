"""A model of several clients side by side: as many times as wide, in groups that do not meet.

Axes: K clients, B batch, C channels. Each parameter has K C in the place of C along its first axis,
each batch K C channels, client after client. What works channel by channel (BN, activations,
pooling) then works client by client, with the code that it always had; convolutions have groups;
linear layers alone need a forward of their own. A sum of the clients' losses has each client's own
gradients.
"""

from __future__ import annotations

import copy
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from securefl.errors import DataError
from securefl.models.resnet import Shortcut
from securefl.norms.standardised import Convolution, StandardisedLinear, standardised

_EXACT, _TOLERANCE = torch.float64, 1e-9
_SCALES = (1, 64)
"""Of the samples that a model is tried with: it may do to large ones what it does not to small."""


@final
class WideLinear(nn.Linear):
    """K linear layers; `weight` is (K Cout, Cin)."""

    n_clients: int
    standardised: bool

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        """(B, K Cin) to (B, K Cout)."""
        weight = standardised(self.weight) if self.standardised else self.weight
        x_BKC = input.unflatten(1, (self.n_clients, -1))
        weight_KCC = weight.unflatten(0, (self.n_clients, -1))
        # W x and not xᵀ Wᵀ, so that the gradient has the layout of W.
        y_KCB = torch.bmm(weight_KCC, x_BKC.permute(1, 2, 0))
        y: Tensor = y_KCB.permute(2, 0, 1).flatten(1)
        return y if self.bias is None else y + self.bias.to(y.dtype)  # as under autocast


def wide(model: nn.Module, n_clients: int) -> nn.Module:
    """`n_clients` copies of a model side by side, in one model of the same names.

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
        if isinstance(layer, Shortcut):
            layer.n_groups *= n_clients
        elif any(True for _ in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
            _widen(name, layer, n_clients)
    return model


def _widen(name: str, layer: nn.Module, n_clients: int) -> None:
    if type(layer) in (nn.Linear, StandardisedLinear):
        vars(layer).update(n_clients=n_clients, standardised=type(layer) is StandardisedLinear)
        layer.__class__ = WideLinear
    elif isinstance(layer, Convolution):
        layer.groups *= n_clients
        layer.in_channels *= n_clients
        layer.out_channels *= n_clients
    elif isinstance(layer, _NormBase):
        layer.num_features *= n_clients
    elif isinstance(layer, nn.GroupNorm):
        layer.num_groups *= n_clients
        layer.num_channels *= n_clients
    else:
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
    """The same for every client; a number alone is of all of them."""
    if not value.dim():
        return value
    return value.repeat(n_clients, *(1,) * (value.dim() - 1))


def parts(value: Tensor, n_clients: int) -> Tensor:
    """A view of a wide tensor with clients along the first axis."""
    if not value.dim():
        return value.expand(n_clients)
    of: Tensor = value.unflatten(0, (n_clients, value.shape[0] // n_clients))
    return of


def side_by_side(x_KB: list[Tensor]) -> Tensor:
    """Batches of the same shape (B, C, ...) as one of shape (B, K C, ...)."""
    return torch.stack(x_KB, dim=1).flatten(1, 2)


def require_separate(model: nn.Module, x: Tensor) -> None:
    """Raise DataError unless two clients side by side compute what each computes alone.

    Args:
        model: not changed.
        x: a few samples.
    """
    for scale in _SCALES:
        _require_separate(model, scale * x.to("cpu", _EXACT))


def _require_separate(model: nn.Module, x: Tensor) -> None:
    rng = torch.Generator().manual_seed(0)
    both, alone = two_clients(model, rng)
    try:
        with torch.random.fork_rng([]):
            together, apart = _both_ways(both, alone, x, rng)
    except DataError:
        raise
    except Exception as error:  # a user's forward may raise anything
        raise DataError(
            f"its forward does not run side by side in double precision ({error})"
        ) from error
    if not all(torch.isfinite(value).all() for value in apart):
        raise DataError("of the first client's samples it makes values that are not finite")
    for one, other in zip(together, apart, strict=True):
        if one.shape != other.shape or not torch.allclose(
            one, other, rtol=_TOLERANCE, atol=_TOLERANCE
        ):
            raise DataError("it mixes channels beyond its layers")


def two_clients(model: nn.Module, rng: torch.Generator) -> tuple[nn.Module, list[nn.Module]]:
    """Two clients of other parameters, side by side and each alone, on the CPU.

    In double precision, so that what is left of a difference is none of rounding.

    Raises:
        DataError: as `wide`.
    """
    both = wide(model, 2).to("cpu", _EXACT)
    alone = [copy.deepcopy(model).to("cpu", _EXACT) for _ in range(2)]
    with torch.no_grad():
        for name, parameter in both.named_parameters():
            parameter.add_(torch.rand(parameter.shape, generator=rng, dtype=_EXACT), alpha=0.1)
            for one, value in zip(alone, parts(parameter, 2), strict=True):
                one.get_parameter(name).copy_(value)
    return both, alone


def _both_ways(
    both: nn.Module, alone: list[nn.Module], x: Tensor, rng: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and gradients of two clients side by side, and of each alone."""
    for one in (both, *alone):
        one.train()
    # Apart by noise, since samples that are alike would hide what looks at several.
    batches = [of + torch.rand(of.shape, generator=rng, dtype=_EXACT) for of in (x, x.flip(0) + 1)]
    drawn = torch.get_rng_state()
    together = both(side_by_side(batches))
    apart = side_by_side([one(x) for one, x in zip(alone, batches, strict=True)])
    if not torch.equal(drawn, torch.get_rng_state()):
        raise DataError("its forward draws at random")
    towards = torch.rand(apart.shape, generator=rng, dtype=_EXACT)
    trained = [name for name, p in both.named_parameters() if p.requires_grad]
    of_both = torch.autograd.grad(
        (together * towards).sum(), [both.get_parameter(n) for n in trained], allow_unused=True
    )
    of_each = [
        torch.autograd.grad(
            (apart * towards).sum(),
            [one.get_parameter(n) for n in trained],
            allow_unused=True,
            retain_graph=True,
        )
        for one in alone
    ]
    of_alone = [
        None if first is None else torch.cat([first, second])
        for first, second in zip(*of_each, strict=True)
    ]
    if [g is None for g in of_both] != [g is None for g in of_alone]:
        raise DataError("its parameters have no gradients of their own")
    return (
        [together, *(g for g in of_both if g is not None)],
        [apart, *(g for g in of_alone if g is not None)],
    )

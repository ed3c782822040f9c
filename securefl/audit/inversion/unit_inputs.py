"""Inputs that single units of a first linear layer show, in a sum of the gradients of many samples.

With δ_s the gradient of sample s for the layer's output, unit m has dW_m = Σ_s δ_sm x_s and
db_m = Σ_s δ_sm, where δ_sm is zero if the ReLU behind was off. So dW_m / db_m is an input where one
sample alone had the unit on. If the model has one output, or a difference of two, behind one hidden
layer, δ_sm is e_s v_m wherever the unit was on, with v known: then units m and m' that were on for
the same samples but one have that sample in dW_m / v_m - dW_m' / v_m'.

Whether it is a sample's input or a mixture of several, an attacker sees: the model says which
gradient this input would have had, and that must be the one it was found with.

Axes: M units, D features, R inputs that are tried, L labels of the samples in the sum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, vmap

from securefl.audit.inversion.first_layer import first_linear
from securefl.audit.inversion.sample_kind import Ranges, inside
from securefl.audit.inversion.target import (
    Assumed,
    Gradient,
    Statistics,
    Target,
    batch_gradient,
    normalised_output,
)

SAME = 1e-3
"""Length of a difference, in units of the features, up to which two inputs are the same."""
CLEAR = 1e-4
"""Share of the largest db below which one is rounding."""
FIT, FIT_TWICE, FIT_MOVED = 1e-4, 1e-3, 0.3
"""Share by which an input's gradient may differ from the one that it was found with: found once,
found twice or more often, and found twice after several steps, in which the model moves."""
ROUNDING = 1e-6
"""Rounding of a sum in single precision, as a share of its largest addend."""
MOST_UNITS, MOST_PREDICTED = 200, 2 * 10**6
"""Number of units that are compared with each other, and of gradients that are predicted."""
MOST_VALUES = 2 * 10**7
"""Number of values of gradients that are in memory at a time."""
N_PROBES = 64
"""Public samples that show v."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class FirstLayer:
    """First linear layer of a model that constants normalise, as an attacker knows it."""

    target: Target
    name: str
    given: Statistics
    v_M: Tensor | None
    """Gradient of the output for the layer's, where a unit is on. None where it differs between
    samples: the model has several outputs, or more than a ReLU behind the layer."""

    def sides(self, gradients: Gradient) -> tuple[Tensor, Tensor]:
        """Return the gradients of its weight and of its bias."""
        front = f"{self.name}." if self.name else ""  # a model may be the layer itself
        return gradients[f"{front}weight"], gradients[f"{front}bias"]


def known_first_layer(target: Target, given: Statistics | None) -> FirstLayer | None:
    """Return the layer that gets the inputs themselves, if the model has one.

    Samples that BN normalises together, `given` being None, have no v.
    """
    name = first_linear(target.model, target.public[0][:2])
    if name is None:
        return None
    layer = FirstLayer(target, name, given or {}, None)
    probes = target.public[0][:N_PROBES]
    numbers = target.public[1].is_floating_point()
    n_outputs = _output(layer, probes[:2])[0].numel()
    if given is None or n_outputs > (1 if numbers else 2):
        return layer
    each_RM = torch.stack([_output_gradient(layer, x) for x in probes])
    v_M = each_RM.gather(0, each_RM.abs().argmax(0, keepdim=True))[0]
    largest = v_M.abs().max()
    off_RM = torch.where(each_RM.abs() > 1e-6 * largest, (each_RM - v_M).abs(), 0.0)
    steady = bool(off_RM.max() <= 1e-4 * largest)
    return FirstLayer(target, name, given or {}, v_M.double() if steady else None)


@final
@dataclass(frozen=True, slots=True)
class Share:
    """Factor of one sample's gradient in a sum."""

    value: float
    one_step: bool = True
    """False where gradients are at models that moved from the one that is known."""


def inputs_shown(
    layer: FirstLayer,
    weight_MD: Float[Tensor, "M D"],
    bias_M: Float[Tensor, " M"],
    y: Tensor,
    share: Share,
    ranges: Ranges,
) -> Float[Tensor, "R D"]:
    """Return inputs that units show and that the model takes for a sample's, the surest first.

    Args:
        layer: `known_first_layer`.
        weight_MD: the sum of all samples' dW.
        bias_M: that of db.
        y: the targets of all samples in it.
        share: of one sample's gradient in the sum.
        ranges: of the features.
    """
    weight_MD, bias_M = weight_MD.double() / share.value, bias_M.double() / share.value
    pairs = layer.v_M is not None and share.one_step
    if layer.v_M is None or not share.one_step:
        x_RD, size_R, unit_R = _of_units(weight_MD, bias_M)
    else:
        x_RD, size_R, unit_R = _of_pairs(layer.v_M, weight_MD, bias_M)
    x_RD = x_RD.to(ranges.unit_D.dtype)
    labels = torch.unique(y, dim=0)
    in_R = (inside(x_RD, ranges) | share.one_step).nonzero()[:, 0]
    in_R = in_R[size_R[in_R].argsort(descending=True, stable=True)][: MOST_PREDICTED // len(labels)]
    x_RD, size_R, unit_R = x_RD[in_R], size_R[in_R], unit_R[in_R]
    if not len(x_RD):
        return x_RD
    predicted = _outputs_slopes if pairs else _units_slopes
    slope_RL = predicted(layer, x_RD, labels, unit_R).double().abs()
    off_R = (slope_RL / size_R[:, None] - 1).abs().amin(1)
    off_R = off_R / (1 + ROUNDING * size_R.max() / (size_R * FIT))
    order = off_R.argsort(stable=True)
    order = order[off_R[order] <= (FIT_TWICE if share.one_step else FIT_MOVED)]
    found = [
        x_D
        for x_D, times, off in _different(x_RD[order], off_R[order], ranges)
        if times > 1 or (share.one_step and off <= FIT)
    ]
    return torch.stack(found) if found else x_RD[:0]


def _of_units(weight_MD: Tensor, bias_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return dW / db, |db| and the number of each unit that was on."""
    unit_R = (bias_M.abs() > CLEAR * bias_M.abs().max()).nonzero()[:, 0]
    return weight_MD[unit_R] / bias_M[unit_R, None], bias_M[unit_R].abs(), unit_R


def _of_pairs(v_M: Tensor, weight_MD: Tensor, bias_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same of all pairs of units, with a unit among them that is never on."""
    unit_M = v_M.abs().argsort(descending=True, stable=True)[:MOST_UNITS]
    unit_M = unit_M[v_M[unit_M].abs() > CLEAR * v_M.abs().max()]
    zero = v_M.new_zeros(1, weight_MD.shape[1])
    sum_MD = torch.cat([zero, weight_MD[unit_M] / v_M[unit_M, None]])
    e_M = torch.cat([zero[0, :1], bias_M[unit_M] / v_M[unit_M]])
    one_R, other_R = torch.triu_indices(len(e_M), len(e_M), offset=1)
    apart_R = e_M[one_R] - e_M[other_R]
    clear_R = apart_R.abs() > CLEAR * e_M.abs().max()
    one_R, other_R, apart_R = one_R[clear_R], other_R[clear_R], apart_R[clear_R]
    return (sum_MD[one_R] - sum_MD[other_R]) / apart_R[:, None], apart_R.abs(), one_R


def _outputs_slopes(layer: FirstLayer, x_RD: Tensor, y_L: Tensor, _unit_R: Tensor) -> Tensor:
    """Return ∂loss/∂output of each input with each label, of the single output, shape (R, L)."""
    loss = layer.target.loss
    output_R = _output(layer, x_RD.reshape(-1, *layer.target.client[0].shape[1:]))

    def slope(output: Tensor, y: Tensor) -> Tensor:
        found: Tensor = grad(lambda output: loss(output[None], y[None]))(output)
        return found.reshape(-1)[-1]

    # One vmap over all pairs: in one within another, torch's mse_loss gets its sizes wrong.
    pairs = vmap(slope)(output_R.repeat_interleave(len(y_L), 0), _again(y_L, len(output_R)))
    return pairs.reshape(len(output_R), len(y_L))


def _again(values: Tensor, times: int) -> Tensor:
    return values.repeat(times, *(1,) * (values.dim() - 1))


def _units_slopes(layer: FirstLayer, x_RD: Tensor, y_L: Tensor, unit_R: Tensor) -> Tensor:
    """Return db of its unit for each input with each label, shape (R, L)."""
    target = layer.target
    parameters = {
        name: p.detach() for name, p in target.model.named_parameters() if p.requires_grad
    }
    x_R = x_RD.reshape(-1, *target.client[0].shape[1:])

    def slope(x: Tensor, y: Tensor, unit: Tensor) -> Tensor:
        assumed = Assumed(layer.given)
        found, _ = batch_gradient(target.model, parameters, x[None], y[None], assumed, target.loss)
        return layer.sides(found)[1].gather(0, unit[None])[0]

    size = max(1, MOST_VALUES // (len(y_L) * sum(p.numel() for p in parameters.values())))
    each = vmap(vmap(slope, in_dims=(None, 0, None)), in_dims=(0, None, 0))
    chunks = zip(x_R.split(size), unit_R.split(size), strict=True)
    return torch.cat([each(x, y_L, unit) for x, unit in chunks])


def _different(x_RD: Tensor, off_R: Tensor, ranges: Ranges) -> Iterator[tuple[Tensor, int, float]]:
    """Yield each input once, with how often it was found and the least that it is off."""
    while len(x_RD):
        far_R = ((x_RD - x_RD[0]) / ranges.unit_D).norm(dim=1)
        yield x_RD[0], int((far_R <= SAME).sum()), float(off_R[0])
        x_RD, off_R = x_RD[far_R > SAME], off_R[far_R > SAME]


def _output(layer: FirstLayer, x: Tensor) -> Tensor:
    parameters = dict(layer.target.model.named_parameters())
    with torch.no_grad():
        found, _ = normalised_output(layer.target.model, parameters, x, Assumed(layer.given))
    return found


def _output_gradient(layer: FirstLayer, x: Tensor) -> Tensor:
    """Return the gradient of the single output of one sample for the layer's output, shape (M,)."""
    target = layer.target
    parameters = {
        name: p.detach() for name, p in target.model.named_parameters() if p.requires_grad
    }

    def single(output: Tensor, _y: Tensor) -> Tensor:
        flat = output.reshape(-1)  # one output, or two of which the difference counts
        return flat[-1] - flat[:-1].sum()

    y = target.public[1][:1]
    found, _ = batch_gradient(target.model, parameters, x[None], y, Assumed(layer.given), single)
    return layer.sides(found)[1]

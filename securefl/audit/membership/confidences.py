"""How sure a model is of what samples truly are: all that membership attacks go by.

Of a sample with label y the model says p = Pr(y | x). Attacks go by φ = log(p / (1 - p)), which is
about normal over models (Carlini et al., IEEE S&P 2022, section V). All else follows from it: the
loss is log(1 + e^-φ), without cancellation even where p is 1 in floating point.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss
from securefl.data.samples import Samples, in_order
from securefl.errors import DataError

LARGEST = 700.0
"""Of |φ|: beyond, p or 1 - p is no number in float64."""
Phi: TypeAlias = NDArray[np.float64]


def confidences(model: nn.Module, data: Samples, loss: Loss) -> Phi:
    """φ of each sample, shape (samples,), within ±700; the model is left in evaluation mode.

    Of a classifier that gives one label for a sample p is its softmax, whatever it was trained by.
    Of any other model p = e^-loss: for mean squared errors the likelihood under normal noise, up to
    its scale.

    Raises:
        DataError: the model gives no numbers, or the loss of a sample is negative.
    """
    model.eval()
    device = next(model.parameters()).device
    found = []
    with torch.no_grad():
        for batch in in_order(data):
            x, y = (tensor.to(device) for tensor in batch)
            found.append(_batch(model(x), y, loss).to("cpu", torch.float64).numpy())
    phi_S = np.concatenate(found)
    if np.isnan(phi_S).any():
        raise DataError("the model's output is not a number for some sample: it has diverged")
    return _bounded(phi_S)


def of_losses(losses: ArrayLike) -> Phi:
    """φ where p = e^-loss: -loss - log(1 - e^-loss), within ±700.

    Raises:
        DataError: a loss below zero, which is no probability's.
    """
    loss = np.asarray(losses, dtype=np.float64)
    if not (loss >= 0).all():
        raise DataError("a sample's loss is negative or not a number: e^-loss is no probability")
    with np.errstate(divide="ignore"):
        return _bounded(-loss - np.log(-np.expm1(-loss)))


def losses(phi: Phi) -> Phi:
    """-log p = log(1 + e^-φ), of any shape."""
    found: Phi = np.logaddexp(0.0, -phi)
    return found


def _bounded(phi: Phi) -> Phi:
    return np.clip(phi, -LARGEST, LARGEST)


def _batch(output: Any, y: Tensor, loss: Loss) -> Tensor:
    if isinstance(output, Tensor) and output.dim() == 2 and y.dim() == 1:
        return _of_logits(output.double(), y)
    each = [float(loss(output[i : i + 1], y[i : i + 1])) for i in range(len(y))]
    return torch.from_numpy(of_losses(each))


def _of_logits(logit_BC: Tensor, y_B: Tensor) -> Tensor:
    """As log p - log(1 - p) = z_y - log Σ_{c ≠ y} e^{z_c}: nothing that is near 1 is subtracted."""
    own_B = logit_BC.gather(1, y_B[:, None])[:, 0]
    return own_B - logit_BC.scatter(1, y_B[:, None], -torch.inf).logsumexp(dim=1)

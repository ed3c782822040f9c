"""Guess of a sample from its label: what an attacker has who sees no gradient.

Axes: N mini-batches, B samples, D features, K classes or, of targets that are numbers, values of a
target and one.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, slots=True, eq=False)
class LabelGuess:
    """Mean public sample of a class; of targets that are numbers, the line through public samples.

    Of other targets, such as a class for each pixel, it is the mean public sample.
    """

    mean_D: Tensor
    """Mean public sample, for who does not know the label."""
    by_label_KD: Tensor
    """Means of classes; for targets that are numbers slopes, and what a target of zeros has."""

    @classmethod
    def of(cls, x: Tensor, y: Tensor, n_classes: int) -> "LabelGuess":
        """Fit public samples; a class that has none of them is guessed as their mean."""
        x_nD = x.flatten(1).double()
        mean_D = x_nD.mean(0)
        if y.is_floating_point():
            code_nK = _with_one(y.double().reshape(len(y), -1))
            line_KD = torch.linalg.lstsq(code_nK, x_nD, driver="gelsd").solution
            return cls(mean_D.to(x.dtype), line_KD.to(x.dtype))
        n_classes = n_classes if y.dim() == 1 else 0
        of = [x_nD[y == k].mean(0) if (y == k).any() else mean_D for k in range(n_classes)]
        return cls(mean_D.to(x.dtype), torch.stack([*of, mean_D]).to(x.dtype))

    def __call__(self, y_NB: Tensor) -> Tensor:
        """Return the guess for each target, shape (N, B, D); targets of shape (N, B, …)."""
        n, batch = y_NB.shape[:2]
        if y_NB.is_floating_point():
            return _with_one(y_NB.reshape(n, batch, -1)) @ self.by_label_KD
        if y_NB.dim() > 2:
            return self.mean_D.expand(n, batch, -1)
        return self.by_label_KD[y_NB]

    def of_each(self, y_B: Tensor) -> Tensor:
        """Return the guess for each target of one batch, shape (B, D)."""
        return self(y_B[None])[0]


def _with_one(code: Tensor) -> Tensor:
    """Return the values of targets with a one behind."""
    return torch.cat([code, torch.ones_like(code[..., :1])], dim=-1)

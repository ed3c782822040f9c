"""Samples whose gradient matches one that was seen.

Zhu et al., Deep Leakage from Gradients (NeurIPS 2019), with the cosine distance of Geiping et al.,
Inverting Gradients (NeurIPS 2020). In place of their total variation the prior is a Gaussian of
public samples about a guess from the label, which rows have as well and which is stronger. Labels
are known. The search goes by each feature in a unit of its own; a pixel's is its range.

Axes: N mini-batches, R restarts, P = N R problems, B batch, D features, K classes, C channels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from securefl.algorithms.algorithm import Loss
from securefl.audit.inversion.label_guess import LabelGuess
from securefl.audit.inversion.sample_kind import Ranges
from securefl.audit.inversion.target import Assumed, Beliefs, Gradient, Statistics, batch_gradient
from securefl.errors import DataError
from securefl.norms.find import batch_norm_layers

SAMPLE_RATE, STATISTICS_RATE = 0.05, 0.02
"""Adam's learning rates, that fall to zero along half a cosine."""
SLOWER = 0.1
"""Factor on free statistics' rate in every second restart: a perceptron's must go far, a
convolutional network's images are lost where they go too fast."""
PRIOR = 1e-3
"""Weight of the prior against a cosine distance of 0..2: it decides only what no gradient shows."""
START = (0.05, 0.3)
"""Standard deviation about the guess from the label of where restarts begin, in turn."""
SHRINKAGE = 0.1
"""Share by which the covariance of public samples is shrunk to a multiple of the identity."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Gaussian of public samples, about what the label lets one guess."""

    guess: LabelGuess
    precision_DD: Tensor
    """Inverse of the covariance, with each feature in its unit."""
    ranges: Ranges

    @classmethod
    def of(cls, x: Tensor, y: Tensor, n_classes: int, ranges: Ranges) -> "Prior":
        """Fit a guess from the label, and one covariance of what it leaves."""
        guess = LabelGuess.of(x, y, n_classes)
        unit_D = ranges.unit_D.double()
        rest_ND = (x.flatten(1).double() - guess.of_each(y).double()) / unit_D
        cov_DD = rest_ND.T @ rest_ND / len(rest_ND)
        d = len(cov_DD)
        level = SHRINKAGE * max(float(cov_DD.trace()) / d, 1e-6)
        cov_DD = (1 - SHRINKAGE) * cov_DD + level * torch.eye(d, dtype=torch.float64)
        return cls(guess, torch.linalg.inv(cov_DD).to(x.dtype), ranges)

    def distance(self, x_BD: Tensor) -> Tensor:
        """Return the squared Mahalanobis distance of samples from the mean of all, shape (B,)."""
        off_BD = (x_BD - self.guess.mean_D) / self.ranges.unit_D
        return ((off_BD @ self.precision_DD) * off_BD).sum(1)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SeenGradient:
    """Gradients, model and labels that all attackers have."""

    model: nn.Module
    """Model as the client got it: its weights are known."""
    gradients: Gradient
    """Gradients of N mini-batches, stacked: each of shape (N, …)."""
    y_NB: Tensor
    """Targets of each mini-batch, in any order."""
    shape: torch.Size
    """Shape of one input."""
    prior: Prior
    loss: Loss = functional.cross_entropy
    totals: Statistics = field(default_factory=dict)
    """Totals of FedTAN, each of shape (N, C): the server has them from all clients' gradients."""
    groups: Sequence[slice] = ()
    """Samples that are normalised together, where they are not all: of a sum of updates, whose
    groups weigh as many as they have."""

    def __post_init__(self) -> None:
        bad = sorted(k for k, v in self.gradients.items() if not v.isfinite().all())
        if bad or not self.gradients:
            raise DataError(
                f"the gradient of {', '.join(bad) or 'no parameter'} is not finite: take a round "
                "before the run was lost"
            )


@dataclass(frozen=True, slots=True)
class Search:
    """Length of a search."""

    steps: int
    restarts: int


def match(
    seen: SeenGradient,
    beliefs: Beliefs,
    search: Search,
    rng: torch.Generator,
    batch_statistics: Statistics | None = None,
) -> Tensor:
    """Return samples (N, B, *shape) in range: of the restarts, those of the smallest objective.

    `batch_statistics`, each of shape (N, C), are those that the mini-batches are known to have:
    the samples are also drawn to these (Yin et al., GradInversion, CVPR 2021).
    """
    (n, batch), ranges = seen.y_NB.shape[:2], seen.prior.ranges
    copies = search.restarts
    mean_PBD = seen.prior.guess(seen.y_NB).repeat_interleave(copies, 0)
    noise = torch.randn(mean_PBD.shape, generator=rng, dtype=mean_PBD.dtype)
    far_P = torch.tensor(START, dtype=noise.dtype)[torch.arange(copies) % len(START)].repeat(n)
    x = (
        (mean_PBD + far_P[:, None, None] * noise * ranges.unit_D)
        .clamp(ranges.low_D, ranges.high_D)
        .reshape(n * copies, batch, *seen.shape)
    )
    problem = _Problem(seen, mean_PBD, copies, beliefs, batch_statistics)
    x, objective_P = problem.solved(x, search.steps)
    best_N = objective_P.reshape(n, copies).argmin(1)
    return x.reshape(n, copies, batch, *seen.shape)[torch.arange(n), best_N]


Moves = Mapping[str, tuple[Tensor, Tensor]]
"""Differences of each layer's μ/σ and log σ from what was believed."""


class _Problem:
    """Objectives of P problems, solved side by side."""

    def __init__(
        self,
        seen: SeenGradient,
        mean_PBD: Tensor,
        copies: int,
        beliefs: Beliefs,
        batch_statistics: Statistics | None,
    ) -> None:
        def repeated(value: Tensor) -> Tensor:
            return value.detach().repeat_interleave(copies, 0)

        self.seen, self.mean_PBD = seen, mean_PBD
        self.parameters = {
            name: p.detach() for name, p in seen.model.named_parameters() if name in seen.gradients
        }
        self.y_PB = repeated(seen.y_NB)
        self.observed = {name: repeated(g) for name, g in seen.gradients.items()}
        self.beliefs: dict[str, tuple[Tensor, ...]] = {
            name: (
                repeated(belief.ratio_NC),
                repeated(belief.log_sigma_NC),
                repeated(belief.free_ratio_NC),
                repeated(belief.free_sigma_NC),
            )
            for name, belief in beliefs.items()
        }
        self.free = any(belief.free() for belief in beliefs.values())
        pace = torch.where(torch.arange(copies) % 2 == 0, SLOWER, 1.0)
        self.pace_P = pace.to(mean_PBD.dtype).repeat(len(seen.y_NB))
        known = batch_statistics or {}
        self.known = {name: (repeated(a), repeated(b)) for name, (a, b) in known.items()}
        totals = seen.totals.items()
        self.totals = {name: (repeated(a), repeated(b)) for name, (a, b) in totals}
        self.eps = {name: layer.eps for name, layer in batch_norm_layers(seen.model).items()}

    def solved(self, x: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Return the samples after so many steps of Adam, and their objectives."""
        ranges, shape = self.seen.prior.ranges, self.seen.shape
        unit, low, high = (
            side_D.reshape(shape)
            for side_D in (
                ranges.unit_D,
                ranges.low_D / ranges.unit_D,
                ranges.high_D / ranges.unit_D,
            )
        )
        x = (x / unit).requires_grad_()
        moves = {
            name: (torch.zeros_like(b[0]).requires_grad_(), torch.zeros_like(b[0]).requires_grad_())
            for name, b in self.beliefs.items()
            if self.free
        }
        variables = [x, *(one for pair in moves.values() for one in pair)]
        groups = [{"params": variables[:1], "lr": SAMPLE_RATE}]
        groups += [{"params": variables[1:], "lr": STATISTICS_RATE}] if self.free else []
        adam = torch.optim.Adam(groups)
        fall = torch.optim.lr_scheduler.LambdaLR(
            adam, lambda step: 1e-3 + (1 + math.cos(math.pi * min(1, step / steps))) / 2
        )
        for _ in range(steps):
            gradients = torch.autograd.grad(self._objectives(unit * x, moves).sum(), variables)
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.grad = gradient.nan_to_num(0.0)
            adam.step()
            fall.step()
            with torch.no_grad():
                x.clamp_(low, high)
        x = (unit * x).detach()
        return x, self._objectives(x, moves).detach().nan_to_num(math.inf)

    def _objectives(self, x: Tensor, moves: Moves) -> Tensor:
        common = (self.y_PB, self.mean_PBD, self.observed, self.beliefs)
        assumed = (self._paced(moves), self.known, self.totals)
        found: Tensor = vmap(self._objective)(x, *common, *assumed)
        return found

    def _paced(self, moves: Moves) -> Moves:
        pace_P1 = self.pace_P[:, None]
        return {name: (pace_P1 * a, pace_P1 * b) for name, (a, b) in moves.items()}

    def _objective(  # noqa: PLR0913, PLR0917 -- what `vmap` maps over
        self,
        x: Tensor,
        y_B: Tensor,
        mean_BD: Tensor,
        observed: Gradient,
        beliefs: Mapping[str, tuple[Tensor, ...]],
        moves: Moves,
        known: Statistics,
        totals: Statistics,
    ) -> Tensor:
        given = {
            name: _statistics(belief, moves.get(name), self.eps[name])
            for name, belief in beliefs.items()
        }
        assumed = Assumed(given, totals)
        gradient, own = self._gradient(x, y_B, assumed)
        found = cosine_distance(gradient, observed)
        for name, (mu_C, var_C) in known.items():
            at_C = var_C + self.eps[name]
            far_C = (own[name][0] - mu_C).square() / at_C
            found = found + (far_C + ((own[name][1] - var_C) / at_C).square()).mean() / len(known)
        off_BD = (x.flatten(1) - mean_BD) / self.seen.prior.ranges.unit_D
        return found + PRIOR * ((off_BD @ self.seen.prior.precision_DD) * off_BD).mean()

    def _gradient(self, x: Tensor, y_B: Tensor, assumed: Assumed) -> tuple[Gradient, Statistics]:
        """Return the gradient of all groups, and the statistics of the first."""
        model, loss = self.seen.model, self.seen.loss
        parts = [
            batch_gradient(model, self.parameters, x[group], y_B[group], assumed, loss)
            for group in self.seen.groups or [slice(None)]
        ]
        if len(parts) == 1:
            return parts[0]
        shares = [group.stop - group.start for group in self.seen.groups]
        return {
            name: sum(
                (share * part[name] for share, (part, _) in zip(shares, parts, strict=True)),
                torch.zeros_like(self.parameters[name]),
            )
            for name in self.parameters
        }, parts[0][1]


def cosine_distance(gradient: Gradient, observed: Gradient) -> Tensor:
    """Return 1 - cos of the angle between both gradients; 1 where the observed one is zero."""
    dot = torch.stack([(gradient[name] * observed[name]).sum() for name in observed]).sum()
    squares = [
        torch.stack([side[name].square().sum() for name in observed]).sum()
        for side in (gradient, observed)
    ]
    return 1 - dot * torch.rsqrt(squares[0] * squares[1] + 1e-30)


def _statistics(
    belief: tuple[Tensor, ...], move: tuple[Tensor, Tensor] | None, eps: float
) -> tuple[Tensor, Tensor]:
    ratio_C, log_sigma_C, free_ratio_C, free_sigma_C = belief
    if move is not None:
        ratio_C = ratio_C + free_ratio_C * move[0]
        log_sigma_C = log_sigma_C + free_sigma_C * move[1]
    sigma_C = log_sigma_C.exp()
    return ratio_C * sigma_C, (sigma_C.square() - eps).clamp_min(0.0)

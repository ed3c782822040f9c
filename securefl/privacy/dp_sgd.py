"""DP-SGD (Abadi et al., CCS 2016, Algorithm 1) under any solver that takes one gradient a step.

    sample   each record of the client, by itself, with probability q = B / N
    g        (Σ_i clip(∇ℓ_i, C) + N(0, σ²C² I)) / B

What a solver adds to a gradient and what an optimiser makes of it are computed from such sums, and
cost nothing more. B and N are public: the size of a sample and of the data set show nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor, nn

from securefl.algorithms.rng_isolation import seeded_layers
from securefl.algorithms.solvers.solver import (
    End,
    ExtraLoss,
    LocalSession,
    LocalSolver,
    Start,
    StepContext,
)
from securefl.errors import ConfigError
from securefl.privacy.clipped import Quantile
from securefl.privacy.clipping import ClippedGradients, Clipping
from securefl.privacy.randomness import Randomness, RandomnessOf, noisy
from securefl.types import NamedTensors

CLIP = "privacy/clip"
"""Name of the clip norm C in a client's state, where clipping adapts."""


@final
@dataclass(frozen=True, slots=True)
class PrivateStep:
    """Clip norm, noise and sampling that make a step's gradient private; every number is public."""

    sigma: float
    """Noise multiplier that a step costs."""
    clip: float
    """Clip norm C; where it adapts, the first."""
    clipping: Clipping
    sample_rate: float
    """Sampling rate q in (0, 1]."""
    batch: int
    """Expected size B of a sample."""
    quantile: Quantile | None = None
    """Quantile that C follows, within each client's own steps."""


@final
@dataclass(frozen=True, slots=True)
class DpSgd:
    """A solver whose steps go along private gradients."""

    solver: LocalSolver
    step: PrivateStep
    randomness: RandomnessOf

    def control(self, model: nn.Module) -> NamedTensors:
        """Return the solver's control tensors."""
        return self.solver.control(model)

    def begin(self, start: Start) -> _Session:
        """Begin the solver's session, of gradients that are private."""
        work = start.work
        kept = work.client_state.solver.get(CLIP)
        private = _PrivateGradients(
            start,
            self.step,
            self.randomness(work.rng),
            ClippedGradients(work.model, work.loss, self.step.clipping),
            self.step.clip if kept is None else float(kept),
        )
        session = self.solver.begin(replace(start, from_data=private))
        return _Session(session, private)


@dataclass(slots=True)
class _PrivateGradients:
    start: Start
    step: PrivateStep
    randomness: Randomness
    clipped: ClippedGradients
    clip: float
    spent: bool = False
    """The gradient that this step costs is taken."""
    device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        self.device = next(self.start.work.model.parameters()).device

    def __call__(self, around: StepContext, beside: ExtraLoss | None) -> None:
        """Compute one step's private gradient."""
        if beside:
            raise ConfigError(
                "the solver adds a term of its own to the loss, whose gradient no clip bounds: "
                'use another with DP-SGD, solver.name = "sgd" for example'
            )
        if self.spent:
            raise ConfigError(
                "the solver takes two gradients in a step, and DP-SGD counts the noise of one: use "
                'another with privacy.level = "record"; one of your own says so by a reason in '
                "its class's second_gradient"
            )
        self.spent = True
        step, x_y = self.step, self._sample()
        with around(), seeded_layers(self.device, self.randomness.layer_seed()):
            found = self.clipped.sum_of(*x_y, self.clip)
        quantile = step.quantile
        deviation = (quantile.sum_sigma if quantile else step.sigma) * self.clip
        for name, parameter in self.start.parameters.items():
            parameter.grad = noisy(found.sums[name], self.randomness, deviation) / step.batch
        if quantile:
            excess = found.n_within - len(x_y[0]) / 2
            excess += float(self.randomness.gaussian(1, quantile.count_deviation)[0])
            self.clip = quantile.followed(self.clip, excess)

    def _sample(self) -> tuple[Tensor, Tensor]:
        """Draw a Poisson sample of the client's records; it may be empty."""
        data = self.start.work.data
        chosen = self.randomness.uniform(len(data)) < self.step.sample_rate
        index = torch.from_numpy(chosen.nonzero()[0])
        n = len(index)
        x, y = data.take(index if n else torch.arange(1))  # a Dataset can make no empty batch
        return x[:n].to(self.device), y[:n].to(self.device)


@dataclass(frozen=True, slots=True)
class _Session:
    session: LocalSession
    private: _PrivateGradients

    def gradients(self, around: StepContext) -> None:
        self.private.spent = False
        self.session.gradients(around)

    def end(self) -> End:
        end = self.session.end()
        if self.private.step.quantile is None:
            return end
        clip = torch.tensor(self.private.clip, dtype=torch.float64)
        return replace(end, client_state={**end.client_state, CLIP: clip})

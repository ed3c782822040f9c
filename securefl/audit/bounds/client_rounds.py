"""A round of canary clients through the run's own client-level privacy.

Each client's update is a direction at random, longer than the clip norm, so that it is always
clipped (Andrew et al., ICLR 2024). All of it is known but the noise: what is left of the
total when the clipped directions are taken off is the noise itself, and its size can be measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

# scipy has no type information of its own.
from scipy.stats import chi2, norm  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor, nn

from securefl.algorithms.algorithm import Sgd, Work
from securefl.audit.statistics import Interval, too_far
from securefl.build.privacy import client_level
from securefl.data.samples import samples
from securefl.errors import DataError
from securefl.exchange.sums import Exchange
from securefl.privacy.client_level import ClientLevel
from securefl.settings.axes import REFINEMENTS, SELECTORS
from securefl.settings.tables import Config
from securefl.types import Contribution, Kind, Memory, MessageSpec, Plan, State, Total

Vector = NDArray[np.float64]
TOO_LONG = (1.5, 50.0)
"""Times the clip norm: the shortest and the longest canary."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class CanaryRound:
    """One released total, and what went into it; in units of the clip norm."""

    directions: Vector
    """Of length 1, shape (k, d)."""
    included: NDArray[np.bool_]
    """Shape (k,); a client that is not contributes its noise alone."""
    released: Vector
    """The sum of the clipped updates with the noise of all, shape (d,)."""
    promised: float
    """Deviation of the noise, of clients none of whom is missing."""

    @property
    def cosines(self) -> Vector:
        """Of each direction with what was released, shape (k,)."""
        return self.directions @ self.released / np.linalg.norm(self.released)

    @property
    def left(self) -> Vector:
        """The noise: what the clipped directions leave of the total."""
        left: Vector = self.released - self.directions[self.included].sum(axis=0)
        return left

    def noise(self, confidence: float) -> Interval:
        """The noise's deviation, by χ²."""
        squares, d, tail = float(self.left @ self.left), len(self.released), (1 - confidence) / 2
        low, high = (sqrt(squares / chi2.ppf(p, d)) for p in (1 - tail, tail))
        return Interval(sqrt(squares / d), low, high)

    def uneven(self, confidence: float) -> bool:
        """Whether some tensor's noise is not N(0, promised²), by the distance of distributions."""
        parts = np.split(self.left, _ends(len(self.released)))
        alpha = (1 - confidence) / len(parts)
        return any(too_far(norm.cdf(part / self.promised), alpha) for part in parts)


def canary_round(
    config: Config, included: NDArray[np.bool_], dimensions: int, seed: int
) -> CanaryRound:
    """A round of canary clients alone, by the run's settings.

    Raises:
        DataError: the settings have no privacy at client level.
    """
    everybody = {"selection": SELECTORS.by_default(), "fnr": REFINEMENTS.by_default()}
    config, n = config.model_copy(update=everybody), len(included)
    rng = np.random.default_rng(seed)
    directions = _directions(rng.normal(size=(n, dimensions)), config.privacy.clipping)
    shortest, longest = TOO_LONG
    lengths = np.exp(rng.uniform(log(shortest), log(longest), n))
    model = _Flat(dimensions)
    total, clip, promised = torch.zeros(dimensions, dtype=torch.float64), 1.0, 0.0
    for index, (direction, here) in enumerate(zip(directions, included, strict=True)):
        update = torch.from_numpy(direction) * (lengths[index] if here else 0.0)
        private = client_level(config, _Moved(update * config.privacy.clip), model, n)
        if not isinstance(private, ClientLevel):
            raise DataError('client canaries test privacy.level = "client", which the run has not')
        state = private.init(model)
        sent = private.client(state, _work(model, seed + index), _Nobody())
        total += torch.cat([part for _, part in sorted(sent.tensors[Kind.PARAMETERS].items())])
        shares, clip = private.noise.shares, private.noise.clip
        promised = private.noise.sum_sigma * sqrt(n / shares.n_counted)
    return CanaryRound(directions, included, (total / clip).numpy(), promised)


def _directions(drawn: Vector, clipping: str) -> Vector:
    """Of length 1; where each tensor is clipped by itself, all tensors are equally long."""
    parts = np.split(drawn, _ends(drawn.shape[1]), axis=1) if clipping == "per-layer" else [drawn]
    units = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    return np.concatenate(units, axis=1) / sqrt(len(parts))


def _ends(dimensions: int) -> list[int]:
    """Where tensors end: a small, a middling and a large one, since noise might go by size."""
    return [dimensions // 100, dimensions // 10]


@final
class _Flat(nn.Module):
    """A model of d parameters in three tensors."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        for name, part in _tensors(torch.zeros(dimensions, dtype=torch.float64)).items():
            self.register_parameter(name, nn.Parameter(part))


def _tensors(values: Tensor) -> dict[str, Tensor]:
    return {f"canary{i}": part for i, part in enumerate(values.tensor_split(_ends(len(values))))}


@final
@dataclass(frozen=True, slots=True)
class _Moved:
    """An algorithm whose clients move by one update."""

    by: Tensor

    def init(self, model: nn.Module) -> State:
        return State(0, {Kind.PARAMETERS: {n: p.detach() for n, p in model.named_parameters()}})

    def plan(self, state: State, model: nn.Module) -> Plan:
        del state, model
        return Plan(update=(MessageSpec("update/parameters", Kind.PARAMETERS, len(self.by)),))

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        del work, exchange
        last = state.tensors[Kind.PARAMETERS]
        return Contribution(
            {Kind.PARAMETERS: {n: last[n] + moved for n, moved in _tensors(self.by).items()}}
        )

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        del totals
        return state


@final
@dataclass(frozen=True, slots=True)
class _Nobody:
    """An exchange that no sum in the middle of a round goes over."""

    weight: float = 1.0

    def sum(self, name: str, values: Mapping[str, Tensor]) -> Total:
        del values
        raise DataError(f"a canary's round has no sum {name!r}")


def _work(model: nn.Module, seed: int) -> Work:
    nothing = samples((torch.zeros(2, 1), torch.zeros(2)), "a canary")
    rng = torch.Generator().manual_seed(seed)
    return Work(model, nothing, iter(()), 1, nn.functional.mse_loss, Sgd(0.0), Memory(), rng)

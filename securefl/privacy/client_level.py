"""Differential privacy of clients, around any algorithm: clip what each contributes, add noise.

    Δ_i  what client i's tensors of one kind differ by from the global ones
    sent clip(Δ_i, C) + N(0, σ²C²/(n - t)),  of a client without data as of any other

t clients may be missing or tell their shares (`shares`). Neighbours: a client's Δ is as it is, or
zero; that it takes part is no secret. All clients count alike, so one moves a sum by C at most
(McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, with noise in
shares). Each kind of tensor is a release of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import final

import torch
from torch import Tensor, nn

from securefl.algorithms.base import Algorithm, Work
from securefl.errors import ConfigError
from securefl.exchange.base import Exchange
from securefl.privacy.adaptive import Quantile
from securefl.privacy.bounded import clipped
from securefl.privacy.clipping import Clipping
from securefl.privacy.randomness import Randomness, RandomnessOf
from securefl.privacy.shares import Shares
from securefl.types import (
    Contribution,
    Kind,
    MessageSpec,
    NamedTensors,
    Plan,
    State,
    Total,
)

CHANNEL_ERROR = 2.0**-24
"""How far, relative to its norm, a contribution may be from what a channel carries of it.

Half a unit in the last place of float32, which travels in the clear; encryption rounds less."""
LEAST_VARIANCE = 0.5
"""Of itself that a variance keeps in a round, however large the noise."""
TAIL = 8.0
"""Noise of d values is longer than (√d + 8) deviations with a probability below e⁻³²."""


@final
@dataclass(frozen=True, slots=True)
class ClientNoise:
    """How a contribution is made private; every number is public."""

    sigma: float
    """The noise multiplier that a release costs."""
    clip: float
    """C; where it adapts, the first."""
    clipping: Clipping
    shares: Shares
    quantile: Quantile | None = None
    """What C follows, kind by kind."""

    def deviation(self, clip: float, n_values: int) -> float:
        """Of one client's share of the noise on a sum of so many values.

        The sensitivity is not C alone: a channel rounds what it carries, and rounds otherwise where
        Δ_i is zero. That moves the sum by at most 2⁻²⁴ (C + 2‖noise‖) more.

        Raises:
            ConfigError: rounding would be all there is, of so many values.
        """
        sigma = self.quantile.sum_sigma if self.quantile else self.sigma
        length = 2 * CHANNEL_ERROR * self.shares.deviation(sigma) * (sqrt(n_values) + TAIL)
        if length >= 1:
            raise ConfigError(
                f"σ = {sigma:g} on {n_values:,} values: noise as large as this is rounded by more "
                "than the clip norm; take a smaller σ"
            )
        return self.shares.deviation(sigma * clip * (1 + CHANNEL_ERROR) / (1 - length))


@final
@dataclass(frozen=True, slots=True)
class ClientLevel:
    """The inner algorithm, of contributions that are clipped and noisy."""

    inner: Algorithm
    noise: ClientNoise
    randomness: RandomnessOf
    variances: frozenset[str] = frozenset()
    """Tensors that noise must not make negative."""

    def init(self, model: nn.Module) -> State:
        """The inner one's, and each kind's clip norm where it adapts."""
        state = self.inner.init(model)
        if self.noise.quantile is None:
            return state
        start = torch.tensor(self.noise.clip, dtype=torch.float64)
        clips = {str(kind): start.clone() for kind in state.tensors}
        return replace(state, tensors={**state.tensors, Kind.CLIPPING: clips})

    def plan(self, state: State, model: nn.Module) -> Plan:
        """The inner one's, and whether contributions stayed within C.

        Raises:
            ConfigError: clients ask for sums in the middle of their round, which have no noise.
        """
        plan = self.inner.plan(_without_clips(state), model)
        if plan.sums:
            raise ConfigError(
                f"the sum {plan.sums[0].name!r} in the middle of a round has no noise at client "
                'level: take another algorithm, or privacy.level = "record"'
            )
        if self.noise.quantile is None:
            return plan
        spec = MessageSpec(f"update/{Kind.CLIPPING}", Kind.CLIPPING, len(plan.update))
        return replace(plan, update=(*plan.update, spec))

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """The inner one's, as differences from the global tensors."""
        contribution = self.inner.client(_without_clips(state), work, exchange)
        randomness, tensors, within = self.randomness(work.rng), {}, dict[str, Tensor]()
        for kind, named in contribution.tensors.items():
            if not named:
                continue
            moved = {n: value.double() - state.tensors[kind][n] for n, value in named.items()}
            clip = self._clip(state, kind)
            found = clipped(moved, clip, self.noise.clipping)
            deviation = self.noise.deviation(clip, sum(v.numel() for v in moved.values()))
            tensors[kind] = {n: _noisy(v, randomness, deviation) for n, v in found.values.items()}
            within[str(kind)] = torch.tensor(found.within - 0.5, dtype=torch.float64)
        if quantile := self.noise.quantile:
            deviation = self.noise.shares.deviation(quantile.count_deviation)
            tensors[Kind.CLIPPING] = {
                name: _noisy(excess, randomness, deviation) for name, excess in within.items()
            }
        return replace(contribution, tensors=tensors)

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """The inner one's, of the global tensors moved by the mean noisy difference.

        Raises:
            TooFewContributions: more clients are missing than the noise is made for.
        """
        for total in totals.values():
            self.noise.shares.require(total.n_clients)
        means: dict[Kind, Total] = {
            kind: self._mean(state, kind, total)
            for kind, total in totals.items()
            if kind is not Kind.CLIPPING
        }
        after = self.inner.update(_without_clips(state), means)
        if self.noise.quantile is None:
            return after
        clips = {**state.tensors[Kind.CLIPPING], **self._followed(state, totals)}
        tensors: dict[Kind, NamedTensors] = {**after.tensors, Kind.CLIPPING: clips}
        return replace(after, tensors=tensors)

    def _clip(self, state: State, kind: Kind) -> float:
        if self.noise.quantile is None:
            return self.noise.clip
        return float(state.tensors[Kind.CLIPPING][str(kind)])

    def _mean(self, state: State, kind: Kind, total: Total) -> Total:
        last = state.tensors[kind]
        moved = {n: last[n] + change for n, change in total.values.items()}
        for name in moved.keys() & self.variances:
            moved[name] = torch.maximum(moved[name], LEAST_VARIANCE * last[name])
        return replace(total, values={n: value.to(last[n].dtype) for n, value in moved.items()})

    def _followed(self, state: State, totals: Mapping[Kind, Total]) -> dict[str, Tensor]:
        """The next clip norm of each kind that was sent."""
        quantile, total = self.noise.quantile, totals[Kind.CLIPPING]
        assert quantile is not None  # noqa: S101 -- for mypy: asked for above
        return {
            name: torch.tensor(
                quantile.followed(self._clip(state, Kind(name)), float(mean) * total.n_clients),
                dtype=torch.float64,
            )
            for name, mean in total.values.items()
        }


def _without_clips(state: State) -> State:
    tensors: dict[Kind, NamedTensors] = {
        kind: named for kind, named in state.tensors.items() if kind is not Kind.CLIPPING
    }
    return replace(state, tensors=tensors)


def _noisy(value: Tensor, randomness: Randomness, deviation: float) -> Tensor:
    """In double precision; on the value's device."""
    noise = torch.from_numpy(randomness.gaussian(value.numel(), deviation))
    return value + noise.reshape(value.shape).to(value.device)

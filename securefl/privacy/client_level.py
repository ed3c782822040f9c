"""Differential privacy of clients, around any algorithm: clip what each contributes, add noise.

    Δ_i  what client i's tensors of one kind differ by from the global ones
    sent clip(Δ_i, C) + N(0, σ²C²/(n - t)),  of a client without data as of any other

t clients may be missing or tell their shares (`shares`). Neighbours: all that a client sends is as
it is, or zero before the noise; that it takes part is no secret. All clients count alike, so one
moves a sum by C at most (McMahan et al., Learning Differentially Private Recurrent Language Models,
ICLR 2018, with shares of the noise). Each kind of tensor is a release of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import final

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Algorithm, Work
from securefl.algorithms.rng_isolation import seeded_layers
from securefl.errors import ConfigError
from securefl.exchange.layout import hollow
from securefl.exchange.sums import Exchange
from securefl.privacy.clipped import clipped
from securefl.privacy.distributed_noise import ClientNoise, NoisyExchange
from securefl.privacy.randomness import RandomnessOf, noisy
from securefl.types import (
    ClientState,
    Contribution,
    Kind,
    MessageSpec,
    NamedTensors,
    Plan,
    State,
    Total,
)

LEAST_VARIANCE = 0.5
"""Least part of itself that a variance keeps in a round, however large the noise."""


@final
@dataclass(frozen=True, slots=True)
class ClientLevel:
    """An algorithm whose clients' contributions are clipped and noisy."""

    inner: Algorithm
    noise: ClientNoise
    randomness: RandomnessOf
    variances: frozenset[str] = frozenset()
    """Tensors that noise must not make negative."""

    def init(self, model: nn.Module) -> State:
        """Return the inner algorithm's state, and each kind's clip norm where it adapts."""
        state = self.inner.init(model)
        if self.noise.quantile is None:
            return state
        start = torch.tensor(self.noise.clip, dtype=torch.float64)
        clips = {str(kind): start.clone() for kind in state.tensors}
        return replace(state, tensors={**state.tensors, Kind.CLIPPING: clips})

    def plan(self, state: State, model: nn.Module) -> Plan:
        """Return the inner algorithm's plan, and the message whether contributions stayed within C.

        Raises:
            ConfigError: a sum in the middle of a round has no bound, or noise is all rounding.
        """
        plan = self.inner.plan(_without_clips(state), model)
        for spec in plan.sums:
            if spec.name not in self.noise.bounds:
                raise ConfigError(
                    f"the sum {spec.name!r} in the middle of a round has no noise at client level: "
                    'take another algorithm, or privacy.level = "record"'
                )
            self.noise.deviation(self.noise.sigma, self.noise.bounds[spec.name], spec.n_values)
        for spec in plan.update:
            self.noise.deviation(self.noise.sum_sigma, self.noise.clip, spec.n_values)
        # Noise has its own size, whatever the tensors': no range is made for theirs.
        plan = replace(plan, update=tuple(map(_noisy_message, plan.update)))
        if self.noise.quantile is None:
            return plan
        self.noise.bit_deviation(self.noise.quantile)
        bits = {str(spec.kind): torch.zeros((), dtype=torch.float64) for spec in plan.update}
        like = dict(sorted(bits.items()))
        spec = MessageSpec(f"update/{Kind.CLIPPING}", Kind.CLIPPING, len(like), like=like)
        return replace(plan, update=(*plan.update, spec))

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """Return the inner contribution as noisy clipped differences from the global tensors."""
        randomness = self.randomness(work.rng)
        sums = NoisyExchange(exchange, self.noise, randomness)
        device = next(work.model.parameters()).device
        with seeded_layers(device, randomness.layer_seed()):
            contribution = self.inner.client(_without_clips(state), work, sums)
        if not _finite(contribution):
            # That it has diverged must not show either: it takes part with zeros.
            contribution = _standing_still(state, contribution, work.client_state)
        tensors, within = dict[Kind, NamedTensors](), dict[str, Tensor]()
        # A state that was read from a file has another order, and noise must not follow it.
        for kind, named in sorted(contribution.tensors.items()):
            if not named:
                continue
            moved = {n: v.double() - state.tensors[kind][n] for n, v in sorted(named.items())}
            clip = self._clip(state, kind)
            found = clipped(moved, clip, self.noise.clipping)
            n_values = sum(value.numel() for value in moved.values())
            deviation = self.noise.deviation(self.noise.sum_sigma, clip, n_values)
            tensors[kind] = {n: noisy(v, randomness, deviation) for n, v in found.values.items()}
            within[str(kind)] = torch.tensor(found.within - 0.5, dtype=torch.float64)
        if quantile := self.noise.quantile:
            deviation = self.noise.bit_deviation(quantile)
            tensors[Kind.CLIPPING] = {
                name: noisy(excess, randomness, deviation) for name, excess in within.items()
            }
        return replace(contribution, tensors=tensors)

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """Return the inner update of the global tensors, moved by the mean noisy difference.

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
        """Return the next clip norm of each kind that was sent."""
        quantile, total = self.noise.quantile, totals[Kind.CLIPPING]
        assert quantile is not None  # noqa: S101 -- for mypy: asked for above
        return {
            name: torch.tensor(
                quantile.followed(self._clip(state, Kind(name)), float(mean) * total.n_clients),
                dtype=torch.float64,
            )
            for name, mean in total.values.items()
        }


def _noisy_message(spec: MessageSpec) -> MessageSpec:
    """Return the message with values in double, as noisy differences travel, in order of names."""
    known = spec.like or {}
    like = {
        name: hollow(value.shape, torch.float64, value.device)
        for name, value in sorted(known.items())
    }
    return replace(spec, gain_bits=(), like=like)


def _finite(contribution: Contribution) -> bool:
    client_state = contribution.client_state
    kept = (getattr(client_state, field.name) for field in fields(client_state))
    groups = (*contribution.tensors.values(), *kept)
    return all(value.isfinite().all() for named in groups for value in named.values())


def _standing_still(
    state: State, contribution: Contribution, client_state: ClientState
) -> Contribution:
    """Return the contribution of a client that has not moved from the global tensors."""
    last: dict[Kind, NamedTensors] = {
        kind: {name: state.tensors[kind][name] for name in named}
        for kind, named in contribution.tensors.items()
    }
    return Contribution(last, client_state)


def _without_clips(state: State) -> State:
    tensors: dict[Kind, NamedTensors] = {
        kind: named for kind, named in state.tensors.items() if kind is not Kind.CLIPPING
    }
    return replace(state, tensors=tensors)

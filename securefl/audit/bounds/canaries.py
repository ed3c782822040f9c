"""Canaries: records in a run's data, and clients in a round, that are there by fair coins.

Records. Steinke, Nasr, Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023. A
canary is an image whose pixels are shuffled, with a label at random: nothing else teaches a model
about it. Who sees the global model after each round scores it by how far each round moved along its
gradient,

    Σ_t <∇ℓ(w_t; canary), w_t - w_{t+1}>,

which is large where the canary was trained on (the white-box attack of section 6 there).

Clients. Each one's update is a direction at random, longer than the clip norm, so that it is always
clipped (Andrew et al., ICLR 2024). All of it is known but the noise: what is left of the total when
the clipped directions are taken off is the noise itself, and its size can be measured.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log, sqrt
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2, norm  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import ConcatDataset, TensorDataset

from securefl.algorithms.algorithm import Loss, Sgd, Work, trained_parameters
from securefl.audit.statistics import Interval, too_far
from securefl.data.samples import ClientData, samples, whole
from securefl.errors import DataError
from securefl.exchange.sums import Exchange
from securefl.privacy.client_level import ClientLevel
from securefl.settings.axes import REFINEMENTS, SELECTORS
from securefl.settings.tables import Config
from securefl.task import Task
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

_CHUNK = 64
"""Samples whose gradients are in memory at once."""
WINDOWS = 25
"""Stretches of a run that canaries' gradients are compared with."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Canaries:
    """Set of m canary records, and which of them the run has."""

    x: Tensor
    y: Tensor
    included: NDArray[np.bool_]
    """Included ones, shape (m,), drawn by fair coins."""


def drawn_canaries(public: ClientData, count: int, seed: int) -> Canaries:
    """Draw canaries from samples that no client has: pixels shuffled, labels at random."""
    rng = np.random.default_rng(seed)
    x, y = whole(public, "the canaries' samples")
    images_BX = x[rng.integers(len(x), size=count)].flatten(1)
    order_BX = torch.from_numpy(
        rng.permuted(np.tile(np.arange(images_BX.shape[1]), (count, 1)), axis=1)
    )
    shuffled = images_BX.gather(1, order_BX).reshape(count, *x.shape[1:])
    labels = y[rng.integers(len(y), size=count)]
    return Canaries(shuffled, labels, rng.random(count) < 0.5)


def with_canaries(task: Task, canaries: Canaries) -> Task:
    """Return the task whose clients hold the canaries that are included.

    Each would be at the same client whatever the other coins show: so one coin moves one record.
    """
    n, number = len(task.clients), np.arange(len(canaries.included))
    clients = []
    for i, data in enumerate(task.clients):
        own = np.flatnonzero(canaries.included & (number % n == i))
        clients.append(_joined(data, canaries.x[own], canaries.y[own]))
    return replace(task, clients=clients)


def with_room(config: Config, task: Task) -> Config:
    """Return the settings, whose bound of a site's samples holds for this task's clients, too."""
    if config.samples is None:
        return config
    most = max(config.samples.most, *(len(samples(of, "a client")) for of in task.clients))
    return config.model_copy(update={"samples": config.samples.model_copy(update={"most": most})})


def thinned(models: Sequence[NamedTensors]) -> list[NamedTensors]:
    """Return the first, the last, and so many between that at most `WINDOWS` steps are left."""
    chosen = np.linspace(0, len(models) - 1, min(WINDOWS + 1, len(models))).round().astype(int)
    return [models[i] for i in chosen]


def alignment(
    model: nn.Module, loss: Loss, models: Sequence[NamedTensors], canaries: Canaries
) -> NDArray[np.float64]:
    """Return each canary's score, shape (m,).

    Args:
        model: of the run's architecture; copied, not changed.
        loss: the run's.
        models: the global tensors before the first round and after each, or after some of them.
        canaries: whose scores.
    """
    scores = torch.zeros(len(canaries.y), dtype=torch.float64)
    gradients = sample_gradients(model, loss)
    for before, after in pairwise(models):
        found = gradients(before, canaries.x, canaries.y)
        for name, gradient in found.items():
            moved = (before[name] - after[name]).double()
            scores += gradient.double().flatten(1) @ moved.flatten()
    return scores.numpy()


def sample_gradients(
    model: nn.Module, loss: Loss
) -> Callable[[NamedTensors, Tensor, Tensor], NamedTensors]:
    """Return a function for each sample's gradient, with BN at its running statistics."""
    resting = copy.deepcopy(model).eval()
    names = trained_parameters(resting).keys()
    others = {n: v for n, v in resting.state_dict().items() if n not in names}

    def loss_of(trained: NamedTensors, rest: NamedTensors, x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(resting, {**rest, **trained}, (x[None],)), y[None])

    each = vmap(grad(loss_of), in_dims=(None, None, 0, 0), chunk_size=_CHUNK)

    def gradients(state: NamedTensors, x: Tensor, y: Tensor) -> NamedTensors:
        trained = {name: state[name] for name in names}
        rest = {name: state.get(name, value) for name, value in others.items()}
        found: NamedTensors = each(trained, rest, x, y)
        return found

    return gradients


def _joined(data: ClientData, x: Tensor, y: Tensor) -> ClientData:
    if isinstance(data, tuple):
        return torch.cat([data[0], x]), torch.cat([data[1], y])
    return ConcatDataset([data, TensorDataset(x, y)])


Vector = NDArray[np.float64]
TOO_LONG = (1.5, 50.0)
"""Shortest and longest canary update, in clip norms."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class CanaryRound:
    """Released total of one round, and what went into it, in units of the clip norm."""

    directions: Vector
    """Unit vectors, shape (k, d)."""
    included: NDArray[np.bool_]
    """Included clients, shape (k,); any other contributes its noise alone."""
    released: Vector
    """Sum of the clipped updates with the noise of all, shape (d,)."""
    promised: float
    """Standard deviation of the noise, where no client is missing."""

    @property
    def cosines(self) -> Vector:
        """Cosine of each direction with what was released, shape (k,)."""
        return self.directions @ self.released / np.linalg.norm(self.released)

    @property
    def left(self) -> Vector:
        """Noise: what the clipped directions leave of the total."""
        left: Vector = self.released - self.directions[self.included].sum(axis=0)
        return left

    def noise(self, confidence: float) -> Interval:
        """Return the noise's standard deviation, with an interval by χ²."""
        squares, d, tail = float(self.left @ self.left), len(self.released), (1 - confidence) / 2
        low, high = (sqrt(squares / chi2.ppf(p, d)) for p in (1 - tail, tail))
        return Interval(sqrt(squares / d), low, high)

    def uneven(self, confidence: float) -> bool:
        """Return whether some tensor's noise is not N(0, promised²)."""
        parts = np.split(self.left, _ends(len(self.released)))
        alpha = (1 - confidence) / len(parts)
        return any(too_far(norm.cdf(part / self.promised), alpha) for part in parts)


def canary_round(
    config: Config, included: NDArray[np.bool_], dimensions: int, seed: int
) -> CanaryRound:
    """Play a round of canary clients alone, by the run's settings.

    Raises:
        DataError: the settings have no privacy at client level.
    """
    everybody = {"selection": SELECTORS.by_default(), "fnr": REFINEMENTS.by_default()}
    config, n = config.model_copy(update=everybody), len(included)
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(n, dimensions))
    directions = _directions(drawn, by_layer=config.privacy.by_layer)
    shortest, longest = TOO_LONG
    lengths = np.exp(rng.uniform(log(shortest), log(longest), n))
    model = _Flat(dimensions)
    total, clip, promised = torch.zeros(dimensions, dtype=torch.float64), 1.0, 0.0
    for index, (direction, here) in enumerate(zip(directions, included, strict=True)):
        update = torch.from_numpy(direction) * (lengths[index] if here else 0.0)
        private = config.privacy.around(config, _Moved(update * config.privacy.clip), model, n)
        if not isinstance(private, ClientLevel):
            raise DataError('client canaries test privacy.level = "client", which the run has not')
        state = private.init(model)
        sent = private.client(state, _work(model, seed + index), _Nobody())
        total += torch.cat([part for _, part in sorted(sent.tensors[Kind.PARAMETERS].items())])
        shares, clip = private.noise.shares, private.noise.clip
        promised = private.noise.sum_sigma * sqrt(n / shares.n_counted)
    return CanaryRound(directions, included, (total / clip).numpy(), promised)


def _directions(drawn: Vector, *, by_layer: bool) -> Vector:
    """Return unit vectors; where each tensor is clipped by itself, all tensors are equally long."""
    parts = np.split(drawn, _ends(drawn.shape[1]), axis=1) if by_layer else [drawn]
    units = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    return np.concatenate(units, axis=1) / sqrt(len(parts))


def _ends(dimensions: int) -> list[int]:
    """Return where a small, a middling and a large tensor end: noise might go by size."""
    return [dimensions // 100, dimensions // 10]


@final
class _Flat(nn.Module):
    """Model of d parameters in three tensors."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        for name, part in _tensors(torch.zeros(dimensions, dtype=torch.float64)).items():
            self.register_parameter(name, nn.Parameter(part))


def _tensors(values: Tensor) -> dict[str, Tensor]:
    return {f"canary{i}": part for i, part in enumerate(values.tensor_split(_ends(len(values))))}


@final
@dataclass(frozen=True, slots=True)
class _Moved:
    """Algorithm whose clients move by one update."""

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
    """Exchange for a round without sums in its middle."""

    weight: float = 1.0

    def sum(self, name: str, values: Mapping[str, Tensor]) -> Total:
        del values
        raise DataError(f"a canary's round has no sum {name!r}")


def _work(model: nn.Module, seed: int) -> Work:
    nothing = samples((torch.zeros(2, 1), torch.zeros(2)), "a canary")
    rng = torch.Generator().manual_seed(seed)
    return Work(model, nothing, iter(()), 1, nn.functional.mse_loss, Sgd(0.0), ClientState(), rng)

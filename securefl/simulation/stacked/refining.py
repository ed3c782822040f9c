"""FNR-FL of clients side by side: assessed together after their training, and refined together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from securefl.algorithms.base import averaged_tensors
from securefl.algorithms.class_norms import Assessment
from securefl.algorithms.features import last_linear
from securefl.algorithms.fnr import FNR, ModelTensors
from securefl.algorithms.public_training import Objective, Penalty
from securefl.data.samples import Samples, TensorSamples
from securefl.errors import DataError
from securefl.federation.ongoing import End, Ongoing
from securefl.simulation.client_thread import ClientThread
from securefl.simulation.clients import Clients
from securefl.simulation.lockstep import client_threads, in_turns
from securefl.simulation.stacked.assessment import assess_each, require_assessed_apart
from securefl.simulation.stacked.block import separate
from securefl.simulation.stacked.loss import wide_loss
from securefl.simulation.stacked.model import side_by_side
from securefl.simulation.stacked.workspaces import WidePlaces
from securefl.types import Contribution, Memory, NamedTensors, Total


@dataclass(frozen=True, slots=True)
class Trained:
    """A client after its own training."""

    contribution: Contribution
    """The inner algorithm's."""
    model: ModelTensors
    found: Assessment


class Refining:
    """What is left of FNR's round when all clients have trained."""

    def __init__(self, clients: Clients, algorithm: FNR, places: WidePlaces) -> None:
        self._clients = clients
        self._algorithm = algorithm
        self._places = places
        self._pool = client_threads(clients)

    def assessed(
        self,
        names: Sequence[str],
        model: nn.Module,
        contributions: Iterable[tuple[str, Contribution]],
    ) -> dict[str, Trained]:
        """Those of a cohort who contribute; `model` is the wide one that all have trained."""
        public, k = self._algorithm.public.samples, len(names)
        each = assess_each(model, public, last_linear(model).out_features, k)
        found = dict(zip(names, each, strict=True))
        models = dict(zip(names, _models(model, k), strict=True))
        return {name: Trained(own, models[name], found[name]) for name, own in contributions}

    def finish(self, ongoing: Ongoing, trained: Mapping[str, Trained]) -> None:
        """Have these clients ask for FNR's sums, refine the weakest, and hand in what all send."""
        threads = {
            name: ClientThread(
                self._pool, partial(self._penalty, ongoing.weight(name), trained[name].found)
            )
            for name in ongoing.times
            if name in trained
        }
        penalties = in_turns(threads, ongoing)
        weak = [(name, penalty) for name, penalty in penalties.items() if penalty is not None]
        refined = dict[str, Contribution]()
        for start in range(0, len(weak), self._places.most):
            some = dict(weak[start : start + self._places.most])
            refined |= self._refined(ongoing, {n: trained[n] for n in some}, list(some.values()))
        for name in penalties:
            ongoing.finish(name, refined.get(name, trained[name].contribution))

    def _penalty(
        self, weight: float, found: Assessment, ask: Callable[[str, NamedTensors], Total]
    ) -> Penalty | None:
        return self._algorithm.penalty(found, End(weight, ask))

    def _refined(
        self, ongoing: Ongoing, weak: Mapping[str, Trained], penalties: Sequence[Penalty]
    ) -> dict[str, Contribution]:
        algorithm, training, state = self._algorithm, self._clients.training, ongoing.state
        place, k = self._places.of(len(weak)), len(weak)
        place.load_each([one.model for one in weak.values()])
        public = replace(algorithm.public, samples=Alike(algorithm.public.samples, k))
        together = replace(algorithm, public=public)
        loss = wide_loss(training.loss, k)
        objective = Objective(loss, algorithm.strength, Penalties(penalties))
        with self._clients.casting():
            together.refine(state, place.model, training.sgd(state.round), objective)
        return {
            name: algorithm.refined(state, one.contribution, one.model, after)
            for (name, one), after in zip(weak.items(), _models(place.model, k), strict=True)
        }

    def close(self) -> None:
        """Let go of the threads; safe to call twice."""
        self._pool.shutdown()


def _models(wide: nn.Module, n_clients: int) -> Iterable[ModelTensors]:
    """Copies of each client's tensors."""
    of_all = Contribution(averaged_tensors(wide), Memory())
    return (of.tensors for of in separate(of_all, n_clients))


@dataclass(frozen=True, slots=True)
class Alike:
    """The same samples for clients side by side."""

    samples: Samples
    n_clients: int

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Batches of x (B, K C, ...) and y (K, B)."""
        x, y = self.samples.take(index)
        return side_by_side([x] * self.n_clients), y.expand(self.n_clients, -1)


@dataclass(frozen=True, slots=True)
class Penalties:
    """The sum of the clients' penalties, of features (B, K F) and labels (K, B)."""

    each: Sequence[Penalty]

    def __call__(self, features: Tensor, y_KB: Tensor) -> Tensor:
        """J of all, of which each has a gradient in its own features."""
        features_BKF = features.unflatten(1, (len(self.each), -1))
        of_each = zip(self.each, features_BKF.unbind(dim=1), y_KB, strict=True)
        return torch.stack([penalty(own, y) for penalty, own, y in of_each]).sum()


def reason_against_refining(model: nn.Module, algorithm: FNR) -> str:
    """Why clients of a model that trains side by side are not refined so; empty where they are."""
    public = algorithm.public
    if not isinstance(public.samples, TensorSamples):
        return "the public samples are a Dataset, which may draw at random"
    try:
        public.check_labels(last_linear(model).out_features)
        require_assessed_apart(model, public.samples)
    except DataError as error:
        return str(error)
    return ""

"""FNR-FL of clients that train side by side: assessed together, then refined one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from securefl.algorithms.base import averaged_tensors
from securefl.algorithms.class_norms import Assessment
from securefl.algorithms.features import last_linear
from securefl.algorithms.fnr import FNR
from securefl.algorithms.public_training import Penalty
from securefl.data.samples import TensorSamples
from securefl.engines.clients import Clients, Place
from securefl.engines.cohort import separate
from securefl.engines.in_turns import client_threads, in_turns
from securefl.engines.ongoing import End, Ongoing
from securefl.engines.turns import ClientThread
from securefl.engines.wide_assessment import assess_each, require_assessed_apart
from securefl.errors import DataError
from securefl.types import Contribution, Memory, NamedTensors, State, Total


@dataclass(frozen=True, slots=True)
class Trained:
    """A client after its own training."""

    contribution: Contribution
    """The inner algorithm's."""
    model: Contribution
    """Its tensors, whether they travel or not."""
    found: Assessment


class Refining:
    """What is left of FNR's round when all clients have trained."""

    def __init__(self, clients: Clients, algorithm: FNR) -> None:
        self._clients = clients
        self._algorithm = algorithm
        self._place = Place(clients.model)
        self._pool = client_threads(clients)

    def assessed(
        self,
        names: Sequence[str],
        model: nn.Module,
        contributions: Iterable[tuple[str, Contribution]],
    ) -> dict[str, Trained]:
        """Those of a cohort who contribute; `model` is the wide one that they have trained."""
        public, k = self._algorithm.public.samples, len(names)
        tensors = separate(Contribution(averaged_tensors(model), Memory()), k)
        models = dict(zip(names, tensors, strict=True))
        each = assess_each(model, public, last_linear(model).out_features, k)
        found = dict(zip(names, each, strict=True))
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
        for name, penalty in in_turns(threads, ongoing).items():
            contribution = trained[name].contribution
            if penalty is not None:
                contribution = self._refined(name, ongoing, trained[name], penalty)
            ongoing.finish(name, contribution)

    def _penalty(
        self, weight: float, found: Assessment, ask: Callable[[str, NamedTensors], Total]
    ) -> Penalty | None:
        return self._algorithm.penalty(found, End(weight, ask))

    def _refined(
        self, name: str, ongoing: Ongoing, trained: Trained, penalty: Penalty
    ) -> Contribution:
        clients, state = self._clients, ongoing.state
        own = State(state.round, trained.model.tensors, {})
        work = clients.work(name, own, self._place, ongoing.memories[name])
        with clients.casting():
            return self._algorithm.refined(state, work, trained.contribution, penalty)

    def close(self) -> None:
        """Let go of the threads; safe to call twice."""
        self._pool.shutdown()


def reason_against_refining(model: nn.Module, algorithm: FNR) -> str:
    """Why clients of a model that trains side by side are not assessed so; empty where they are."""
    public = algorithm.public
    if not isinstance(public.samples, TensorSamples):
        return "the public samples are a Dataset, which may draw at random"
    try:
        public.check_labels(last_linear(model).out_features)
        require_assessed_apart(model, public.samples)
    except DataError as error:
        return str(error)
    return ""

"""Who trains beside whom: cohorts of clients that have about as much to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from securefl.algorithms.federated import Federated, Momentum
from securefl.algorithms.solvers.fedprox import FedProx
from securefl.algorithms.solvers.sgd import SGD
from securefl.data.samples import Samples, TensorSamples
from securefl.federation.training import Training

LEAST_SHARE = 0.5
"""Of the longest client's steps: who takes fewer is not worth the idle channels beside it."""
LEAST_USED = 0.5
"""Of the samples that there is room for in a cohort that must have all clients."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """What a run's cohorts go by."""

    data: Mapping[str, Samples]
    training: Training
    algorithm: Federated
    reason_against_padding: str = ""
    """Why the model may not see batches that are padded to one size; empty where it may."""

    def padded(self, *, in_one: bool) -> Iterator[list[int]]:
        """Sizes of batches that may be padded to the largest of them, in increasing order."""
        sizes = defaultdict[object, set[int]](set)
        for name in self.data:
            sizes[self._size(name)].add(self.batch_size(name))
            if in_one:
                sizes["all"].add(self.batch_size(name))
        yield from (sorted(of) for of in sizes.values() if len(of) > 1)

    def cohorts(self, names: Sequence[str], *, static: bool, most: int) -> list[list[str]]:
        """At most so many clients each; where statistics are `static`, of as many batches."""
        alike = defaultdict[tuple[object, ...], list[str]](list)
        for name in names:
            n_batches = len(self.data[name]) // self.batch_size(name) if static else None
            n_steps = None if may_be_ragged(self.algorithm) else self._steps(name)
            alike[self._shape(name), self._size(name), n_batches, n_steps].append(name)
        return [c for of in alike.values() for c in split(of, self._steps, most, LEAST_SHARE)]

    def reason_against_one(self, names: Sequence[str]) -> str:
        """Why they cannot be one cohort; empty where they can."""
        batches, steps = [self.batch_size(n) for n in names], [self._steps(n) for n in names]
        if len({self._shape(name) for name in names}) > 1:
            return "their samples are of several shapes or types"
        if len(set(batches)) > 1 and self.reason_against_padding:
            return f"their batches are unequal and cannot be padded: {self.reason_against_padding}"
        if len(set(steps)) > 1 and not may_be_ragged(self.algorithm):
            return "their steps are unequal, of which the solver or its momentum must know"
        used = sum(batch * n for batch, n in zip(batches, steps, strict=True))
        if used < LEAST_USED * len(names) * max(batches) * max(steps):
            return "their batches or steps are too unequal"
        return ""

    def batch_size(self, name: str) -> int:
        """Of a client's batches."""
        return min(self.training.batch_size, len(self.data[name]))

    def _size(self, name: str) -> object:
        """Whole batches are alike; of smaller ones those within a factor of two, padded."""
        n = self.batch_size(name)
        if n == self.training.batch_size or self.reason_against_padding:
            return n
        return "padded", n.bit_length()

    def _steps(self, name: str) -> int:
        return self.training.steps(self.data[name])

    def _shape(self, name: str) -> tuple[object, ...]:
        data = self.data[name]
        kinds = (data.x, data.y) if isinstance(data, TensorSamples) else ()
        return tuple((values.shape[1:], values.dtype) for values in kinds)


def may_be_ragged(algorithm: Federated) -> bool:
    """Whether nothing but the model's tensors tells how a client's steps went."""
    return type(algorithm.solver) in (SGD, FedProx) and algorithm.momentum is Momentum.RESET


def split(
    names: Sequence[str], steps: Callable[[str], int], most: int, least_share: float
) -> Iterator[list[str]]:
    """Cohorts of at most `most` clients of similar numbers of steps, the longest first."""
    cohort: list[str] = []
    for name in sorted(names, key=steps, reverse=True):
        if cohort and (len(cohort) == most or steps(name) < least_share * steps(cohort[0])):
            yield cohort
            cohort = []
        cohort.append(name)
    yield cohort

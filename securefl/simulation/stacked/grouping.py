"""Grouping into blocks of clients of about equal work, and the models that blocks train in."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from securefl.algorithms.federated import Federated, Momentum
from securefl.algorithms.solvers.fedprox import FedProx
from securefl.algorithms.solvers.sgd import SGD
from securefl.data.samples import Samples, TensorSamples
from securefl.federation.training import Training
from securefl.simulation.stacked.model import stacked
from securefl.simulation.workspace import Workspace

LEAST_SHARE = 0.5
"""Least share of the longest client's steps; below it, idle channels cost more than they save."""
LEAST_USED = 0.5
"""Least share of samples that are no padding, in a block that must have all clients."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """The rule by which a run's clients are grouped into blocks."""

    data: Mapping[str, Samples]
    training: Training
    algorithm: Federated
    reason_against_padding: str = ""
    """Reason why the model may not see padded batches; empty where it may."""

    def padded(self, *, in_one: bool) -> Iterator[list[int]]:
        """Yield sizes of batches that may be padded to the largest of them, in increasing order."""
        sizes = defaultdict[object, set[int]](set)
        for name in self.data:
            sizes[self._size(name)].add(self.batch_size(name))
            if in_one:
                sizes["all"].add(self.batch_size(name))
        yield from (sorted(of) for of in sizes.values() if len(of) > 1)

    def blocks(self, names: Sequence[str], *, static: bool, most: int) -> list[list[str]]:
        """Group clients into blocks of `most`; where statistics are `static`, of equal batches."""
        alike = defaultdict[tuple[object, ...], list[str]](list)
        for name in names:
            n_batches = len(self.data[name]) // self.batch_size(name) if static else None
            n_steps = None if may_have_unequal_steps(self.algorithm) else self._steps(name)
            alike[self._shape(name), self._size(name), n_batches, n_steps].append(name)
        return [c for of in alike.values() for c in split(of, self._steps, most, LEAST_SHARE)]

    def reason_against_one(self, names: Sequence[str]) -> str:
        """Return why these clients cannot be one block; empty where they can."""
        batches, steps = [self.batch_size(n) for n in names], [self._steps(n) for n in names]
        if len({self._shape(name) for name in names}) > 1:
            return "their samples are of several shapes or types"
        if len(set(batches)) > 1 and self.reason_against_padding:
            return f"their batches are unequal and cannot be padded: {self.reason_against_padding}"
        if len(set(steps)) > 1 and not may_have_unequal_steps(self.algorithm):
            return "their steps are unequal, of which the solver or its momentum must know"
        used = sum(batch * n for batch, n in zip(batches, steps, strict=True))
        if used < LEAST_USED * len(names) * max(batches) * max(steps):
            return "their batches or steps are too unequal"
        return ""

    def batch_size(self, name: str) -> int:
        """Return the size of a client's batches."""
        return min(self.training.batch_size, len(self.data[name]))

    def _size(self, name: str) -> object:
        """Return the key of sizes in one block: whole batches, or padded ones within a factor 2."""
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


def may_have_unequal_steps(algorithm: Federated) -> bool:
    """Return whether the model's tensors are all that a client's steps leave behind."""
    return type(algorithm.solver) in (SGD, FedProx) and algorithm.momentum is Momentum.RESET


def split(
    names: Sequence[str], steps: Callable[[str], int], most: int, least_share: float
) -> Iterator[list[str]]:
    """Yield blocks of at most `most` clients with similar numbers of steps, longest first."""
    block: list[str] = []
    for name in sorted(names, key=steps, reverse=True):
        if block and (len(block) == most or steps(name) < least_share * steps(block[0])):
            yield block
            block = []
        block.append(name)
    yield block


BLOCK_BYTES = 2**25
"""Most bytes of parameters in a block on a CPU; larger blocks are no faster."""
PER_PARAMETER = 16
"""Divisor of a GPU's free memory that leaves the share for parameters; the rest is for gradients,
momentum and activations."""
MOST_WORKSPACES = 4
"""Number of workspaces that are kept."""


class Workspaces:
    """Workspaces of one model for blocks of clients."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._workspaces: dict[int, Workspace] = {}
        parameters = list(model.parameters())
        most_bytes, device = BLOCK_BYTES, parameters[0].device
        if device.type == "cuda":
            most_bytes = torch.cuda.mem_get_info(device)[0] // PER_PARAMETER
        size = sum(p.numel() * p.element_size() for p in parameters)
        self.most = max(1, most_bytes // size)
        """Most clients in a block."""

    def limit(self, most: int) -> None:
        """Have at most so many clients in a block from now on, and forget all workspaces."""
        self.most = most
        self._workspaces.clear()
        torch.cuda.empty_cache()  # nothing without a GPU

    def of(self, n_clients: int) -> Workspace:
        """Return the workspace for a block of `n_clients`, kept from before; call `load` first."""
        if n_clients not in self._workspaces:
            for oldest in list(self._workspaces)[: 1 - MOST_WORKSPACES]:
                del self._workspaces[oldest]
            self._workspaces[n_clients] = Workspace(stacked(self._model, n_clients), n_clients)
        return self._workspaces[n_clients]

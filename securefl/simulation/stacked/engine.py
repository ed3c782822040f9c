"""Trainer of blocks of clients at once, side by side in one stacked model.

The best engine for models of linear layers that are not large, and on a GPU. Shorter batches are
padded to the longest, and a client that has taken its steps waits for the longest.
"""

import copy
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Algorithm, Loss, Work
from securefl.algorithms.federated import Federated
from securefl.algorithms.participation import Participating
from securefl.algorithms.public_training import ServerTuned
from securefl.algorithms.solvers.solver import innermost
from securefl.algorithms.standardisation import (
    is_measured,
    measure,
    measured,
    standard_tensors,
)
from securefl.data.resident import Resident, resident
from securefl.data.samples import Samples, TensorSamples
from securefl.errors import DataError
from securefl.federation.clients_round import ClientsRound
from securefl.federation.training import round_generator
from securefl.norms.padded import Present, padded_batch_norm
from securefl.norms.standardised_input import find_standardised
from securefl.simulation.clients import Clients
from securefl.simulation.sequential import Sequential
from securefl.simulation.stacked.batches import BlockLoss, block_batches
from securefl.simulation.stacked.block import (
    AllLeft,
    BlockEnd,
    block_client_state,
    block_state,
    separate,
)
from securefl.simulation.stacked.grouping import Grouping, Workspaces
from securefl.simulation.stacked.separation_check import require_padded, require_separate
from securefl.simulation.stacked.unequal_steps import UnequalSteps
from securefl.types import Contribution


class Stacked:
    """Trainer of clients side by side in rounds that allow it, else one after the other."""

    def __init__(self, clients: Clients) -> None:
        """Prepare; `reason_against` must be empty for these clients."""
        self._clients = clients
        self._alone = Sequential(clients)
        self._workspaces = Workspaces(clients.model)
        self._resident = resident(clients.data, clients.device)
        self._algorithm = cast("Federated", _federated(clients.algorithm))
        self._grouping = _grouping(clients, self._algorithm)

    def train(self, ongoing: ClientsRound) -> None:
        """Train the round: see `Trainer.train`."""
        norm = self._algorithm.normalisation(ongoing.state, self._clients.model)
        if norm.following or norm.measurement or self._to_measure(ongoing):
            # These look at one client's channels.
            self._alone.train(ongoing)
            return
        names = list(ongoing.times)
        if norm.pooling is None:
            most = self._workspaces.most
            found = self._grouping.blocks(names, static=norm.static, most=most)
        elif self._grouping.reason_against_one(names):
            self._alone.train(ongoing)
            return
        else:
            found = [names]
        for block in found:
            for name, contribution in self._fitting(block, ongoing):
                ongoing.finish(name, contribution)

    def _to_measure(self, ongoing: ClientsRound) -> bool:
        """Return whether clients measure columns in this round, together or each its own."""
        names = standard_tensors(self._clients.model)
        kept = (names <= client_state.own.keys() for client_state in ongoing.client_states.values())
        return not is_measured(ongoing.state, names) and not all(kept)

    def _fitting(
        self, names: Sequence[str], ongoing: ClientsRound
    ) -> Iterator[tuple[str, Contribution]]:
        """Train a block, or where it is too large for the memory of a GPU, halves of it."""
        try:
            yield from self._trained(names, ongoing)
        except torch.OutOfMemoryError:
            if len(names) == 1 or ongoing.plan.sums:  # others go on by a sum that was made
                raise
        else:
            return
        # Behind the handler, since what it handles holds the tensors of the attempt.
        half = -(-len(names) // 2)
        self._workspaces.limit(half)
        for block in (names[:half], names[half:]):
            yield from self._fitting(block, ongoing)

    def _trained(
        self, names: Sequence[str], ongoing: ClientsRound
    ) -> Iterator[tuple[str, Contribution]]:
        """Train a block, and yield the contributions of clients that have not left the round."""
        clients, state, k = self._clients, ongoing.state, len(names)
        workspace, training = self._workspaces.of(k), clients.training
        workspace.load(state)
        data = {name: clients.data[name] for name in names}
        sizes = [self._grouping.batch_size(name) for name in names]
        present = Present.of(sizes, clients.device)
        steps, algorithm = [training.steps(of) for of in data.values()], self._algorithm
        if len(set(steps)) > 1:
            algorithm = replace(algorithm, solver=UnequalSteps(algorithm.solver, steps))
        drawn = sum(size * n for size, n in zip(sizes, steps, strict=True))
        together = self._resident or self._beside_each_other(data, drawn)
        generators = [
            round_generator(training.seed, state.round, clients.index[name]) for name in names
        ]
        loss = BlockLoss(training.loss, k, present)
        work = Work(
            workspace.model,
            max(data.values(), key=len),
            block_batches(data, together, training.batch_size, generators, clients.device),
            max(steps),
            loss,
            training.sgd(state.round),
            block_client_state(
                [ongoing.client_states[name] for name in names], state, clients.device
            ),
            generators[0],
            None if present else clients.replay(workspace, loss),
        )
        weights = torch.tensor([ongoing.weight(name) for name in names], dtype=torch.float64)
        end = BlockEnd(ongoing, names, set(), weights)
        try:
            with clients.casting(), padded_batch_norm(workspace.model, present):
                trained = algorithm.client(block_state(state, k), work, end)
        except AllLeft:
            return iter(())
        contributions = zip(names, separate(trained, k), strict=True)
        return ((name, own) for name, own in contributions if name not in end.left)

    def _beside_each_other(self, data: Mapping[str, Samples], n_drawn: int) -> Resident | None:
        """Return a block's samples in one tensor, where they are no more than it draws."""
        if sum(map(len, data.values())) > n_drawn:
            return None
        return resident(data, self._clients.device)

    def close(self) -> None:
        """Close: see `Trainer.close`."""
        self._alone.close()


def reason_against(clients: Clients) -> str:
    """Return why no round can have clients side by side; empty where one may."""
    algorithm = _federated(clients.algorithm)
    if algorithm is None:
        return "the algorithm looks at a client as a whole (privacy, FNR, or one of your own)"
    # A solver says so itself, not the class that it derives from: a subclass may do anything.
    solver = type(innermost(algorithm.solver))
    if not vars(solver).get("elementwise"):
        return f"the solver {solver.__name__} does not treat each element of a gradient by itself"
    if not all(isinstance(data, TensorSamples) for data in clients.data.values()):
        return "a client's data are a Dataset, which may draw at random"
    if why_not := _found_by_trying(clients):
        return why_not
    return _found_in_rounds(clients, algorithm)


def _found_in_rounds(clients: Clients, algorithm: Federated) -> str:
    state = measured(algorithm.init(clients.model))
    following = algorithm.normalisation(state, clients.model).following
    if following and following.holds:
        return "the normalisation mixes into a client's batches what that client keeps"
    if algorithm.plan(state, clients.model).sums:
        why_not = _grouping(clients, algorithm).reason_against_one(list(clients.data))
        if why_not:
            return f"clients wait for each other's sums, and {why_not}"
    return ""


def _grouping(clients: Clients, algorithm: Federated) -> Grouping:
    grouping = Grouping(clients.data, clients.training, algorithm)
    if min(map(len, clients.data.values())) >= clients.training.batch_size:
        return grouping
    after_first = measured(algorithm.init(clients.model))
    waits = bool(algorithm.plan(after_first, clients.model).sums)
    try:
        for sizes in grouping.padded(in_one=waits):
            require_padded(_to_try(clients), _a_few(clients)[0], sizes)
    except DataError as error:
        return replace(grouping, reason_against_padding=str(error))
    return grouping


def _a_few(clients: Clients) -> tuple[Tensor, Tensor]:
    first = next(iter(clients.data.values()))
    return first.take(torch.arange(min(4, len(first))))


def _to_try(clients: Clients) -> nn.Module:
    """Return the model, which reads columns as after the first round: raw ones may be too large."""
    model = copy.deepcopy(clients.model)
    if found := find_standardised(model):
        measure(found[1], TensorSamples(*_a_few(clients)), None)
    return model


def _found_by_trying(clients: Clients) -> str:
    x, y = _a_few(clients)
    try:
        require_separate(_to_try(clients), x)
    except DataError as error:
        return str(error)
    return _reason_against_pass(copy.deepcopy((clients.model, clients.training.loss)), x, y)


def _reason_against_pass(of: tuple[nn.Module, Loss], x: Tensor, y: Tensor) -> str:
    (model, loss), known = of, _attributes(of)
    device = next(model.parameters()).device
    with torch.random.fork_rng([]), torch.no_grad():
        outputs = model(x.to(device))
        before = torch.get_rng_state()
        loss(outputs, y.to(device))
        if not torch.equal(before, torch.get_rng_state()):
            return "the loss draws at random"
    if _attributes(of) != known:
        return "the model or the loss changes attributes that are no buffers, which clients share"
    return ""


def _attributes(of: tuple[nn.Module, Loss]) -> bytes:
    """Pickle all that the modules and the loss hold beside tensors; empty where impossible."""
    model, loss = of
    holders = [*model.modules(), *([loss] if hasattr(loss, "__dict__") else [])]
    beside = {"_parameters", "_buffers", "_modules"}
    held = [{k: v for k, v in vars(one).items() if k not in beside} for one in holders]
    try:
        return pickle.dumps(held)
    except Exception:  # objects say in ways of their own that they are not pickled
        return b""


def _around(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm without the wrapper for rounds of some clients."""
    return algorithm.inner if isinstance(algorithm, Participating) else algorithm


def _federated(algorithm: Algorithm) -> Federated | None:
    """Return the algorithm of local training without wrappers; None for one of another kind."""
    around = _around(algorithm)
    if type(around) is ServerTuned:
        around = around.inner
    return around if type(around) is Federated else None

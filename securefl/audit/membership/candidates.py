"""Candidates: samples that an attack tells apart, and how sure a model is of each.

An attack that only tells classes apart, or clients, must learn nothing. So non-members are dealt to
clients label by label, as clients have them, and what is compared has for each client and label as
many members to a non-member. Where targets are numbers or several labels, their strata are labels.

Of a sample with label y the model says p = Pr(y | x). Attacks go by φ = log(p / (1 - p)), which is
about normal over models (Carlini et al., IEEE S&P 2022, section V). All else follows from it: the
loss is log(1 + e^-φ), without cancellation even where p is 1 in floating point.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss
from securefl.audit.membership.strata import strata
from securefl.data.samples import Samples, in_order, whole
from securefl.errors import DataError
from securefl.losses.kinds import takes_numbers
from securefl.task import Task

Ints: TypeAlias = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Members of all clients, and test samples dealt to these clients."""

    x: Tensor
    y: Tensor
    client_S: Ints
    """Client whose the sample is, or would be, by its number in the task."""
    cell_S: Ints
    """Number for each pair of client and label."""
    member_S: NDArray[np.bool_]
    label: str = "label"
    """Name of what counts as a label (`Strata`); empty where all samples have the same."""

    def __len__(self) -> int:
        return len(self.member_S)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch (x, y) of these indices."""
        return self.x[index], self.y[index]

    def compared(self, rng: np.random.Generator) -> Ints:
        """Draw indices of samples with the same ratio of members to non-members in each cell.

        The ratio is a whole number, the one that leaves most to compare: 1 / (1/members + 1/others)
        is largest. In cells with too few members others are left out.

        Raises:
            DataError: no cell has both.
        """
        sizes = {
            cell: (len(self._in(cell, self.member_S)), len(self._in(cell, ~self.member_S)))
            for cell in np.unique(self.cell_S)
        }
        most = max((m // o for m, o in sizes.values() if o), default=0)
        if not most:
            raise DataError("no client has as many samples of a label as there are test samples")
        ratio = max(range(1, most + 1), key=lambda r: _others(sizes.values(), r) * r / (1 + r))
        chosen = []
        for cell, (m, o) in sizes.items():
            n = min(o, m // ratio)
            for side, size in ((self.member_S, ratio * n), (~self.member_S, n)):
                chosen.append(rng.choice(self._in(cell, side), size, replace=False))
        return np.sort(np.concatenate(chosen))

    def _in(self, cell: int, side: NDArray[np.bool_]) -> Ints:
        return np.flatnonzero((self.cell_S == cell) & side)


def candidates(task: Task, rng: np.random.Generator) -> Candidates:
    """Return all that clients train on, and test samples of the labels that they have.

    Each client's own test data stay with it; of data that all share each sample goes to one client,
    drawn by how many of its label each has. Samples of labels that no client has are left out.

    Raises:
        DataError: data that cannot be used.
    """
    own = [whole(data, f"client {i}") for i, data in enumerate(task.clients, 1)]
    if task.client_tests:
        tests = [whole(data, f"test of client {i}") for i, data in enumerate(task.client_tests, 1)]
    else:
        x, y = whole(task.test, "test")
        targets = [*(y for _, y in own), y]
        *label_of, label_S = _split(strata(targets).of_S, targets)
        dealt_S = _dealt(label_S, label_of, rng)
        tests = [(x[dealt_S == i], y[dealt_S == i]) for i in range(len(own))]
    parts = [*own, *tests]
    found = strata([y for _, y in parts])
    label_S = found.of_S
    client_S = np.concatenate([np.full(len(y), i % len(own)) for i, (_, y) in enumerate(parts)])
    member_S = np.repeat([True, False], [sum(len(y) for _, y in side) for side in (own, tests)])
    cell_S = client_S * (label_S.max() + 1) + label_S
    return Candidates(
        torch.cat([x for x, _ in parts]),
        torch.cat([y for _, y in parts]),
        client_S.astype(np.int64),
        cell_S.astype(np.int64),
        member_S,
        found.noun,
    )


def _split(label_S: Ints, parts: Sequence[Tensor]) -> list[Ints]:
    return np.split(label_S, np.cumsum([len(part) for part in parts])[:-1])


def _others(sizes: Iterable[tuple[int, int]], ratio: int) -> int:
    """Return how many non-members are left where each has so many members in its cell."""
    return sum(min(o, m // ratio) for m, o in sizes)


def _dealt(label_S: Ints, label_of: Sequence[Ints], rng: np.random.Generator) -> Ints:
    """Return the client of each sample, by shares of its label; -1 for labels that nobody has."""
    client_S = np.full(len(label_S), -1)
    for label in np.unique(label_S):
        where = rng.permutation(np.flatnonzero(label_S == label))
        n_K = np.array([(own == label).sum() for own in label_of])
        if n_K.any():
            ends_K = np.round(len(where) * n_K.cumsum() / n_K.sum()).astype(int)
            for client, part in enumerate(np.split(where, ends_K[:-1])):
                client_S[part] = client
    return client_S


LARGEST = 700.0
"""Largest |φ|: beyond, p or 1 - p is no number in float64."""
Phi: TypeAlias = NDArray[np.float64]


def confidences(model: nn.Module, data: Samples, loss: Loss) -> Phi:
    """Return φ of each sample, shape (samples,), within ±700; the model is left in evaluation mode.

    Of a classifier that gives one label for a sample p is its softmax, whatever it was trained by.
    Of any other model p = e^-loss. For torch's losses of numbers it is e^-(loss / that of the mean
    target of all samples): for squared errors the likelihood under normal noise, up to its scale.

    Raises:
        DataError: the model gives no numbers, the loss of a sample is negative, or a sample has no
            loss of its own, since that of a batch is no mean of them: Cox's, over pairs.
    """
    model.eval()
    unit = _unit(data, loss)
    device = next(model.parameters()).device
    found = []
    with torch.no_grad():
        for batch in in_order(data):
            x, y = (tensor.to(device) for tensor in batch)
            found.append(_batch(model(x), y, loss, unit).to("cpu", torch.float64).numpy())
    phi_S = np.concatenate(found)
    if np.isnan(phi_S).any():
        raise DataError("the model's output is not a number for some sample: it has diverged")
    return _bounded(phi_S)


def of_losses(losses: ArrayLike) -> Phi:
    """Return φ where p = e^-loss: -loss - log(1 - e^-loss), within ±700.

    Raises:
        DataError: a loss below zero, which is no probability's.
    """
    loss = np.asarray(losses, dtype=np.float64)
    if not (loss >= 0).all():
        raise DataError("a sample's loss is negative or not a number: e^-loss is no probability")
    with np.errstate(divide="ignore"):
        return _bounded(-loss - np.log(-np.expm1(-loss)))


def losses(phi: Phi) -> Phi:
    """Return -log p = log(1 + e^-φ), of any shape."""
    found: Phi = np.logaddexp(0.0, -phi)
    return found


def _bounded(phi: Phi) -> Phi:
    return np.clip(phi, -LARGEST, LARGEST)


def _unit(data: Samples, loss: Loss) -> float:
    """Return the loss of who gives the mean target for every sample; 1 where targets are labels."""
    if not takes_numbers(loss):
        return 1.0
    _, y = data.take(torch.arange(len(data)))
    return float(loss(y.mean(0).expand_as(y), y)) or 1.0


def _batch(output: Any, y: Tensor, loss: Loss, unit: float) -> Tensor:
    classes = y.dim() == 1 and not y.is_floating_point()
    if classes and isinstance(output, Tensor) and output.dim() == 2:
        return _of_logits(output.double(), y)
    each = [float(loss(output[i : i + 1], y[i : i + 1])) for i in range(len(y))]
    _require_own_losses(each, float(loss(output, y)))
    return torch.from_numpy(of_losses(np.asarray(each) / unit))


def _require_own_losses(each: Sequence[float], together: float) -> None:
    """Raise DataError where a batch's loss is no mean, weighted or not, of its samples' losses."""
    room = 1e-4 * max(abs(together), *map(abs, each))
    if not min(each) - room <= together <= max(each) + room:
        raise DataError(
            f"the loss of {len(each)} samples together is {together:.3g}, and those of single ones "
            f"are in {min(each):.3g}..{max(each):.3g}, so it is no mean of them: a sample has no "
            "loss of its own, as in Cox's over pairs, and attacks that go by it cannot be tried"
        )


def _of_logits(logit_BC: Tensor, y_B: Tensor) -> Tensor:
    """Return log p - log(1 - p) = z_y - log Σ_{c ≠ y} e^{z_c}.

    Nothing that is near 1 is subtracted.
    """
    own_B = logit_BC.gather(1, y_B[:, None])[:, 0]
    return own_B - logit_BC.scatter(1, y_B[:, None], -torch.inf).logsumexp(dim=1)

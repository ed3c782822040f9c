"""Data set that is already divided into what trains and what tests."""

from dataclasses import dataclass, replace
from math import isqrt
from typing import TypeAlias

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from securefl.data.catalogue import Targets
from securefl.errors import DataError

TEST_SHARE = 0.2
"""Share that is held out where a data set does not say which samples test."""
Labelled: TypeAlias = tuple[
    Float[Tensor, "_ ..."], Int64[Tensor, "_ ..."] | Float[Tensor, "_ targets"]
]
"""Samples x and the target of each: its class, a class for each voxel, or some numbers."""


# Two splits are compared by identity: tensors have no single truth value to compare by.
@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Training and test samples; labels count from 0, one a sample or a voxel, or are numbers."""

    train_x: Float[Tensor, "train ..."]
    train_y: Int64[Tensor, "train ..."] | Float[Tensor, "train targets"]
    test_x: Float[Tensor, "test ..."]
    test_y: Int64[Tensor, "test ..."] | Float[Tensor, "test targets"]

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of samples that train, and of those that test."""
        return len(self.train_y), len(self.test_y)

    @property
    def n_classes(self) -> int:
        """One more than the largest label of either part."""
        return 1 + int(max(self.train_y.max(), self.test_y.max()))

    def to(self, dtype: torch.dtype) -> "Split":
        """Return the same samples, and targets where they are numbers, in this type of floats."""
        numbers = self.train_y.is_floating_point()
        return Split(
            train_x=self.train_x.to(dtype),
            train_y=self.train_y.to(dtype) if numbers else self.train_y,
            test_x=self.test_x.to(dtype),
            test_y=self.test_y.to(dtype) if numbers else self.test_y,
        )

    def as_images(self) -> "Split":
        """Return the same samples as square images of one channel, `(n, 1, side, side)`.

        Raises:
            DataError: the samples are not flat, or their length is not a square number.
        """
        return replace(self, train_x=_square(self.train_x), test_x=_square(self.test_x))


def n_outputs(form: Targets, *targets: Tensor) -> int:
    """Return the number of a model's outputs: one a class, one a number, or one risk.

    Args:
        form: of the targets.
        targets: those of all samples, in one part or in several.
    """
    if form is Targets.SURVIVAL:
        return 1
    if form is Targets.NUMBERS:
        return targets[0].shape[1]
    return 1 + max(int(y.max()) for y in targets)


def stratified(x: Float[Tensor, "n ..."], y: Int64[Tensor, " n"], seed: int) -> Split:
    """Hold out a fifth of every class for testing; the seed chooses which."""
    from sklearn.model_selection import train_test_split

    parts = train_test_split(
        torch.arange(len(y)).numpy(), test_size=TEST_SHARE, stratify=y.numpy(), random_state=seed
    )
    train, test = map(torch.from_numpy, parts)
    return Split(x[train], y[train], x[test], y[test])


def _square(flat: Float[Tensor, "n ..."]) -> Float[Tensor, "n 1 side side"]:
    shape = tuple(flat.shape[1:])
    side = isqrt(flat[0].numel())
    if shape != (side * side,):
        raise DataError(
            f"samples of shape {shape} are no flat square images: "
            "as_images() needs one axis of side × side values; reshape the samples yourself"
        )
    return flat.reshape(-1, 1, side, side)

"""Samples of one client: arrays or a torch Dataset, and mini-batches of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from securefl.errors import DataError

BATCH = 1024
"""Number of samples at a time, where nothing is learnt from them."""
ClientData = tuple[Tensor, Tensor] | Dataset[tuple[Tensor, Tensor]]
Array = Tensor | np.ndarray[Any, Any]
Given = tuple[Array, Array] | Dataset[Any]
"""Data that a user may give for `ClientData`."""
_ONE_X = "put them side by side in one x (torch.cat((a, b), dim=1)), and split it in the forward"


@runtime_checkable
class Samples(Protocol):
    """Samples by index."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch (x, y) of these indices."""


@dataclass(frozen=True, slots=True)
class TensorSamples:
    """Samples that are in memory as they are."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch: see `Samples.take`."""
        x, y = self.x, self.y
        return x.index_select(0, index.to(x.device)), y.index_select(0, index.to(y.device))


@dataclass(frozen=True, slots=True)
class _DatasetSamples:
    dataset: Dataset[tuple[Tensor, Tensor]]
    owner: str

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # sized, as `samples` has checked

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        pairs = [_fetched(self.dataset, i, self.owner) for i in index.tolist()]
        try:
            x, y = default_collate(pairs)
        except RuntimeError as error:  # of the united data sets of several clients
            raise DataError(
                f"{self.owner}: samples of several shapes or types ({_first_line(error)}); give "
                "all of one"
            ) from error
        return x, y


def _fetched(
    dataset: Dataset[tuple[Tensor, Tensor]], index: int, owner: str
) -> tuple[Tensor, Tensor]:
    try:
        return dataset[index]
    except DataError as error:
        raise DataError(f"{owner}: sample {index}: {error}") from error
    except Exception as error:  # a user's data set may raise anything
        raise DataError(
            f"{owner}: sample {index}: its Dataset raised {type(error).__name__} "
            f"({_first_line(error)}); mend its __getitem__, or leave the sample out"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Types that a model and its loss compute with."""

    floats: torch.dtype | None
    """Type of the model's floats; None where it has several, so that nothing is cast to one."""
    float_targets: bool
    """True where the loss takes floats alone for targets."""

    def of_x(self, x: Tensor) -> Tensor:
        """Return floats in the model's type; all else as it is."""
        return x.to(self.floats) if x.is_floating_point() and self.floats else x

    def of_y(self, y: Tensor) -> Tensor:
        """Return floats in the model's type, and whole numbers as int64, as losses take them."""
        if self.float_targets or y.is_floating_point():
            return y.to(self.floats or (y.dtype if y.is_floating_point() else torch.float32))
        return y.to(torch.int64)


@dataclass(frozen=True, slots=True)
class _Form:
    """Type and shape that all samples of a data set have."""

    dtype: torch.dtype
    shape: torch.Size

    def of(self, values: Tensor, name: str) -> Tensor:
        """Return the values in this type, where it can hold them; raises DataError where not."""
        wider = torch.promote_types(values.dtype, self.dtype)
        if values.shape != self.shape or wider != self.dtype:
            raise DataError(
                f"{name} is {values.dtype} {tuple(values.shape)}, and that of sample 0 is "
                f"{self.dtype} {tuple(self.shape)}; give all samples in one type and shape"
            )
        return values.to(self.dtype)


@dataclass(frozen=True, slots=True)
class _Cast(Dataset[tuple[Tensor, Tensor]]):
    """Data set whose samples come in the model's types, all as the first one."""

    dataset: Dataset[Any]
    dtypes: Dtypes
    forms: tuple[_Form, _Form] | None = None

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # sized, as `client_data_of` has checked

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = _pair(self.dataset[index])
        x, y = self.dtypes.of_x(x), self.dtypes.of_y(y)
        if self.forms is None:
            return x, y
        x_form, y_form = self.forms
        return x_form.of(x, "x"), y_form.of(y, "y")


def given_data(given: object, owner: str, dtypes: Dtypes) -> ClientData:
    """Return one party's given data, with numpy arrays as tensors, in the model's types.

    Raises:
        DataError: neither a pair of arrays nor a Dataset of (x, y) with a length; the message says
            whose they are, what came and what to give.
    """
    if isinstance(given, tuple | list) and len(given) == 2:
        x, y = (_tensor(values, name, owner) for name, values in zip("xy", given, strict=True))
        return dtypes.of_x(x), dtypes.of_y(y)
    iterated = isinstance(given, IterableDataset)
    if isinstance(given, Dataset) and hasattr(given, "__len__") and not iterated:
        return _in_types(given, owner, dtypes)
    raise DataError(f"{owner}: {_refusal(given)}")


def _refusal(given: object) -> str:
    if isinstance(given, DataLoader):
        return "a DataLoader; give its data set, loader.dataset: train.batch_size makes the batches"
    if isinstance(given, Mapping):
        keys = ", ".join(f"{key!r:.40}" for key in list(given)[:8])
        return f"a dict with the keys {keys}; give the pair (x, y) of its arrays"
    if isinstance(given, IterableDataset):
        return f"{type(given).__name__} has no samples by index; give a Dataset, or (x, y)"
    if isinstance(given, Dataset):
        return f"{type(given).__name__} has no length; give a Dataset with __len__, or (x, y)"
    if isinstance(given, tuple | list):
        return f"{len(given)} values; give (x, y); several inputs: {_ONE_X}"
    return (
        f"{type(given).__name__}; give (x, y) tensors or numpy arrays, or a torch Dataset with a "
        "length"
    )


def _tensor(values: object, name: str, owner: str) -> Tensor:
    if isinstance(values, tuple | list) and any(
        isinstance(of, Tensor | np.ndarray) for of in values
    ):
        way_out = _ONE_X if name == "x" else "one target for each sample"
        raise DataError(f"{owner}: {name} is {len(values)} arrays; {way_out}")
    if not isinstance(values, Tensor | np.ndarray):
        way = f"{name}.to_numpy()" if hasattr(values, "to_numpy") else f"torch.as_tensor({name})"
        raise DataError(
            f"{owner}: {name} is {type(values).__name__}; give a tensor or a numpy array: {way}"
        )
    try:
        values = _readable(values, name)
    except DataError as error:
        raise DataError(f"{owner}: {error}") from error
    if values.dim() == 0:
        raise DataError(f"{owner}: {name} is one number; give an entry for each sample")
    return values


def _readable(values: Array, name: str) -> Tensor:
    """Return the values as a dense tensor; DataError where some are none, or no numbers."""
    if np.ma.is_masked(values):
        raise DataError(
            f"{name} is an array with {np.ma.count_masked(values)} masked values; give them "
            f"values, {name}.filled(...), or leave their samples out"
        )
    if isinstance(values, np.ndarray):
        native = values.dtype.newbyteorder("=")
        try:  # a copy where torch could not write to it, or not read it
            return torch.from_numpy(np.require(values, native, ["C", "W"]))
        except TypeError as error:
            raise DataError(f"{name} holds {values.dtype}; give numbers") from error
    if values.layout is not torch.strided:
        layout = str(values.layout).removeprefix("torch.")
        raise DataError(f"{name} is a {layout} tensor; give a dense one: {name}.to_dense()")
    return values


def _in_types(dataset: Dataset[Any], owner: str, dtypes: Dtypes) -> ClientData:
    """Return the data set with each sample in the model's types."""
    if isinstance(dataset, _Cast):  # of a task that is made again, for another device
        dataset = dataset.dataset
    cast = _Cast(dataset, dtypes)
    if not len(cast):
        return cast
    x, y = _fetched(cast, 0, owner)
    return _Cast(dataset, dtypes, (_Form(x.dtype, x.shape), _Form(y.dtype, y.shape)))


def _pair(sample: object) -> tuple[Tensor, Tensor]:
    """Return one sample of a data set as tensors; raises DataError where it is no (x, y)."""
    if isinstance(sample, Mapping):
        keys = ", ".join(f"{key!r:.40}" for key in list(sample)[:8])
        raise DataError(
            f"a dict with the keys {keys}; give a Dataset whose __getitem__ returns (x, y)"
        )
    if not (isinstance(sample, tuple | list) and len(sample) == 2):
        n = f"{len(sample)} values" if isinstance(sample, tuple | list) else type(sample).__name__
        raise DataError(f"{n}; give (x, y); several inputs: {_ONE_X}")
    x, y = sample
    if isinstance(x, tuple | list):
        raise DataError(f"x is {len(x)} values; {_ONE_X}")
    return _value(x, "x"), _value(y, "y")


def _value(value: object, name: str) -> Tensor:
    if not isinstance(value, Tensor | np.ndarray | np.generic | int | float):
        raise DataError(f"{name} is {type(value).__name__}; give a tensor")
    # numpy has Python's floats in double precision, where torch has them in single.
    return _readable(value if isinstance(value, Tensor) else np.asanyarray(value), name)


def samples(data: ClientData, owner: str) -> Samples:
    """Return one client's data, checked.

    Raises:
        DataError: fewer than two samples (batch normalisation needs two), x and y of different
            lengths, values that are not finite, or neither tensors nor a sized Dataset.
    """
    if isinstance(data, tuple):
        x, y = data
        if len(x) != len(y):
            raise DataError(f"{owner}: {len(x)} inputs but {len(y)} labels")
        for name, values in (("inputs", x), ("targets", y)):
            if values.is_floating_point() and not torch.isfinite(values).all():
                raise DataError(f"{owner}: {name} hold NaN or infinity; clean them first")
        found: Samples = TensorSamples(x, y)
    else:
        found = _DatasetSamples(data, owner)
    if len(found) < 2:
        raise DataError(
            f"{owner}: {len(found)} samples; batch normalisation needs at least two: give it more"
        )
    return found


def in_order(data: Samples, batch_size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of all samples, each once; the last one has what is left."""
    for index in torch.arange(len(data)).split(batch_size):
        yield data.take(index)


def whole(data: ClientData, owner: str) -> tuple[Tensor, Tensor]:
    """Return all of one party's samples as tensors; raises DataError as `samples`."""
    found = samples(data, owner)
    return found.take(torch.arange(len(found)))


def minibatches(
    data: Samples, batch_size: int, rng: torch.Generator, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches without end, drawn without replacement; each permutation is a new one.

    Each has min(batch_size, n) samples.
    """
    where = data.x.device if isinstance(data, TensorSamples) else torch.device("cpu")
    for index in batch_indices(len(data), batch_size, rng, where):
        x, y = data.take(index)
        yield x.to(device), y.to(device)


def batch_indices(
    n_samples: int, batch_size: int, rng: torch.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Yield the indices of each of `minibatches`, on a device that gets a permutation at a time."""
    while True:
        # Drawn on the CPU whatever the device, so that a seed gives the same batches everywhere.
        yield from batches_of(torch.randperm(n_samples, generator=rng).to(device), batch_size)


def batches_of(order: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Yield a permutation in batches of one size, without what is left over."""
    size = min(batch_size, len(order))
    for start in range(0, len(order) - size + 1, size):
        yield order[start : start + size]


def batches_in_epoch(data: Samples, batch_size: int) -> int:
    """Return the number of `minibatches` that one permutation of the data gives."""
    return len(data) // min(batch_size, len(data))

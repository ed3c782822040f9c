"""MedMNIST v2's single-label sets of 28 × 28 images (Yang et al., Scientific Data 10:41, 2023).

Left out are ChestMNIST, whose images have several labels each, RetinaMNIST, whose grades are
ordered, and the sets of volumes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from securefl.data.arrays import load_npz
from securefl.data.files import as_labels, as_pixels, check_file, locate
from securefl.data.split import Split
from securefl.errors import DataError
from securefl.settings.data import DataTable

_SIDE = 28
_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True, slots=True)
class MedSet:
    """Form of one set, and its file's checksums."""

    n_classes: int
    n_channels: int
    md5: tuple[str, ...]
    """Checksum of each release that is on Zenodo (6496656 and 10519652); one where both are
    alike."""


MEDMNIST: Mapping[str, MedSet] = MappingProxyType(
    {
        "pathmnist": MedSet(9, 3, ("a8b06965200029087d5bd730944a56c1",)),
        "dermamnist": MedSet(7, 3, ("0744692d530f8e62ec473284d019b0c7",)),
        "octmnist": MedSet(4, 1, ("c68d92d5b585d8d81f7112f81e2d0842",)),
        "pneumoniamnist": MedSet(2, 1, ("28209eda62fecd6e6a2d98b1501bb15f",)),
        "breastmnist": MedSet(2, 1, ("750601b1f35ba3300ea97c75c52ff8f6",)),
        "bloodmnist": MedSet(8, 3, ("7053d0359d879ad8a5505303e11de1dc",)),
        "tissuemnist": MedSet(8, 1, ("ebe78ee8b05294063de985d821c1c34b",)),
        "organamnist": MedSet(
            11, 1, ("866b832ed4eeba67bfb9edee1d5544e6", "68e3f8846a6bd62f0c9bf841c0d9eacc")
        ),
        "organcmnist": MedSet(
            11, 1, ("0afa5834fb105f7705a7d93372119a21", "b9ceb9546e10131b32923c5bbeaea2b1")
        ),
        "organsmnist": MedSet(
            11, 1, ("e5c39f1af030238290b9557d9503af9d", "9ab87b696fb54e2a387ebe992d6ed5f1")
        ),
    }
)
"""Sets by their names, which are those of their files."""


def read_medmnist(data: DataTable, _seed: int) -> Split:
    """Return the set of this name; raises as `load_medmnist`."""
    return load_medmnist(data.folder, data.dataset, MEDMNIST[data.dataset])


def load_medmnist(root: str | Path, name: str, form: MedSet) -> Split:
    """Load one set as images of (channels, 28, 28), in [0, 1].

    Its training part trains and its test part tests. Its validation part, a tenth of what both
    were made of, is for choosing a model by, which nothing does here: it is not read.

    Args:
        root: holds `name`.npz.
        name: a key of `MEDMNIST`.
        form: what is expected; no checksum is compared where it has none.

    Raises:
        DataError: the file is missing, damaged or another one; the message says what to put where.
    """
    path = locate(Path(root), (f"{name}.npz",), f"MedMNIST's {name}.npz (28 × 28)")
    if form.md5:
        check_file(path, "md5", *form.md5)
    arrays = load_npz(path, _ARRAYS)
    if missing := [array for array in _ARRAYS if array not in arrays]:
        raise DataError(f"{path}: has no array {', '.join(missing)}; get the file again")
    train, test = (
        _part(path, arrays[f"{part}_images"], arrays[f"{part}_labels"], form)
        for part in ("train", "test")
    )
    return Split(*train, *test)


def _part(
    path: Path, images: Tensor, labels: Tensor, form: MedSet
) -> tuple[Float[Tensor, "n C 28 28"], Int64[Tensor, " n"]]:
    shape = (_SIDE, _SIDE) if form.n_channels == 1 else (_SIDE, _SIDE, form.n_channels)
    if images.dtype is not torch.uint8 or tuple(images.shape[1:]) != shape or not len(images):
        raise DataError(
            f"{path}: {images.dtype} images of shape {tuple(images.shape)}; expected "
            f"{', '.join(map(str, ('n', *shape)))} bytes"
        )
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool)
    if not whole or tuple(labels.shape) != (len(images), 1):
        raise DataError(
            f"{path}: {labels.dtype} labels of shape {tuple(labels.shape)} for {len(images)} "
            "images; expected one whole number for each"
        )
    pixels = images.unsqueeze(1) if form.n_channels == 1 else images.movedim(-1, 1)
    return as_pixels(pixels.numpy()), as_labels(labels[:, 0].numpy(), form.n_classes, path)

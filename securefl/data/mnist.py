"""MNIST, EMNIST, and other data sets of 28 × 28 images in MNIST's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from jaxtyping import UInt8

from securefl.data.files import as_labels, as_pixels, check_md5, locate
from securefl.data.idx import read_idx
from securefl.data.split import Split
from securefl.errors import ConfigError, DataError

MNIST_MD5: Mapping[str, str] = MappingProxyType(
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    }
)
FASHION_MNIST_MD5: Mapping[str, str] = MappingProxyType(
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    }
)
EMNIST_CLASSES: Mapping[str, int] = MappingProxyType(
    {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
)

_SAMPLE_SHAPE = (28, 28)
_Bytes: TypeAlias = UInt8[np.ndarray, "..."]


def load_mnist(root: str | Path, md5s: Mapping[str, str] = MNIST_MD5) -> Split:
    """60000 training and 10000 test digits as images of (1, 28, 28).

    A .gz file goes before an unpacked one and is compared with `md5s`. Of unpacked files no
    official checksum is known: only their form is checked.

    Args:
        root: holds train-images-idx3-ubyte, train-labels-idx1-ubyte and the same of t10k, with or
            without .gz.
        md5s: by file name; `FASHION_MNIST_MD5` for that data set, whose files have the same names,
            {} to check none.

    Raises:
        DataError: a file is missing, damaged or another one; the message says what to put where.
    """
    source = "MNIST's train-… and t10k-… files (IDX, .gz or unpacked)"
    return _split(Path(root), ("train", "t10k"), source, n_classes=10, md5s=md5s)


def load_emnist(root: str | Path, split: str) -> Split:
    """One of EMNIST's six splits, as upright images of (1, 28, 28) with labels from 0.

    The files hold every image transposed; here they stand as MNIST's do. "letters" counts its
    labels from 1; here A is 0. The official checksum is that of the archive: no file is compared.

    Args:
        root: where gzip.zip was unpacked: its folder gzip, or the folder that holds that.
        split: a key of `EMNIST_CLASSES`.

    Raises:
        ConfigError: no such split.
        DataError: a file is missing or damaged; the message says what to put where.
    """
    if split not in EMNIST_CLASSES:
        raise ConfigError(f'EMNIST split = "{split}": must be one of {", ".join(EMNIST_CLASSES)}')
    parts = (f"emnist-{split}-train", f"emnist-{split}-test")
    n_classes = EMNIST_CLASSES[split]
    return _split(Path(root), parts, "EMNIST's unpacked gzip.zip", n_classes, md5s={})


def _split(
    root: Path, parts: tuple[str, str], source: str, n_classes: int, md5s: Mapping[str, str]
) -> Split:
    # All files are found before one is read: a missing one shows at once.
    paths = [
        locate(root, (f"{name}.gz", name, f"gzip/{name}.gz", f"gzip/{name}"), source)
        for part in parts
        for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    ]
    for path in paths:
        if path.name in md5s:
            check_md5(path, md5s[path.name])
    train_x, train_y = _part(paths[0], paths[1])
    test_x, test_y = _part(paths[2], paths[3])
    return Split(
        train_x=as_pixels(train_x),
        train_y=as_labels(train_y, n_classes, paths[1]),
        test_x=as_pixels(test_x),
        test_y=as_labels(test_y, n_classes, paths[3]),
    )


def _part(images_path: Path, labels_path: Path) -> tuple[_Bytes, _Bytes]:
    images, labels = read_idx(images_path, _SAMPLE_SHAPE), read_idx(labels_path, ())
    if not len(images) or len(images) != len(labels):
        raise DataError(
            f"{images_path}: {len(images)} images, but {len(labels)} labels in {labels_path.name}"
        )
    if images_path.name.startswith("emnist"):
        images = images.transpose(0, 2, 1)
    if images_path.name.startswith("emnist-letters"):
        labels = labels - np.uint8(1)  # a label 0 becomes 255, which is refused with the others
    return images[:, None], labels

"""CIFAR-10 and CIFAR-100, in their binary version (Krizhevsky 2009).

The version for Python is pickled, and a pickle runs code when it is read; it is never opened here.
The official checksums are those of the archives: no file is compared, only its form.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from securefl.data.files import as_labels, as_pixels, locate, read
from securefl.data.split import Split
from securefl.errors import DataError

_IMAGE_SHAPE = (3, 32, 32)
_IMAGE_BYTES = 3 * 32 * 32
_MAX_BYTES = 1 << 29  # the largest, CIFAR-100's train.bin, has 154 MB


class Cifar100Target(IntEnum):
    """Which label of CIFAR-100 is learnt; the value is its byte in a record."""

    COARSE = 0
    FINE = 1


def load_cifar10(root: str | Path) -> Split:
    """50000 training and 10000 test images of (3, 32, 32), ten classes.

    Args:
        root: cifar-10-batches-bin as unpacked from cifar-10-binary.tar.gz, or its parent folder.

    Raises:
        DataError: a file is missing or damaged, or only the pickled version is there.
    """
    folder = _folder(Path(root), "cifar-10-batches-bin", "cifar-10-batches-py", "cifar-10-binary")
    source = "cifar-10-binary.tar.gz, unpacked,"
    train = [locate(folder, (f"data_batch_{i}.bin",), source) for i in range(1, 6)]
    test = [locate(folder, ("test_batch.bin",), source)]
    return _split(train, test, n_label_bytes=1, label_byte=0, n_classes=10)


def load_cifar100(root: str | Path, target: Cifar100Target = Cifar100Target.FINE) -> Split:
    """50000 training and 10000 test images of (3, 32, 32), 100 fine or 20 coarse classes.

    Args:
        root: cifar-100-binary as unpacked from cifar-100-binary.tar.gz, or its parent folder.
        target: the label to learn.

    Raises:
        DataError: a file is missing or damaged, or only the pickled version is there.
    """
    folder = _folder(Path(root), "cifar-100-binary", "cifar-100-python", "cifar-100-binary")
    source = "cifar-100-binary.tar.gz, unpacked,"
    train, test = (locate(folder, (name,), source) for name in ("train.bin", "test.bin"))
    n_classes = 100 if target is Cifar100Target.FINE else 20
    return _split([train], [test], n_label_bytes=2, label_byte=target, n_classes=n_classes)


def _folder(root: Path, binary: str, pickled: str, archive: str) -> Path:
    if (root / binary).is_dir():
        return root / binary
    if (root / pickled).is_dir() or root.name == pickled:
        raise DataError(
            f"{root}: holds the pickled version ({pickled}), which could run code when read; "
            f"get the binary version ({archive}.tar.gz) and unpack it there"
        )
    return root


def _split(
    train: list[Path], test: list[Path], n_label_bytes: int, label_byte: int, n_classes: int
) -> Split:
    train_x, train_y = _part(train, n_label_bytes, label_byte, n_classes)
    test_x, test_y = _part(test, n_label_bytes, label_byte, n_classes)
    return Split(train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)


def _part(
    paths: list[Path], n_label_bytes: int, label_byte: int, n_classes: int
) -> tuple[Float[Tensor, "n 3 32 32"], Int64[Tensor, " n"]]:
    files = [_records(path, n_label_bytes) for path in paths]
    labels = [
        as_labels(records[:, label_byte], n_classes, path)
        for records, path in zip(files, paths, strict=True)
    ]
    images = np.concatenate([records[:, n_label_bytes:] for records in files])
    return as_pixels(images.reshape(-1, *_IMAGE_SHAPE)), torch.cat(labels)


def _records(path: Path, n_label_bytes: int) -> UInt8[np.ndarray, "n record"]:
    """One record per row: the labels' bytes, then red, green and blue row by row."""
    content = read(path, _MAX_BYTES)
    n_record_bytes = n_label_bytes + _IMAGE_BYTES
    if not content or len(content) % n_record_bytes:
        raise DataError(
            f"{path}: {len(content)} bytes are no whole number of records of {n_record_bytes}; "
            "get the file again"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, n_record_bytes)

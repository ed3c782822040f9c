"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), CIFAR-10-C (Hendrycks & Dietterich 2019).

The version for Python is pickled, and a pickle runs code when it is read; it is never opened here.
The authors publish checksums of the archives alone. Those of the files, whatever archive they came
in, are from MXNet 1.9.1 (`gluon.data.vision`) and torch-uncertainty 0.13.0 (CIFAR-10-C), which
compare each file that they read.
"""

import math
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped, UInt8
from torch import Tensor

from securefl.data.files import (
    Domains,
    as_labels,
    as_pixels,
    check_file,
    locate,
    n_bytes_of,
    read,
)
from securefl.data.split import Split
from securefl.errors import ConfigError, DataError
from securefl.settings.data import DataTable

_IMAGE_SHAPE = (3, 32, 32)
_IMAGE_BYTES = 3 * 32 * 32
_MAX_BYTES = 1 << 29  # the largest, CIFAR-100's train.bin, has 154 MB


CIFAR10_SHA1: Mapping[str, str] = MappingProxyType(
    {
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
    }
)
CIFAR100_SHA1: Mapping[str, str] = MappingProxyType(
    {
        "train.bin": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e",
        "test.bin": "8fb6623e830365ff53cf14adec797474f5478006",
    }
)
CIFAR10_C_MD5: Mapping[str, str] = MappingProxyType(
    {
        "brightness.npy": "0a81ef75e0b523c3383219c330a85d48",
        "contrast.npy": "3c8262171c51307f916c30a3308235a8",
        "defocus_blur.npy": "7d1322666342a0702b1957e92f6254bc",
        "elastic_transform.npy": "9421657c6cd452429cf6ce96cc412b5f",
        "fog.npy": "7b397314b5670f825465fbcd1f6e9ccd",
        "frost.npy": "31f6ab3bce1d9934abfb0cc13656f141",
        "gaussian_blur.npy": "c33370155bc9b055fb4a89113d3c559d",
        "gaussian_noise.npy": "ecaf8b9a2399ffeda7680934c33405fd",
        "glass_blur.npy": "7361fb4019269e02dbf6925f083e8629",
        "impulse_noise.npy": "2090e01c83519ec51427e65116af6b1a",
        "jpeg_compression.npy": "2b9cc4c864e0193bb64db8d7728f8187",
        "labels.npy": "c439b113295ed5254878798ffe28fd54",
        "motion_blur.npy": "fffa5f852ff7ad299cfe8a7643f090f4",
        "pixelate.npy": "0f14f7e2db14288304e1de10df16832f",
        "saturate.npy": "1cfae0964219c5102abbb883e538cc56",
        "shot_noise.npy": "3a7239bb118894f013d9bf1984be7f11",
        "snow.npy": "bb238de8555123da9c282dea23bd6e55",
        "spatter.npy": "8a5a3903a7f8f65b59501a6093b4311e",
        "speckle_noise.npy": "ef00b87611792b00df09c0b0237a1e30",
        "zoom_blur.npy": "6ea8e63f1c5cdee1517533840641641b",
    }
)
"""Digests by the files' names, a file being its content: none of them is packed."""


class Cifar100Target(IntEnum):
    """Label of CIFAR-100 that is learnt; the value is its byte in a record."""

    COARSE = 0
    FINE = 1


def read_cifar10(data: DataTable, _seed: int) -> Split:
    """Return CIFAR-10; raises as `load_cifar10`."""
    return load_cifar10(data.folder, CIFAR10_SHA1)


def read_cifar100(data: DataTable, _seed: int) -> Split:
    """Return CIFAR-100; raises as `load_cifar100`."""
    return load_cifar100(data.folder, sha1s=CIFAR100_SHA1)


def load_cifar10(root: str | Path, sha1s: Mapping[str, str] = MappingProxyType({})) -> Split:
    """Load 50000 training and 10000 test images of (3, 32, 32), ten classes.

    Args:
        root: cifar-10-batches-bin as unpacked from cifar-10-binary.tar.gz, or its parent folder.
        sha1s: digests by name; a file without one is not compared.

    Raises:
        DataError: a file is missing or damaged, or only the pickled version is there.
    """
    folder = _folder(Path(root), "cifar-10-batches-bin", "cifar-10-batches-py", "cifar-10-binary")
    source = "cifar-10-binary.tar.gz, unpacked,"
    train = [locate(folder, (f"data_batch_{i}.bin",), source) for i in range(1, 6)]
    test = [locate(folder, ("test_batch.bin",), source)]
    _compare((*train, *test), "sha1", sha1s)
    return _split(train, test, n_label_bytes=1, label_byte=0, n_classes=10)


def load_cifar100(
    root: str | Path,
    target: Cifar100Target = Cifar100Target.FINE,
    sha1s: Mapping[str, str] = MappingProxyType({}),
) -> Split:
    """Load 50000 training and 10000 test images of (3, 32, 32), 100 fine or 20 coarse classes.

    Args:
        root: cifar-100-binary as unpacked from cifar-100-binary.tar.gz, or its parent folder.
        target: the label to learn.
        sha1s: digests by name; a file without one is not compared.

    Raises:
        DataError: a file is missing or damaged, or only the pickled version is there.
    """
    folder = _folder(Path(root), "cifar-100-binary", "cifar-100-python", "cifar-100-binary")
    source = "cifar-100-binary.tar.gz, unpacked,"
    train, test = (locate(folder, (name,), source) for name in ("train.bin", "test.bin"))
    _compare((train, test), "sha1", sha1s)
    n_classes = 100 if target is Cifar100Target.FINE else 20
    return _split([train], [test], n_label_bytes=2, label_byte=target, n_classes=n_classes)


def _compare(paths: Sequence[Path], algorithm: str, digests: Mapping[str, str]) -> None:
    for path in paths:
        if digest := digests.get(path.name):
            check_file(path, algorithm, digest)


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
    """Return one record per row: the labels' bytes, then red, green and blue row by row."""
    content = read(path, _MAX_BYTES)
    n_record_bytes = n_label_bytes + _IMAGE_BYTES
    if not content or len(content) % n_record_bytes:
        raise DataError(
            f"{path}: {len(content)} bytes are no whole number of records of {n_record_bytes}; "
            "get the file again"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, n_record_bytes)


_N_SEVERITIES = 5
_CORRUPTED_SHAPE = (32, 32, 3)
_MAX_CORRUPTED_BYTES = 1 << 29  # a file of all five severities has 154 MB
_SOURCE = "the files of CIFAR-10-C.tar"

# The start of an .npy file, and the one form of description that numpy writes for plain numbers.
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([|<][iu][1248])', 'fortran_order': False, "
    rb"'shape': \(([1-9][0-9]{0,8}(?:, [1-9][0-9]{0,8})*),?\), \} *\n"
)


def read_cifar10_c(data: DataTable, _seed: int) -> Domains:
    """Return the corruptions that the settings name, or all; raises as `load_cifar10_c`."""
    return load_cifar10_c(data.folder, list(data.families), data.severity, CIFAR10_C_MD5)


def load_cifar10_c(
    root: str | Path,
    names: Sequence[str],
    severity: int,
    md5s: Mapping[str, str] = MappingProxyType({}),
) -> Domains:
    """Load 10000 images of (3, 32, 32) per corruption, with CIFAR-10's test labels.

    Every file holds all severities, one after the other; only the one asked for is read.

    Args:
        root: the folder CIFAR-10-C, or the one that holds it.
        names: corruptions as their files are called, without .npy: "gaussian_noise", "fog".
        severity: 1 (mild) to 5.
        md5s: digests by name; a file without one is not compared.

    Raises:
        ConfigError: a name that is no file's, or no such severity.
        DataError: a file is missing or damaged; the message says what to put where.
    """
    if severity not in range(1, _N_SEVERITIES + 1):
        raise ConfigError(f"severity = {severity}: must be 1..{_N_SEVERITIES}")
    for name in names:
        if not re.fullmatch(r"[a-z_]+", name):
            raise ConfigError(f'corruption = "{name}": write it as its file, "gaussian_noise"')
    labels_path, *paths = (
        locate(Path(root), (f"{name}.npy", f"CIFAR-10-C/{name}.npy"), _SOURCE)
        for name in ("labels", *names)
    )
    _compare((labels_path, *paths), "md5", md5s)
    labels = as_labels(_fifth(labels_path, (), severity), 10, labels_path)
    domains = {}
    for name, path in zip(names, paths, strict=True):
        images = _fifth(path, _CORRUPTED_SHAPE, severity)
        if images.dtype != np.uint8 or len(images) != len(labels):
            raise DataError(
                f"{path}: {len(images)} images of {images.dtype} per severity; "
                f"expected {len(labels)} of uint8, as many as labels"
            )
        domains[name] = (as_pixels(images.transpose(0, 3, 1, 2)), labels)
    return domains


def _fifth(path: Path, sample_shape: tuple[int, ...], severity: int) -> Shaped[np.ndarray, "n ..."]:
    """Return one severity's rows, mapped from the file."""
    _check_npy(path, sample_shape)
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file again") from error
    n_rows = len(rows) // _N_SEVERITIES
    return np.asarray(rows[(severity - 1) * n_rows : severity * n_rows])


def _check_npy(path: Path, sample_shape: tuple[int, ...]) -> None:
    """Check an .npy file against its real length before numpy evaluates its description."""
    n_bytes = n_bytes_of(path, _MAX_CORRUPTED_BYTES)
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC) + 2)
            header = file.read(int.from_bytes(start[len(_MAGIC) :], "little"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    described = _HEADER.fullmatch(header)
    if not start.startswith(_MAGIC) or described is None:
        raise DataError(f"{path}: is no .npy file of whole numbers; get the file again")
    shape = tuple(int(axis) for axis in described[2].split(b", "))
    if shape[1:] != sample_shape or not shape[0] or shape[0] % _N_SEVERITIES:
        raise DataError(
            f"{path}: has shape {shape}; expected {_N_SEVERITIES} × n samples of {sample_shape}"
        )
    n_expected = len(start) + len(header) + math.prod(shape) * int(described[1][2:])
    if n_bytes != n_expected:
        raise DataError(f"{path}: {n_bytes} bytes, its header says {n_expected}")

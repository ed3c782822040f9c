"""MNIST, EMNIST, and other data sets of 28 × 28 images in MNIST's files (IDX).

Two zero bytes, the type (8: unsigned byte), the number of axes, each axis as a big-endian 32-bit
number, then the values.
"""

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Mapping
from io import BufferedIOBase
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from jaxtyping import UInt8

from securefl.data.files import (
    as_labels,
    as_pixels,
    check_archive,
    check_content,
    check_sizes,
    locate,
    n_bytes_of,
)
from securefl.data.split import Split
from securefl.errors import ConfigError, DataError
from securefl.settings.data import DataTable

_MAX_BYTES = 1 << 30  # the largest of these, EMNIST's training images by class, has half of it
_DEFLATE_RATIO = 1032  # no byte of a .gz file unpacks to more than this
_CHUNK_BYTES = 1 << 20


def read_idx(
    path: Path, sample_shape: tuple[int, ...], sha256: str | None = None
) -> UInt8[np.ndarray, "n ..."]:
    """Read the samples of one file, unpacked if its name ends in .gz.

    Args:
        path: the file.
        sample_shape: of one sample.
        sha256: of the unpacked file, where it is known.

    Raises:
        DataError: not such a file, samples of another shape, a length other than its header's, or
            another content than the known one.
    """
    n_bytes = n_bytes_of(path, _MAX_BYTES)
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            header, shape = _header(file, sample_shape, path)
            possible = n_bytes * _DEFLATE_RATIO if packed else n_bytes
            values = _values(file, math.prod(shape), min(possible, _MAX_BYTES), path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file again") from error
    if sha256 is not None:
        _check_content(path, header + values, sha256)
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def _check_content(path: Path, content: bytes, sha256: str) -> None:
    """Compare as `check_content`; files of the other data set of these names are called by it."""
    try:
        check_content(path, content, sha256)
    except DataError as error:
        found = hashlib.sha256(content).hexdigest()
        known = {"mnist": MNIST_SHA256, "fashion-mnist": FASHION_MNIST_SHA256}
        for name, digests in known.items():
            if found in digests.values():
                raise DataError(f'{path}: is of {name}; set data.dataset = "{name}"') from error
        raise


def _header(
    file: BufferedIOBase, sample_shape: tuple[int, ...], path: Path
) -> tuple[bytes, tuple[int, ...]]:
    """Return the header's bytes, and the shape that it says."""
    n_axes = 1 + len(sample_shape)
    magic = bytes((0, 0, 8, n_axes))
    header = _at_most(file, 4 + 4 * n_axes)
    if header[:4] != magic:
        raise DataError(
            f"{path}: starts with {header[:4].hex() or 'nothing'}, "
            f"an IDX file of bytes with {n_axes} axes starts with {magic.hex()}"
        )
    if len(header) < 4 + 4 * n_axes:
        raise DataError(f"{path}: ends within its header; get the file again")
    shape = struct.unpack(f">{n_axes}I", header[4:])
    if shape[1:] != sample_shape:
        raise DataError(f"{path}: samples of shape {shape[1:]}, expected {sample_shape}")
    return header, shape


def _values(file: BufferedIOBase, n_values: int, max_bytes: int, path: Path) -> bytes:
    if n_values > max_bytes:
        raise DataError(
            f"{path}: its header speaks of {n_values} values, more than the file can hold; "
            "get the file again"
        )
    values = _at_most(file, n_values + 1)
    if len(values) != n_values:
        relation = "fewer" if len(values) < n_values else "more"
        raise DataError(f"{path}: has {relation} than the {n_values} values that its header says")
    return values


def _at_most(file: BufferedIOBase, n_bytes: int) -> bytes:
    """Read up to `n_bytes`, in pieces: memory grows with what comes, not with what is announced."""
    pieces = bytearray()
    while len(pieces) < n_bytes and (piece := file.read(min(_CHUNK_BYTES, n_bytes - len(pieces)))):
        pieces += piece
    return bytes(pieces)


_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# Of what is in the .gz files, so that it does not matter who packed them. MNIST's are published by
# many who took it from its first place, all alike; Fashion-MNIST's are of Debian's package.
MNIST_SHA256: Mapping[str, str] = MappingProxyType(
    dict(
        zip(
            _FILES,
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            strict=True,
        )
    )
)
FASHION_MNIST_SHA256: Mapping[str, str] = MappingProxyType(
    dict(
        zip(
            _FILES,
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            strict=True,
        )
    )
)
EMNIST_CLASSES: Mapping[str, int] = MappingProxyType(
    {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
)

EMNIST_SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        **dict.fromkeys(("byclass", "bymerge"), (697_932, 116_323)),
        "balanced": (112_800, 18_800),
        "letters": (124_800, 20_800),
        "digits": (240_000, 40_000),
        "mnist": (60_000, 10_000),
    }
)
"""Images of each split that train and that test in NIST's files; the paper counts fewer letters."""

_SAMPLE_SHAPE = (28, 28)
_Bytes: TypeAlias = UInt8[np.ndarray, "..."]


def read_mnist(data: DataTable, _seed: int) -> Split:
    """Return MNIST; raises as `load_mnist`."""
    return load_mnist(data.folder, MNIST_SHA256)


def read_fashion_mnist(data: DataTable, _seed: int) -> Split:
    """Return Fashion-MNIST; raises as `load_mnist`."""
    return load_mnist(data.folder, FASHION_MNIST_SHA256, "Fashion-MNIST")


def read_emnist(data: DataTable, _seed: int) -> Split:
    """Return the split of EMNIST that the data set's name ends in.

    Raises:
        DataError: as `load_emnist`, or it has another number of images.
    """
    check_archive(data.folder, "gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e")
    name = data.dataset.removeprefix("emnist-")
    split = load_emnist(data.folder, name)
    known = {of: sizes for of, sizes in EMNIST_SIZES.items() if of == name}
    check_sizes(data.folder, {name: split.sizes}, known)
    return split


def load_mnist(
    root: str | Path, sha256s: Mapping[str, str] = MNIST_SHA256, name: str = "MNIST"
) -> Split:
    """Load 60000 training and 10000 test digits as images of (1, 28, 28).

    A .gz file goes before an unpacked one. The content of each, unpacked, is compared with
    `sha256s`: how a file was packed does not matter.

    Args:
        root: holds train-images-idx3-ubyte, train-labels-idx1-ubyte and the same of t10k, with or
            without .gz.
        sha256s: by name of the unpacked file; `FASHION_MNIST_SHA256` for that data set, whose files
            have the same names, {} to compare none.
        name: of the data set, for messages.

    Raises:
        DataError: a file is missing, damaged or another one; the message says what to put where.
    """
    source = f"{name}'s train-… and t10k-… files (IDX, .gz or unpacked)"
    return _split(Path(root), ("train", "t10k"), source, n_classes=10, sha256s=sha256s)


def load_emnist(root: str | Path, split: str) -> Split:
    """Load one of EMNIST's six splits, as upright images of (1, 28, 28) with labels from 0.

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
    return _split(Path(root), parts, "EMNIST's unpacked gzip.zip", n_classes, sha256s={})


def _split(
    root: Path, parts: tuple[str, str], source: str, n_classes: int, sha256s: Mapping[str, str]
) -> Split:
    # All files are found before one is read: a missing one shows at once.
    paths = [
        locate(root, (f"{name}.gz", name, f"gzip/{name}.gz", f"gzip/{name}"), source)
        for part in parts
        for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    ]
    train_x, train_y = _part(paths[0], paths[1], sha256s)
    test_x, test_y = _part(paths[2], paths[3], sha256s)
    return Split(
        train_x=as_pixels(train_x),
        train_y=as_labels(train_y, n_classes, paths[1]),
        test_x=as_pixels(test_x),
        test_y=as_labels(test_y, n_classes, paths[3]),
    )


def _part(
    images_path: Path, labels_path: Path, sha256s: Mapping[str, str]
) -> tuple[_Bytes, _Bytes]:
    images, labels = (
        read_idx(path, shape, sha256s.get(path.name.removesuffix(".gz")))
        for path, shape in ((images_path, _SAMPLE_SHAPE), (labels_path, ()))
    )
    if not len(images) or len(images) != len(labels):
        raise DataError(
            f"{images_path}: {len(images)} images, but {len(labels)} labels in {labels_path.name}"
        )
    if images_path.name.startswith("emnist"):
        images = images.transpose(0, 2, 1)
    if images_path.name.startswith("emnist-letters"):
        labels = labels - np.uint8(1)  # a label 0 becomes 255, which is refused with the others
    return images[:, None], labels

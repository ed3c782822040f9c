"""Samples that a user has saved as two arrays: x and y of an .npz or a .safetensors file."""

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open
from torch import Tensor

from securefl.data.files import n_bytes_of
from securefl.errors import DataError
from securefl.io.files import require_tensors

SUFFIXES = frozenset({".npz", ".safetensors"})
_MAX_BYTES = 1 << 32  # also of what a compressed file unpacks to
_NAMES = frozenset({"x", "y"})
_FORM = "save samples as x, their labels as y"

# What the readers raise on bytes that are no such file.
_DAMAGED = (
    SafetensorError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    SyntaxError,
    RuntimeError,
    MemoryError,
    struct.error,
    tokenize.TokenError,  # of the literal in an .npy header
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def load_arrays(path: Path) -> tuple[Shaped[Tensor, "n ..."], Int64[Tensor, " n"]]:
    """Load the file's x and y, samples and their labels. Nothing in the file can run as code.

    Raises:
        DataError: it cannot be read, x or y is missing, or y holds no class numbers.
    """
    x, y = _read(path)
    if y.dim() != 1 or y.is_floating_point() or y.is_complex() or y.dtype is torch.bool:
        raise DataError(
            f"{path}: y holds {_described(y)}; labels are one whole number per sample, from 0"
        )
    _require_one_each(path, x, y)
    y = y.to(torch.int64)
    if (y < 0).any():
        raise DataError(f"{path}: y holds the label {int(y.min())}; labels count from 0")
    return x, y


def load_numbers(
    path: Path, n_targets: int = 1
) -> tuple[Shaped[Tensor, "n ..."], Shaped[Tensor, "n ..."]]:
    """Load the file's x and y, samples and so many numbers for each.

    Nothing in the file can run as code.

    Raises:
        DataError: it cannot be read, x or y is missing, or y holds something else.
    """
    x, y = _read(path)
    y = y[:, 0] if y.dim() == 2 and y.shape[1] == 1 else y
    shape = () if n_targets == 1 else (n_targets,)
    if not y.dim() or y.shape[1:] != shape or y.is_complex() or y.dtype is torch.bool:
        each = "one number" if n_targets == 1 else f"{n_targets} numbers"
        raise DataError(f"{path}: y holds {_described(y)}; give {each} per sample")
    _require_one_each(path, x, y)
    return x, y


def load_npz(path: Path, names: Collection[str]) -> dict[str, Shaped[Tensor, "..."]]:
    """Load those arrays of an .npz file that have these names. Nothing in it can run as code.

    Raises:
        DataError: the file cannot be read, or unpacks to more than 4 GiB.
    """
    n_bytes_of(path, _MAX_BYTES)
    try:
        return _npz(path, names)
    except _DAMAGED as error:
        raise DataError(f"{path}: is no .npz file that can be used ({error!s:.300})") from error


def _read(path: Path) -> tuple[Tensor, Tensor]:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        n_bytes_of(path, _MAX_BYTES)
        raise DataError(f"{path}: give a folder of pictures, or a file .npz or .safetensors")
    arrays = load_npz(path, _NAMES) if suffix == ".npz" else _load_safetensors(path)
    if "x" not in arrays:
        raise DataError(f"{path}: has no array x; {_FORM}")
    if "y" not in arrays:
        raise DataError(f"{path}: has no array y; accuracy needs labels: {_FORM}")
    return arrays["x"], arrays["y"]


def _require_one_each(path: Path, x: Tensor, y: Tensor) -> None:
    if x.is_complex():
        raise DataError(f"{path}: x holds {_described(x)}; samples are real numbers")
    if x.dim() < 1 or len(x) != len(y):
        raise DataError(f"{path}: x holds {_described(x)} for {len(y)} labels in y")


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    n_bytes_of(path, _MAX_BYTES)
    try:
        require_tensors(path, _MAX_BYTES)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in _NAMES & set(file.keys())}
    except _DAMAGED as error:
        raise DataError(f"{path}: is no .safetensors file that can be used ({error})") from error


def _npz(path: Path, names: Collection[str]) -> dict[str, Tensor]:
    with zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        n_unpacked = sum(member.file_size for member in archive.infolist())
        if n_unpacked > _MAX_BYTES:
            raise ValueError(f"unpacks to {n_unpacked} bytes, at most {_MAX_BYTES}")
        found = {name: members[name] for name in names if name in members}
        return {name: _array(name, archive, member) for name, member in found.items()}


def _array(name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Tensor:
    """Read one array, of the .npy format 1.0 or 2.0: 3.0 is of arrays that are no numbers.

    numpy's own reader takes as much memory as the header says, and as much time.
    """
    with archive.open(member) as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read(file)
        if dtype.kind not in "biuf":
            raise ValueError(f"{name} holds {dtype} values, and must hold numbers")
        n_bytes = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or n_bytes != member.file_size - file.tell():
            raise ValueError(f"{name} is of shape {shape}, which is not what it holds")
        held = file.read()
    array = np.ndarray(shape, dtype, held, order="F" if by_columns else "C")
    # A byte order of another machine is one that torch does not take.
    return torch.from_numpy(array.astype(dtype.newbyteorder("="), order="C"))


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} values of shape {tuple(tensor.shape)}"

"""Data files that a user put on the disk: found, checked and read, never downloaded.

What a file says about itself is not believed: before anything of a size is allocated, it is
compared with the file's real length or, where a format packs its content, with a limit that holds
while it is unpacked. No format here can run code (no pickle).
"""

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer, UInt8
from torch import Tensor

from securefl.data.split import Labelled, Split
from securefl.errors import DataError
from securefl.io.files import read_bounded, size_of

Domains: TypeAlias = Mapping[str, Labelled | Split]
"""Samples by domain: all of them, or divided where the data set has a division of its own."""

_CHUNK_BYTES = 1 << 20


def locate(root: Path, names: tuple[str, ...], source: str) -> Path:
    """Return the first of `names` that is a file under `root`.

    Args:
        root: the folder that the user named.
        names: where the file may lie, relative to `root`; the first one is suggested.
        source: what the user should get and unpack, for the message.

    Raises:
        DataError: there is none of them.
    """
    for name in names:
        path = root / name
        try:
            if path.is_file():
                return path
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from error
    raise DataError(f"{root / names[0]}: no such file; put {source} under {root}")


def n_bytes_of(path: Path, max_bytes: int) -> int:
    """Return the file's real length in bytes.

    Raises:
        DataError: it is larger than anything this format should need, or no regular file: a pipe
            has no length, and a reader would wait for its end.
    """
    try:
        return size_of(path, max_bytes)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def read(path: Path, max_bytes: int) -> bytes:
    """Return the file's bytes.

    Raises:
        DataError: it cannot be read, or is larger than `max_bytes`.
    """
    try:
        return read_bounded(path, max_bytes)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def table_lines(path: Path, max_bytes: int) -> Iterator[tuple[str, Mapping[str, str | None]]]:
    """Yield each line of a CSV table with a head: where it stands, for messages, and its fields.

    Raises:
        DataError: the file cannot be read, is larger than `max_bytes`, or is no table of text.
    """
    content = read(path, max_bytes)
    try:
        lines = csv.DictReader(io.StringIO(content.decode(), newline=""))
        for n, line in enumerate(lines, start=1):
            yield f"{path}, sample {n}", line
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is no table of text ({error})") from error


def check_content(path: Path, content: bytes, sha256: str) -> None:
    """Compare what a file holds, however it is packed, with a digest; with none where it is empty.

    Raises:
        DataError: it holds something else.
    """
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(
            f"{path}: its content is not this data set's, or its order is not; get the file again"
        )


def check_numbers(path: Path, numbers: Tensor, sha256: str) -> None:
    """Compare what was read of a table, as 64-bit floats row by row: `check_content`.

    It does not matter who wrote the file, but for the order of its lines.
    """
    check_content(path, numbers.numpy().astype("<f8").tobytes(), sha256)


def check_sizes(
    root: str | Path, found: Mapping[str, tuple[int, ...]], known: Mapping[str, tuple[int, ...]]
) -> None:
    """Compare numbers of samples, by data set or domain, with the published ones.

    Raises:
        DataError: one has others, or is missing.
    """
    for name, sizes in known.items():
        has, is_to_have = (" + ".join(map(str, of)) for of in (found.get(name, (0,)), sizes))
        if has != is_to_have:
            raise DataError(
                f"{root}: {has} samples of {name}, the data set has {is_to_have}; get all its "
                "files again"
            )


def check_file(path: Path, algorithm: str, *digests: str) -> None:
    """Compare the file with published digests, one for each release, by MD5 or SHA-1.

    These find a broken download; against a forger they do not help.

    Raises:
        DataError: the file is another one.
    """
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    if digest.hexdigest() not in digests:
        raise DataError(
            f"{path}: {algorithm.upper()} is {digest.hexdigest()}, the official file has "
            f"{' or '.join(digests)}; download it again"
        )


def check_archive(root: Path, name: str, md5: str) -> None:
    """Compare a publisher's archive, where it lies in `root` or beside it, with its checksum.

    Publishers name none for what is in an archive: without it only the files' form is checked.

    Raises:
        DataError: the archive is another one, so that what came out of it is not to be trusted.
    """
    for path in (root / name, root.parent / name):
        try:
            found = path.is_file()
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from error
        if found:
            check_file(path, "md5", md5)


def as_pixels(pixels: UInt8[np.ndarray, "*shape"], most: int = 255) -> Float[Tensor, "*shape"]:
    """Return pixels in 0..most as float32 in [0, 1]."""
    scaled = pixels.astype(np.float32, order="C")
    scaled /= most
    return torch.from_numpy(scaled)


def as_labels(labels: Integer[np.ndarray, " n"], n_classes: int, path: Path) -> Int64[Tensor, " n"]:
    """Return labels as int64.

    Raises:
        DataError: one of them is not in 0..n_classes - 1; `path` names the file.
    """
    if labels.size and not (labels.min() >= 0 and labels.max() < n_classes):
        wrong = labels[(labels < 0) | (labels >= n_classes)][0]
        raise DataError(f"{path}: label {wrong}; labels of this file are 0..{n_classes - 1}")
    return torch.from_numpy(labels.astype(np.int64))

"""Values that cross between this run's own processes, in a pipe or in shared memory.

Tensors and arrays cross as their bytes, beside a pickle of all else, and are copied once at each
end. What is on a GPU arrives on the receiver's.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import FunctionType
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNED = 64
"""Bytes; as torch's own tensors are, since the last bit of a sum may depend on it."""
_LENGTH_BYTES = 8


class Gone(BaseException):
    """Nobody is at the other end of the pipe.

    A BaseException, so that no client code that catches Exception goes on without it.
    """


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and (flat := _flat(obj)) is not None:
            raw = pickle.PickleBuffer(_bytes_of(flat.cpu().view(torch.uint8)))
            layout = tuple(obj.shape), obj.stride()
            return _tensor, (raw, obj.dtype, *layout, obj.device.type)
        if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__" and _typed_in():
            raise pickle.PicklingError(
                f"{obj.__qualname__} is defined in a notebook or at a prompt"
            )
        return NotImplemented


def _flat(tensor: Tensor) -> Tensor | None:
    """All elements as they lie in memory; None where they do not lie side by side."""
    if tensor.layout is not torch.strided or tensor.requires_grad:
        return None
    if tensor.is_conj() or tensor.is_neg():
        return None
    outermost_first = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    lying = tensor.permute(outermost_first)
    return lying.reshape(-1) if lying.is_contiguous() else None


def _bytes_of(bytes_B: Tensor) -> memoryview:
    values: NDArray[np.uint8] = bytes_B.numpy()
    return values.data


def _tensor(
    raw: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], device: str
) -> Tensor:
    if not len(raw):
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(raw, dtype=dtype).as_strided(shape, stride).to(device)


def _typed_in() -> bool:
    """Whether what this process runs has no file that another one could read."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is None and not hasattr(main, "__file__")


def packed(value: Any) -> list[memoryview]:
    """The pickle of a value, and the bytes beside it.

    Raises:
        Exception: it cannot be pickled; of any class, since objects say so in their own ways.
    """
    beside: list[pickle.PickleBuffer] = []
    head = io.BytesIO()
    _Pickler(head, 5, buffer_callback=beside.append).dump(value)
    return [head.getbuffer(), *(buffer.raw() for buffer in beside)]


def packed_bytes(parts: Sequence[memoryview]) -> int:
    """Room that these take in a block, at most."""
    n_parts = 1 + len(parts)
    return _LENGTH_BYTES * n_parts + sum(part.nbytes for part in parts) + ALIGNED * n_parts


def _unpacked(lengths: Sequence[int], space: memoryview) -> Any:
    starts = _starts(lengths)
    parts = [space[start : start + n] for start, n in zip(starts, lengths, strict=False)]
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  (of this run's own processes)


def _starts(lengths: Sequence[int]) -> list[int]:
    """Where each part begins, and at last where all end."""
    starts = [0]
    for length in lengths:
        starts.append(-(-(starts[-1] + length) // ALIGNED) * ALIGNED)
    return starts


def _space(lengths: Sequence[int]) -> memoryview:
    return _bytes_of(torch.empty(_starts(lengths)[-1], dtype=torch.uint8))


def send(pipe: Connection, value: Any) -> None:
    """Through a pipe; waits while it is full. Raises Gone."""
    head, *beside = packed(value)
    try:
        pipe.send_bytes(_lengths([head, *beside]) + head)  # one message, where there is no more
        for part in beside:
            if part.nbytes:
                pipe.send_bytes(part)
    except OSError as error:
        raise Gone from error


def receive(pipe: Connection) -> Any:
    """The next value in a pipe; waits for it. Raises Gone."""
    try:
        first = pipe.recv_bytes()
        n_parts = int(np.frombuffer(first, np.int64, 1)[0])
        lengths: list[int] = np.frombuffer(first, np.int64, 1 + n_parts).tolist()[1:]
        space = _space(lengths)
        space[: lengths[0]] = memoryview(first)[_LENGTH_BYTES * (1 + n_parts) :]
        for start, length in list(zip(_starts(lengths), lengths, strict=False))[1:]:
            if length:
                pipe.recv_bytes_into(space[start : start + length])
    except (EOFError, OSError) as error:
        raise Gone from error
    return _unpacked(lengths, space)


def _lengths(parts: Sequence[memoryview]) -> bytes:
    return np.array([len(parts), *(part.nbytes for part in parts)], np.int64).tobytes()


@final
class Block:
    """Memory that several processes share, each of them with a `Block` of its name."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    @classmethod
    def made(cls, n_bytes: int) -> Block | None:
        """A new one; None where the machine has not so much left (a container's /dev/shm)."""
        try:
            block = cls(SharedMemory(create=True, size=n_bytes))
        except OSError:
            return None
        if block._reserved(n_bytes):
            return block
        block.remove()
        return None

    @classmethod
    def named(cls, name: str) -> Block:
        """Another process's."""
        return cls(SharedMemory(name))

    @property
    def name(self) -> str:
        """By which other processes find it."""
        return self._memory.name

    @property
    def _bytes(self) -> memoryview:
        if self._memory.buf is None:
            raise RuntimeError("this process has closed it")
        return self._memory.buf

    @property
    def n_bytes(self) -> int:
        """Its size; the system may round it up."""
        return self._memory.size

    def write(self, start: int, parts: Sequence[memoryview]) -> None:
        """What `packed` gave, for which there must be room from `start` on."""
        lengths = [part.nbytes for part in parts]
        head = _lengths(parts)
        first = start + _starts([len(head)])[1]
        for begin, part in zip(_starts(lengths), parts, strict=False):
            self._bytes[first + begin : first + begin + part.nbytes] = part
        self._bytes[start : start + len(head)] = memoryview(head)

    def read(self, start: int) -> Any:
        """What was written there; a copy."""
        n_parts = self._numbers(start, 1)[0]
        lengths = self._numbers(start + _LENGTH_BYTES, n_parts)
        space = _space(lengths)
        first = start + _starts([_LENGTH_BYTES * (1 + n_parts)])[1]
        with self._bytes[first : first + len(space)] as whole:
            space[: len(whole)] = whole
        return _unpacked(lengths, space)

    def _numbers(self, start: int, count: int) -> list[int]:
        with self._bytes[start : start + _LENGTH_BYTES * count] as raw:
            numbers: list[int] = np.frombuffer(bytes(raw), np.int64).tolist()
        return numbers

    def _reserved(self, n_bytes: int) -> bool:
        """Where shared memory is a file, its pages are there; else its first use kills us."""
        path = Path("/dev/shm") / self.name  # noqa: S108  (not a temporary file of our choice)
        if not path.exists():
            return True
        file = os.open(path, os.O_RDWR)
        try:
            os.posix_fallocate(file, 0, n_bytes)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def close(self) -> None:
        """This process needs it no more."""
        self._memory.close()

    def remove(self) -> None:
        """It is gone once no process has it open."""
        self._memory.close()
        self._memory.unlink()

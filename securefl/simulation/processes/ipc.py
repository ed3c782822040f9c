"""Values in a pipe, or in a frame, between this run's own processes.

Tensors and arrays cross as their bytes, beside a pickle of all else, and are copied once at each
end. A tensor on a GPU arrives on the receiver's GPU.
"""

import io
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNED = 64
"""Alignment in bytes, as torch aligns its own tensors; the last bit of a sum may depend on it."""
_LENGTH_BYTES = 8


class Gone(BaseException):
    """The process at the other end of the pipe has ended.

    A BaseException, so that no client code that catches Exception goes on without it.
    """


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that includes classes and functions defined in a notebook or a script."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and (flat := _flat(obj)) is not None:
            raw = pickle.PickleBuffer(_bytes_of(flat.cpu().view(torch.uint8)))
            layout = tuple(obj.shape), obj.stride()
            return _tensor, (raw, obj.dtype, *layout, obj.device.type)
        return super().reducer_override(obj)


def _flat(tensor: Tensor) -> Tensor | None:
    """Return all elements in their order in memory; None where there are gaps between them."""
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
    # An empty buffer, of which `frombuffer` makes no tensor.
    if not len(raw):
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(raw, dtype=dtype).as_strided(shape, stride).to(device)


def packed(value: Any) -> list[memoryview]:
    """Return the pickle of a value, and the bytes of its tensors and arrays.

    Raises:
        Exception: it cannot be pickled; of any class, since objects say so in their own ways.
    """
    beside: list[pickle.PickleBuffer] = []
    head = io.BytesIO()
    _Pickler(head, protocol=5, buffer_callback=beside.append).dump(value)
    return [head.getbuffer(), *(buffer.raw() for buffer in beside)]


def _unpacked(lengths: Sequence[int], space: memoryview) -> Any:
    starts = _starts(lengths)
    parts = [space[start : start + n] for start, n in zip(starts, lengths, strict=False)]
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  (of this run's own processes)


def _starts(lengths: Sequence[int]) -> list[int]:
    """Return the offset of each part, and last the length of all."""
    starts = [0]
    for length in lengths:
        starts.append(-(-(starts[-1] + length) // ALIGNED) * ALIGNED)
    return starts


def _space(lengths: Sequence[int]) -> memoryview:
    return _bytes_of(torch.empty(_starts(lengths)[-1], dtype=torch.uint8))


def send(pipe: Connection, value: Any) -> None:
    """Send a value through a pipe; waits while it is full. Raises Gone."""
    head, *beside = packed(value)
    try:
        pipe.send_bytes(_lengths([head, *beside]) + head)  # one message, where there is no more
        for part in beside:
            if part.nbytes:
                pipe.send_bytes(part)
    except OSError as error:
        raise Gone from error


def receive(pipe: Connection) -> Any:
    """Wait for the next value in a pipe and return it. Raises Gone."""
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


def framed(value: Any) -> NDArray[np.uint8]:
    """Return the bytes of a value in one array, for another carrier than a pipe."""
    parts = packed(value)
    lengths = _lengths(parts)
    *starts, end = _starts([part.nbytes for part in parts])
    frame = np.zeros(len(lengths) + end, np.uint8)
    frame[: len(lengths)] = np.frombuffer(lengths, np.uint8)
    space = frame.data[len(lengths) :]
    for start, part in zip(starts, parts, strict=True):
        space[start : start + part.nbytes] = part
    return frame


def unframed(frame: NDArray[np.uint8]) -> Any:
    """Return the value of a frame; its tensors are copies, which can be written to."""
    n_parts = int(np.frombuffer(frame, np.int64, 1)[0])
    lengths: list[int] = np.frombuffer(frame, np.int64, 1 + n_parts).tolist()[1:]
    space = _space(lengths)
    space[:] = frame.data[_LENGTH_BYTES * (1 + n_parts) :]
    return _unpacked(lengths, space)


def _lengths(parts: Sequence[memoryview]) -> bytes:
    return np.array([len(parts), *(part.nbytes for part in parts)], np.int64).tobytes()

"""Messages in a pipe, or in a frame, between this run's own processes, and the values in them.

Of a value, tensors and arrays are parts of their own beside a pickle of all else, and are copied
once at each end. A tensor on a GPU arrives on the receiver's GPU.
"""

import io
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securefl.federation.transport import Parts

_LENGTH_BYTES = 8
Begins = Callable[[Parts, int], object]
"""Function that takes the beginning of a message: see `SiteCall.begins`."""


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


def unpacked(parts: Parts) -> Any:
    """Return the value of `packed` parts; its tensors and arrays lie in them."""
    head, *beside = parts
    return pickle.loads(head, buffers=beside)  # noqa: S301  (of this run's own processes)


def _space(n_bytes: int) -> memoryview:
    """Return memory that is aligned as torch's own: the last bit of a sum may depend on it."""
    return _bytes_of(torch.empty(n_bytes, dtype=torch.uint8))


def send(pipe: Connection, message: Parts) -> None:
    """Send a message through a pipe; waits while it is full. Raises Gone."""
    head, *beside = message
    try:
        pipe.send_bytes(_lengths(message) + head)  # one, where there is no more
        for part in beside:
            if len(part):
                pipe.send_bytes(part)
    except OSError as error:
        raise Gone from error


def receive(pipe: Connection, begins: Begins | None = None) -> list[memoryview]:
    """Wait for the next message in a pipe and return its parts, which can be written to.

    `begins` is given its first part, and the length of all, before the others are read.

    Raises:
        Gone: the process at the other end has ended.
    """
    try:
        first = pipe.recv_bytes()
        lengths = _lengths_in(first)
        head = memoryview(first)[_LENGTH_BYTES * (1 + len(lengths)) :]
        if begins:
            begins((head,), sum(lengths))
        parts = [_space(n) for n in lengths]  # of which each goes when nobody holds it any more
        parts[0][:] = head
        for part in parts[1:]:
            if len(part):
                pipe.recv_bytes_into(part)
    except (EOFError, OSError) as error:
        raise Gone from error
    return parts


def framed(message: Parts) -> NDArray[np.uint8]:
    """Return a message in one array, for another carrier than a pipe."""
    return np.frombuffer(b"".join([_lengths(message), *message]), np.uint8)


def unframed(frame: NDArray[np.uint8]) -> list[memoryview]:
    """Return the parts of a framed message: copies, which can be written to."""
    lengths, found = _lengths_in(frame.data), []
    end = _LENGTH_BYTES * (1 + len(lengths))
    for length in lengths:
        start, end = end, end + length
        found.append(_space(length))
        found[-1][:] = frame.data[start:end]
    return found


def _lengths(parts: Parts) -> bytes:
    return np.array([len(parts), *(len(part) for part in parts)], np.int64).tobytes()


def _lengths_in(message: bytes | memoryview) -> list[int]:
    n_parts = int(np.frombuffer(message, np.int64, 1)[0])
    lengths: list[int] = np.frombuffer(message, np.int64, 1 + n_parts).tolist()[1:]
    return lengths

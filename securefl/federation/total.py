"""A total on its way from the server to clients: weight, number of clients and values."""

from __future__ import annotations

import struct

import numpy as np

from securefl.errors import PeerError
from securefl.exchange.base import OpenedSum

_HEAD = struct.Struct("<dq")
HEAD_BYTES = _HEAD.size
MAX_CLIENTS = 10_000


def total_bytes(opened: OpenedSum, dtype: str) -> bytes:
    """Return a total as it travels."""
    values = opened.values.astype(np.dtype(dtype).newbyteorder("<"))
    return _HEAD.pack(opened.weight, opened.n_clients) + values.tobytes()


def n_total_bytes(n_values: int, dtype: str) -> int:
    """Exact length of a total."""
    return HEAD_BYTES + n_values * np.dtype(dtype).itemsize


def read_total(body: bytes, n_values: int, dtype: str, sender: str) -> OpenedSum:
    """Parse what `total_bytes` wrote.

    Raises:
        PeerError: another length, or numbers that no total has.
    """
    if len(body) != n_total_bytes(n_values, dtype):
        raise PeerError(f"{sender}: total of {len(body)} bytes, expected {n_values} values")
    weight, n_clients = _HEAD.unpack_from(body)
    stored = np.frombuffer(body, np.dtype(dtype).newbyteorder("<"), offset=HEAD_BYTES)
    if not (np.isfinite(stored).all() and weight > 0 and 0 < n_clients <= MAX_CLIENTS):
        raise PeerError(f"{sender}: a total that is not finite, or of nobody")
    return OpenedSum(stored.astype(np.float64), weight, n_clients)


def as_sent(opened: OpenedSum, dtype: str) -> OpenedSum:
    """Return the total as its receiver reads it, rounded to the precision that it travels in."""
    return OpenedSum(
        opened.values.astype(dtype).astype(np.float64), opened.weight, opened.n_clients
    )

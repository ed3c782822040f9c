"""Totals and states as bytes, their digests, and the terms that a client's signature binds.

A client's signed header carries the digest of the model that it was sent. A server that sent one
client the model, or true totals in mid-round, and the others zeros would know the others' updates
well enough to read the one's in the total. So server and authority refuse headers that differ.

A server may run a round twice, in two sessions. Where clients draw nothing, one that counted twice
or went on from another state in the second would show its values as the difference of two totals.
"""

import hashlib
import json
import struct
from dataclasses import dataclass

import numpy as np
import torch

from securefl.errors import PeerError
from securefl.exchange.sums import OpenedSum
from securefl.types import Floats, State

_HEAD = struct.Struct("<dq")
HEAD_BYTES = _HEAD.size
"""Length of a total's weight and number of clients."""
MAX_CLIENTS = 10_000
"""Most clients that a total may count."""
RELEASED: Floats = "float64"
"""Type of the values that the authority releases: it rounds them, and in doubles they are exact."""


def total_bytes(opened: OpenedSum, dtype: str) -> bytes:
    """Return a total as it travels: weight, number of clients, values of type `dtype`."""
    values = opened.values.astype(np.dtype(dtype).newbyteorder("<"))
    return _HEAD.pack(opened.weight, opened.n_clients) + values.tobytes()


def n_total_bytes(n_values: int, dtype: str) -> int:
    """Return the exact length in bytes of a total of `n_values` values."""
    return HEAD_BYTES + n_values * np.dtype(dtype).itemsize


def read_total(body: bytes, n_values: int, dtype: str, sender: str) -> OpenedSum:
    """Parse the bytes that `total_bytes` wrote; `sender` is named in errors.

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


def state_digest(state: State) -> str:
    """Return the SHA-256, in hex, of the tensors that clients are sent.

    It covers kinds, names, types, shapes and bytes, in the order of kinds and names: neither the
    order of the mapping nor the device makes a difference.
    """
    digest = hashlib.sha256(b"SecureFL state 1\0")
    for kind, named in sorted(state.tensors.items()):
        for name, value in sorted(named.items()):
            # With its length before it, so that no two lists of tensors give the same bytes.
            about = json.dumps([kind, name, str(value.dtype), list(value.shape)]).encode()
            digest.update(len(about).to_bytes(4, "little") + about)
            flat = value.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def with_job(digest: str, job: str) -> str:
    """Return the SHA-256, in hex, of a state's digest and of the job whose files clients read.

    The digest itself where there is no job: clients of a simulation have no files.
    """
    return hashlib.sha256(f"SecureFL job 1\0{digest} {job}".encode()).hexdigest() if job else digest


def with_total(digest: str, total: bytes) -> str:
    """Return the SHA-256, in hex, of the digest so far and of one more total as it travels."""
    extended = hashlib.sha256(b"SecureFL total 1\0" + digest.encode())
    extended.update(total)
    return extended.hexdigest()


@dataclass(frozen=True, slots=True)
class Terms:
    """One client's terms in one round."""

    times: int = 1
    """Number of times that the client counts."""
    since: int = 0
    """Last round in which it counted; it goes on from the state that it kept then."""

    def bind(self, digest: str) -> str:
        """Return the SHA-256, in hex, of the digest of what all were sent and of these terms.

        Empty for an empty digest: numbers and profiles are not summed.
        """
        if not digest:
            return ""
        text = f"SecureFL terms 1\0{digest} {self.times} {self.since}"
        return hashlib.sha256(text.encode()).hexdigest()

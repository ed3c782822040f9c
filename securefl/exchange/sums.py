"""Verbs of a sum over clients: a client seals, the server adds, an `opener` opens.

A capability is an object: a role that holds no opener cannot spell "open".
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from securefl.io.uncopyable import Held, SecretBytes

if TYPE_CHECKING:
    from securefl.types import MessageSpec, NamedTensors, Total


Values = NDArray[np.float64]
ONE_TIME, ONE_TIME_PROFILE = "one-time/digits/1", "one-time/profile/2"
"""Forms of a payload under a one-time key, whose header has a nonce."""
NONCE_BYTES = 16
_BOOKKEEPING = struct.Struct("<dq")


@dataclass(frozen=True, slots=True)
class OpenedSum:
    """Content of an opened sum."""

    values: Values
    """Mean Σ p_i x_i, shape (n_values,); of an encrypted sum, rounded."""
    weight: float
    """Sum of weights Σ weight_i."""
    n_clients: int
    """Number of clients, counted inside the sum: every contribution carries a one."""

    def as_bytes(self) -> bytes:
        """Return the bytes that cross the wire: the values, their weight and their count."""
        return self.values.tobytes() + _BOOKKEEPING.pack(self.weight, self.n_clients)


@dataclass(frozen=True, slots=True)
class MessageId:
    """Name of one message of a run, the same for all clients that send theirs."""

    run: str
    """Id of the session, 64 hex digits."""
    round: int
    name: str
    n_values: int

    def digest(self, use: Literal["sum", "profile"] = "sum") -> bytes:
        """Return 32 bytes that keys and common polynomials of this message follow from."""
        about = json.dumps([self.run, self.round, self.name, self.n_values])
        return hashlib.sha256(f"SecureFL {use} 1\0{about}".encode()).digest()


def fresh_nonce(values: bytes) -> bytes:
    """Return a nonce of fresh random bytes and of what is sealed.

    So a copied machine with the same random bytes does not use a key for other values.
    """
    return hashlib.sha256(os.urandom(32) + values).digest()[:NONCE_BYTES]


@dataclass(frozen=True, slots=True)
class Sender(Held):
    """Client that seals a message, and the secret that its keys of the run follow from."""

    name: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", SecretBytes(self.secret))


class Sealed(NamedTuple):
    """Payload of a message, and what its signed header must name for it to be opened."""

    payload: bytes
    nonce: str = ""
    """Fresh bytes of a message under a one-time key, in hex; empty for others."""


class Keyed(Protocol):
    """Object of one key, or of none."""

    @property
    def key_id(self) -> str:
        """Id of the key; empty in the clear."""

    @property
    def epoch(self) -> int:
        """Epoch of the key; 0 in the clear."""


class Channel(Keyed, Protocol):
    """Object that seals, adds, matches or opens under one key alone, or in the clear."""

    @property
    def form(self) -> str:
        """Encoding of the payload, which every header names."""


class Sealer(Channel, Protocol):
    """Client's side of a sum: packs its weighted values."""

    def seal(
        self, values: NDArray[np.floating], weight: float, about: MessageId, sender: Sender
    ) -> Sealed:
        """Seal the payload of one message. `values` are finite and within `max_value`."""

    def max_value(self, n_values: int) -> float:
        """Return the largest absolute value of a message of so many, gains included."""

    def gains(self, spec: MessageSpec) -> Values | float:
        """Return powers of two, shape (n_values,) or one for all, that values are multiplied by."""


class RunningSum(Protocol):
    """Server's side of one sum; it does not change, `plus` gives another."""

    def plus(self, payload: bytes | memoryview, most: float = 1.0) -> RunningSum:
        """Return the sum with one contribution more, of a weight of at most `most`.

        Raises:
            MessageRefused: `payload` is none, or, in the clear, weighs more.
        """

    def total(self) -> bytes:
        """Return the sum's bytes, for whoever opens it."""


class Adder(Channel, Protocol):
    """Maker of running sums. It can neither make nor read a contribution."""

    def n_bytes(self, n_values: int) -> int:
        """Return the exact payload length of a message with so many values."""

    def start(self, n_values: int) -> RunningSum:
        """Return an empty sum."""


@runtime_checkable  # for the shape checker that the tests install
class Exchange(Protocol):
    """One client's end of a sum over clients, as an algorithm sees it."""

    @property
    def weight(self) -> float:
        """Weight of this client, before it is divided by the sum of weights.

        For clients that train side by side (`simulation.stacked.block`) a tensor, one element each.
        """

    def sum(self, name: str, values: NamedTensors) -> Total:
        """Return Σ p_i x_i over the clients of the round; block until all have sent theirs."""

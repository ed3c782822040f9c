"""The four verbs of a sum over clients: a client seals, the server adds, the authority opens.

A capability is an object: a role that holds no `Opener` cannot spell "open".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from securefl.types import MessageSpec, NamedTensors, Total

Values = NDArray[np.float64]
_BOOKKEEPING = struct.Struct("<dq")


@dataclass(frozen=True, slots=True)
class OpenedSum:
    """What a sum shows once it is open."""

    values: Values
    """Σ p_i x_i, shape (n_values,); of an encrypted sum, flooded and rounded."""
    weight: float
    """Σ weight_i."""
    n_clients: int
    """Counted inside the sum: every contribution carries a one."""

    def as_bytes(self) -> bytes:
        """What crosses the wire of it: the values, their weight and their count."""
        return self.values.tobytes() + _BOOKKEEPING.pack(self.weight, self.n_clients)


class Channel(Protocol):
    """Whatever seals, adds, matches or opens under one key, and that one alone, or in the clear."""

    @property
    def form(self) -> str:
        """The payload's encoding, which every header names."""

    @property
    def key_id(self) -> str:
        """The key's; empty in the clear."""

    @property
    def epoch(self) -> int:
        """The key's; 0 in the clear."""


class Sealer(Channel, Protocol):
    """A client's side: packs its weighted values."""

    def seal(self, values: NDArray[np.floating], weight: float) -> bytes:
        """The payload of one message. `values` are finite and within `max_value`."""

    def max_value(self, n_values: int) -> float:
        """Largest absolute value that a message of so many may have, gains included."""

    def gains(self, spec: MessageSpec) -> Values | float:
        """Powers of two, shape (n_values,) or one for all, that values are multiplied by before."""


class RunningSum(Protocol):
    """The server's side of one sum; it does not change, `plus` gives another."""

    def plus(self, payload: bytes | memoryview, most: float = 1.0) -> RunningSum:
        """The sum with one contribution more, of a weight of at most `most`.

        Raises:
            MessageRefused: `payload` is none, or, in the clear, weighs more.
        """

    def total(self) -> bytes:
        """The sum, for an `Opener`."""


class Adder(Channel, Protocol):
    """Makes running sums. It can neither make nor read a contribution."""

    def n_bytes(self, n_values: int) -> int:
        """Exact payload length of a message with so many values."""

    def start(self, n_values: int) -> RunningSum:
        """An empty sum."""


class Opener(Channel, Protocol):
    """Reads totals."""

    def open(self, total: bytes, n_values: int, precision_bits: int) -> OpenedSum:
        """The total, each value rounded to so many bits after its leading one.

        Raises:
            KeyWornOut: more than this key may still release.
            MessageRefused: `total` is not one of so many values.
        """


@runtime_checkable  # for the shape checker that the tests install
class Exchange(Protocol):
    """What an algorithm sees of all this: one client's end of a sum over clients."""

    @property
    def weight(self) -> float:
        """This client's weight, before it is divided by the sum of weights.

        For clients that train side by side (`simulation.stacked.block`) a tensor, one element each.
        """

    def sum(self, name: str, values: NamedTensors) -> Total:
        """Σ p_i x_i over the clients of the round; blocks until all have sent theirs."""

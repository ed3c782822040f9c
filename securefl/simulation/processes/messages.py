"""What the main process and its workers tell each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.exchange.base import Sealer
from securefl.exchange.plain import PlainChannel
from securefl.federation.client import Client
from securefl.federation.contribution import Parcel, Unsent, Way
from securefl.federation.ongoing import Ongoing
from securefl.simulation.clients import Clients
from securefl.types import Kind, Memory, Plan, State, Total

Layout = Mapping[str, Mapping[str, tuple[tuple[int, ...], torch.dtype, str]]]
"""Names, shapes, types and kinds of device of the tensors in each message."""


class Inner(Protocol):
    """An engine that trains the clients of one process."""

    def train(self, ongoing: Ongoing) -> None:
        """See `Engine.train`."""


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """How torch computes in the main process."""

    n_threads: int
    dtype: torch.dtype
    deterministic: bool
    matmul_precision: str
    gpu: int | None

    def take_over(self) -> None:
        """Compute alike in this process."""
        torch.set_num_threads(self.n_threads)
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic)
        torch.set_float32_matmul_precision(self.matmul_precision)
        if self.gpu is not None:
            torch.cuda.set_device(self.gpu)


@dataclass(frozen=True, slots=True)
class Member:
    """A client, as it is given to the worker that plays it."""

    name: str
    weight: float
    equal_weight: float
    identity: bytes = field(repr=False)

    def client(self, sealers: Mapping[Kind, Sealer]) -> Client:
        """Who seals and signs."""
        identity = Ed25519PrivateKey.from_private_bytes(self.identity)
        return Client(self.name, self.weight, sealers, self.equal_weight, _identity=identity)


@dataclass(frozen=True, slots=True)
class Shard:
    """The clients that a worker is given, before the first round."""

    clients: Clients
    members: tuple[Member, ...]
    inner: Callable[[Clients], Inner]


@dataclass(frozen=True, slots=True)
class Slots:
    """Where a worker puts what its clients send, until the main process has added it."""

    count: int
    """How many contributions may wait: so far ahead may the worker run."""
    n_bytes: int
    """Of each; larger ones go through the pipe."""
    block: str
    """Empty where there is no shared memory."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told at a round's start."""

    state: State | str
    """Or the name of the block that it is in."""
    plan: Plan
    run: str
    sums: Mapping[str, Way]
    update: tuple[Way, ...]
    times: Mapping[str, int]
    """Its own clients of this round, in order."""
    remember: frozenset[str]
    """Those of them that have kept something."""
    slots: Slots
    public_keys: Mapping[Kind, PlainChannel | str] | None
    """What clients seal with, keys as their files; None where it is what it was."""


# What a worker says.


@dataclass(frozen=True, slots=True)
class Recall:
    """What has this client kept?"""

    name: str


@dataclass(frozen=True, slots=True)
class Posted:
    """What a client has sent for a sum."""

    name: str
    """Of the sum."""
    client: str
    parcels: Sequence[Parcel] | Unsent
    layout: Layout


@dataclass(frozen=True, slots=True)
class Asked:
    """All clients that are still training here have posted what they have for a sum, and wait."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a client leaves at the end of its round."""

    parcels: Sequence[Parcel] | Unsent
    memory: Memory


@dataclass(frozen=True, slots=True)
class Trained:
    """A client has trained."""

    name: str
    slot: int
    n_bytes: int
    """What its content takes in a slot."""
    layout: Layout | None
    """Of its messages; None: as of the last that has trained here."""
    content: Content | None
    """None: it is in the slot."""


@dataclass(frozen=True, slots=True)
class Finished:
    """All clients have."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Something was raised."""

    error: Exception


# What a worker hears in the middle of a round.


@dataclass(frozen=True, slots=True)
class Answer:
    """A sum, and of all clients those who may go on."""

    total: Total
    left: frozenset[str]


@dataclass(frozen=True, slots=True)
class Free:
    """This slot can be used again."""

    slot: int

"""What crosses module boundaries: named tensors, what a sum is of, and what a sum gives.

Notation as in the papers: clients i = 1..K, shares p_i = weight_i / Σ weight_j of those present.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from securefl.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

NamedTensors: TypeAlias = "Mapping[str, Tensor]"
Floats = Literal["float32", "float64"]
SIZE, LOSS, PROFILE = "selection/size", "selection/loss", "profile"
"""Names of the messages with a client's number of samples, its loss, and its profile."""
_NOT_IN_MID_ROUND = "update/", "score/"


class Kind(StrEnum):
    """What a message's values are; the `encrypt` setting speaks of these."""

    PARAMETERS = "parameters"
    """What a gradient trains: weights, BN scale and shift."""
    STATISTICS = "statistics"
    """Batch or running means and variances of BN layers, any other averaged buffer, and what is
    measured on public samples (FNR-FL)."""
    GRADIENTS = "gradients"
    """Gradients of the loss with respect to BN statistics."""
    MOMENTUM = "momentum"
    """The solvers' momentum buffers."""
    CONTROL = "control"
    """What a solver exchanges besides: SCAFFOLD's control variates, FedNova's step counts."""
    CLIPPING = "clipping"
    """Which share of the clients stays within a clip norm that adapts (differential privacy)."""
    PROFILES = "profiles"
    """Representation profiles and their scores (FedProf)."""
    SCORES = "scores"
    """Mean over clients of their own models' scores."""
    CARDS = "cards"
    """Secrets that clients' one-time keys follow from, for the authority alone; no values."""
    SELECTION = "selection"
    """What else clients are selected by: their number of samples, their loss."""


class Weighing(StrEnum):
    """How clients count in a sum."""

    OWN = "own"
    """Each with its own weight."""
    EQUAL = "equal"
    """All alike: the total is the plain mean, and times `n_clients` the plain sum."""


class Moments(StrEnum):
    """Ways in which the moments of FedTAN travel forward."""

    TWO_PASS = "two-pass"  # noqa: S105 -- no password
    """The mean, then the variance about the global mean: 3 messages a layer with the backward."""
    FUSED = "fused"
    """Both in one message, as moments about a shared reference: 2 messages a layer."""


class Gradients(StrEnum):
    """Gradients of the statistics that flow backward."""

    SHARED = "shared"
    """The sum over clients, Eq. (41): FedTAN."""
    OWN = "own"
    """Each client's own: FedAvg with Algorithm 2 alone, the forward-only variant."""


class Freeze(StrEnum):
    """Parts of BN that do not learn (FixBN, Table H)."""

    STATISTICS = "statistics"
    """μ and σ² stay as they are and normalise every batch; γ and β learn."""
    AFFINE = "affine"
    """γ and β stay as they are; batches are normalised by their own statistics."""
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """One sum that a round will ask for. The server accepts no other name and no other size."""

    name: str
    kind: Kind
    n_values: int
    weighing: Weighing = Weighing.OWN
    gain_bits: tuple[tuple[int, int], ...] = ()
    """(n, b): the next n values are multiplied by 2^b where they are sealed. All parties have them
    from the state; without any, values are sealed as they are."""
    like: NamedTensors | None = field(default=None, compare=False, repr=False)
    """Tensors of the names, shapes and types that the update's values are; None where they are all
    that the state has of this kind."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that clients send in one round."""

    sums: tuple[MessageSpec, ...] = ()
    """Asked for in the middle of a client's round."""
    update: tuple[MessageSpec, ...] = ()
    """The contributions at its end: one for each kind of tensor, named update/KIND."""

    def __post_init__(self) -> None:
        """Raise DataError where a sum is named as those that the server reads and none else."""
        for spec in self.sums:
            if spec.name.startswith(_NOT_IN_MID_ROUND):
                raise DataError(
                    f"a sum in the middle of a round is named {spec.name!r}, as those of its end "
                    "or of scores: give that layer of the model another name"
                )


@dataclass(frozen=True, slots=True)
class Total:
    """A sum over clients, Σ p_i x_i: all that anyone but client i ever learns of x_i."""

    values: NamedTensors
    weight: float
    """Σ weight_i of the clients in the sum."""
    n_clients: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class State:
    """What a run is at between two rounds."""

    round: int
    """Rounds completed."""
    tensors: Mapping[Kind, NamedTensors]
    """What clients are sent: the global model, and what its algorithm has beside it."""
    private: NamedTensors = field(default_factory=dict)
    """What the server keeps to itself: its optimiser's moments."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a client keeps from round to round; it never travels."""

    own: NamedTensors = field(default_factory=dict)
    """Tensors of the model that are this client's own (client-specific BN)."""
    momentum: NamedTensors = field(default_factory=dict)
    solver: NamedTensors = field(default_factory=dict)
    """What its solver remembers: a control variate, its last model."""
    policy: NamedTensors = field(default_factory=dict)
    """What its normalisation policy remembers."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a client has to say at the end of its round."""

    tensors: Mapping[Kind, NamedTensors]
    memory: Memory = field(default_factory=Memory)

"""What crosses module boundaries: named tensors, what a sum is of, and what a sum gives.

Notation as in the papers: clients i = 1..K, shares p_i = weight_i / Σ weight_j of those present.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

NamedTensors = Mapping[str, Tensor]


class Kind(StrEnum):
    """What a message's values are; the `encrypt` setting speaks of these."""

    PARAMETERS = "parameters"
    """Weights, BN scale and shift, and any other averaged buffer of the model."""
    STATISTICS = "statistics"
    """Batch or running means and variances of BN layers."""
    GRADIENTS = "gradients"
    """Gradients of the loss with respect to BN statistics."""


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """One sum that a round will ask for. The server accepts no other name and no other size."""

    name: str
    kind: Kind
    n_values: int


@dataclass(frozen=True, slots=True)
class Total:
    """A sum over clients, Σ p_i x_i: all that anyone but client i ever learns of x_i."""

    values: NamedTensors
    weight: float
    """Σ weight_i of the clients in the sum."""
    n_clients: int


@dataclass(frozen=True, slots=True)
class State:
    """The global model between two rounds."""

    round: int
    """Rounds completed."""
    tensors: Mapping[Kind, NamedTensors]


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a client has to say at the end of its round."""

    tensors: Mapping[Kind, NamedTensors]
    memory: NamedTensors
    """What the client keeps for its own next round (momentum buffers); it never travels."""

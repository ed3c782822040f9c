"""What a client contributes to a round's sums: sealed and signed bytes, or plain and in memory.

In memory, values count just as they would if they had crossed a wire, and nobody signs, hashes or
parses anything. Where somebody listens (`Ledger.tap`), there is a wire, and all are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securefl.exchange.layout import Rows
from securefl.types import NamedTensors


@dataclass(frozen=True, slots=True)
class PlainContribution:
    """The values of one message, handed over in memory."""

    values: NDArray[np.floating]
    weight: float
    like: NamedTensors | None = None
    """Tensors of the names, shapes and types of the values; None where the plan says them."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing leaves the client, since a value of this message cannot be sent."""

    name: str
    reason: str
    """Without the value, which is the client's own."""
    detail: str = field(default="", repr=False)
    """With the value, for the client's own eyes; empty where there is none."""


Sent = Sequence[bytes | PlainContribution] | Refused
"""One client's messages that travel together: all of them, or none."""


@dataclass(frozen=True, slots=True)
class PlainRows:
    """One message of each of several clients that train side by side."""

    names: Sequence[str]
    rows: Rows
    weights: Sequence[float]
    refused: Mapping[str, Refused]
    """Clients of whom nothing leaves."""

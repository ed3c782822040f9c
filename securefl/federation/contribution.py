"""Contributions of clients to a round's sums: sealed and signed bytes, or plain values in memory.

Values in memory count just as they would if they had been sent, and nobody signs, hashes or parses
anything. Where an audit reads messages on their way (`Ledger.tap`), all are bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securefl.types import NamedTensors

if TYPE_CHECKING:
    from securefl.exchange.layout import Rows


_LOG = logging.getLogger(__name__)
CANNOT_SEND = "its values cannot be sent, and its own log says why"
UPDATE = "update"
"""Name, in a refusal, of all messages of a round's end: which of them it is would tell more."""


@dataclass(frozen=True, slots=True)
class PlainContribution:
    """Values of one message, handed over in memory."""

    values: NDArray[np.floating]
    weight: float
    like: NamedTensors | None = None
    """Tensors of the names, shapes and types of the values; None where the plan lists them."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusal of a client to send anything, most often since a value cannot be sent."""

    name: str
    reason: str
    diverged: bool = True
    """False where the client is lost, and its values are not known."""


def cannot_send(client: str, message: str, why: str) -> Refused:
    """Return a client's refusal to send a message whose values cannot be sent, and no more.

    `why` is in the log of the client's own process alone: under a model of its choice a server
    reads a mean from the index of the first value out of range.
    """
    _LOG.warning("%s", why)
    return Refused(message, f"{client}, {message}: {CANNOT_SEND}")


Sent = Sequence[bytes | PlainContribution] | Refused
"""Messages of one client that travel together, or the refusal of all."""


@dataclass(frozen=True, slots=True)
class PlainRows:
    """One message of each of several stacked clients."""

    names: Sequence[str]
    rows: Rows
    weights: Sequence[float]
    refused: Mapping[str, Refused]
    """Refusals by client, of those who send nothing."""

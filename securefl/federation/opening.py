"""Lines of a log of openings, which an authority, an officer, and whoever opens write."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from securefl.errors import MessageRefused, OpeningRefused
from securefl.federation.ledger import utc_now

if TYPE_CHECKING:
    from securefl.federation.message import Expected

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Opening:
    """Line of the authority's log: a total or scores that were asked for."""

    round: int
    name: str
    n_values: int
    signers: tuple[str, ...]
    n_clients: int
    """Number of clients counted inside the ciphertext; 0 where it was not opened."""
    refused: str = ""
    """Reason for a refusal; empty where it was opened."""
    key_id: str = ""
    """Id of the key that the messages name."""
    epoch: int = 0
    """Epoch of that key."""
    run: str = ""
    """Id of the session, which every signed header names."""
    model: str = ""
    """Digest of the model that the round began with; empty for scores of profiles, and in a log of
    an older release."""
    at: str = field(default_factory=utc_now, compare=False, repr=False)
    """Time, UTC."""

    @classmethod
    def of(
        cls, expected: Expected, signers: tuple[str, ...], n_clients: int, refused: str = ""
    ) -> Opening:
        """Return the line of a total that was asked for."""
        about = expected.round, expected.name, expected.n_values
        key = expected.key_id, expected.epoch
        which = expected.run, expected.model
        return cls(*about, signers, n_clients, refused, *key, *which)


def logged(
    log: Callable[[Opening], None],
    about: Expected,
    signers: tuple[str, ...],
    answer: Callable[[], Result],
    n_clients: Callable[[Result], int],
    members: Container[str] | None = None,
) -> Result:
    """Return what `answer` gives; before that, log it, or its refusal.

    Args:
        log: writes a line down.
        about: request that is answered.
        signers: clients that it lists.
        answer: answers it, and refuses signers that are no members.
        n_clients: number of clients of an answer.
        members: names that the line of a refusal may have; of others it has the number. None where
            the list is the caller's own.

    Raises:
        OpeningRefused, MessageRefused: `answer` does; with round and name before the reason.
    """
    try:
        answered = answer()
    except (MessageRefused, OpeningRefused) as error:
        asked = f"round {about.round}, {about.name!r}: "
        listed, others = _listed(signers, members)
        why = str(error).removeprefix(asked)  # which officers have said already
        refused = f"{asked}{why}{others}"
        log(Opening.of(about, listed, 0, refused))
        raise type(error)(refused) from error
    log(Opening.of(about, signers, n_clients(answered)))
    return answered


def _listed(
    signers: tuple[str, ...], members: Container[str] | None
) -> tuple[tuple[str, ...], str]:
    """Return the names that a refusal's line has, and words on those that it leaves out."""
    if members is None:
        return signers, ""
    listed = tuple(name for name in signers if name in members)
    n, n_others = len(signers), len(signers) - len(listed)
    return listed, f" ({n_others} of {n} headers are of no client in force)" if n_others else ""

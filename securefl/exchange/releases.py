"""How many scores a match key may still release: its budget, spent before anything is released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

from securefl.errors import OpeningRefused
from securefl.exchange.match_flood import MAX_RELEASES


class ReleaseBudget(Protocol):
    """What of `MAX_RELEASES` a key has left, over its whole life."""

    @property
    def left(self) -> int:
        """Scores that it may still release."""

    def spend(self, n: int) -> None:
        """Count n scores as released, for good.

        Raises:
            OpeningRefused: more than are left; nothing is counted.
        """


@final
@dataclass(slots=True)
class MemoryBudget:
    """For a key that ends with the process."""

    n_released: int = 0

    @property
    def left(self) -> int:
        """Scores that the key may still release."""
        return MAX_RELEASES - self.n_released

    def spend(self, n: int) -> None:
        """Count n scores; raises OpeningRefused where they are more than are left."""
        self.n_released = spent(self.n_released, n)


def spent(n_released: int, n: int) -> int:
    """The count after n scores more.

    Raises:
        OpeningRefused: more than a key may release.
    """
    if n < 0:
        raise ValueError(f"{n} releases: a count only grows")
    if n_released + n > MAX_RELEASES:
        raise OpeningRefused(
            f"{n_released} scores are released under this key and {n} are asked for, at most "
            f"{MAX_RELEASES} may be: make a new match key, with: securefl keys init"
        )
    return n_released + n

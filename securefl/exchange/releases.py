"""How many values a key has released: counted before anything is, and for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

from securefl.errors import ConfigError, KeyWornOut


class ReleaseCount(Protocol):
    """Of one key, over its whole life; whoever opens with the key counts here."""

    @property
    def n_released(self) -> int:
        """Values released so far."""

    def spend(self, n: int, at_most: int) -> None:
        """Count n values as released.

        Raises:
            KeyWornOut: more than `at_most` would be; nothing is counted.
        """


@final
@dataclass(slots=True)
class MemoryCount:
    """For a key that ends with the process."""

    n_released: int = 0

    def spend(self, n: int, at_most: int) -> None:
        """Count n values; raises KeyWornOut where they are too many."""
        self.n_released = spent(self.n_released, n, at_most)


def require_ephemeral(count: ReleaseCount, seed: int | None) -> None:
    """Refuse seeded noise for a key whose count outlives the process, as the key itself does.

    Raises:
        ConfigError: whoever knows the seed takes the noise off, and the key would be in force.
    """
    if seed is not None and not isinstance(count, MemoryCount):
        raise ConfigError(
            "noise from a seed, for a key that outlives this process: it would hide nothing of "
            "the key; set run.reproducible = false, or run a simulation under a key of its own"
        )


def use_up(count: ReleaseCount, at_most: int) -> None:
    """Leave nothing to release under this key, so that the next round takes a new one."""
    count.spend(max(0, at_most - count.n_released), at_most)


def spent(n_released: int, n: int, at_most: int) -> int:
    """The count after n values more.

    Raises:
        KeyWornOut: more than a key may release.
    """
    if n < 0:
        raise ValueError(f"{n} releases: a count only grows")
    if n_released + n > at_most:
        raise KeyWornOut(
            f"{n_released} values are released under this key and {n} are asked for, at most "
            f"{at_most} may be: make a new key, with: securefl keys rotate"
        )
    return n_released + n

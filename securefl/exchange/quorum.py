"""k of n officers: replicated secret sharing of the secrets that clients' keys follow from.

There is one secret for each group of n - k + 1 officers, and all of them know it. Any k officers
have a member in every group, so together they know all secrets; k - 1 officers are missing in one
group and know nothing of a key. The authority is one officer of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

from securefl.errors import ConfigError

MOST_OFFICERS = 7
"""There are 35 groups of 4 of 7 officers, and a key is drawn for each of them."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """So many of the officers open sums.

    Raises:
        ConfigError: more than seven officers, or not more than half of them are needed: else two
            halves could be shown two lists of clients for one total.
    """

    needed: int = 1
    """k."""
    officers: int = 1
    """n."""
    groups: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    """Officers of each group, by number from 0."""
    groups_of: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    """Numbers of the groups that each officer is in."""

    def __post_init__(self) -> None:
        if not 1 <= self.officers <= MOST_OFFICERS:
            raise ConfigError(f"{self.officers} officers: must be 1..{MOST_OFFICERS}")
        if not self.officers / 2 < self.needed <= self.officers:
            raise ConfigError(
                f"{self.needed} of {self.officers} officers: must be more than half of them, and "
                "at most all"
            )
        size = self.officers - self.needed + 1
        groups = tuple(combinations(range(self.officers), size))
        of = tuple(
            tuple(g for g, members in enumerate(groups) if officer in members)
            for officer in range(self.officers)
        )
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "groups_of", of)


ALONE = Quorum()
"""The authority: one officer, who is needed."""

"""Noise that no party has whole: each client adds a part to what it sends, and the sum has all.

With distributed noise (Dwork et al., Our Data, Ourselves, EUROCRYPT 2006) nobody sees a total
without noise: a server that adds ciphertexts sees none, and an authority opens the sum alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import final

from securefl.errors import ConfigError, TooFewContributions


@final
@dataclass(frozen=True, slots=True)
class Shares:
    """A round's clients, of whom some may be missing and some may tell.

    Raises ConfigError where nobody's share would be left.
    """

    n_clients: int
    """n, of a full round."""
    dropouts: int = 0
    """Whose contributions may be missing."""
    colluders: int = 0
    """Who may take their own noise off the sum again."""

    def __post_init__(self) -> None:
        if self.n_clients - self.dropouts - self.colluders < 1:
            raise ConfigError(
                f"privacy.dropouts = {self.dropouts} and privacy.colluders = {self.colluders} of "
                f"{self.n_clients} clients in a round: no share of the noise would be left; lower "
                "them, or have more clients"
            )

    @property
    def n_counted(self) -> int:
        """N - t: the shares that make up the whole noise, whoever else is in the sum."""
        return self.n_clients - self.dropouts - self.colluders

    @property
    def fewest(self) -> int:
        """Contributions in a sum that may be opened."""
        return self.n_clients - self.dropouts

    def deviation(self, whole: float) -> float:
        """Of one client's share, where n - t of them have the deviation `whole`."""
        return whole / sqrt(self.n_counted)

    def require(self, n_present: int) -> None:
        """Raises TooFewContributions where too much of the noise is missing from a sum."""
        if n_present < self.fewest:
            raise TooFewContributions(
                f"{n_present} contributions: with fewer than {self.fewest} the noise is less than "
                "what ε counts; raise privacy.dropouts, which makes each share larger"
            )

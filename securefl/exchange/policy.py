"""What the authority may open, and how: the policy that a consortium signs."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import sqrt

from securefl.errors import OpeningRefused, TooFewContributions


@dataclass(frozen=True, slots=True)
class Flooding:
    """Noise that hides what a released value says of the secret key.

    CKKS is not IND-CPA-D secure: what is opened exactly shows its ciphertext's noise t, and that
    is linear in the key. Gaussian noise of sigma = sqrt(12 tau) 2^(s/2) t makes tau releases safe
    to s bits (Li, Micciancio, Schultz, Sorrell, CRYPTO 2022).
    """

    statistical_bits: int = 40
    """s."""
    releases: int = 2**30
    """tau: values that one key releases, a ciphertext's N/2 slots each time; then it is rotated."""

    def deviation(self, noise: float) -> float:
        """sigma, for a ciphertext noise of t = `noise`."""
        return sqrt(12 * self.releases) * 2 ** (self.statistical_bits / 2) * noise


UNCOUNTED = 2**62
"""At most so many values are released where no noise has to hide them."""


def most_releases(flooding: Flooding | None) -> int:
    """Values that one key may release."""
    return flooding.releases if flooding else UNCOUNTED


@dataclass(frozen=True, slots=True)
class OpeningRule:
    """For the messages whose names match."""

    names: str
    """Shell pattern, as in `layer*/mean`."""
    precision_bits: int = 32
    """Bits of each value that are released, after its leading one."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the authority enforces, whoever asks."""

    min_contributions: int = 3
    """Fewer, and each client could work out the others' values."""
    openings_per_run: int = 1_000_000
    flooding: Flooding | None = Flooding()
    rules: tuple[OpeningRule, ...] = (OpeningRule("*"),)
    """The first that matches counts; a name that none matches is not opened."""

    def rule_for(self, name: str) -> OpeningRule:
        """Raises OpeningRefused where the policy opens no message of this name."""
        for rule in self.rules:
            if name.isprintable() and fnmatchcase(name, rule.names):
                return rule
        raise OpeningRefused(f"the policy opens no {name!r:.100}")


def require_clients(n_clients: int, least: int) -> None:
    """Raises TooFewContributions where a total is of fewer than `least`."""
    if n_clients < least:
        raise TooFewContributions(
            f"{n_clients} contributions, at least {least} (exchange.min_clients, or the "
            "consortium's policy) are needed, or each client could work out the others' values"
        )

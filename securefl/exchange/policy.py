"""Policy of the authority's openings, which a consortium signs."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from securefl.errors import OpeningRefused, TooFewContributions


@dataclass(frozen=True, slots=True)
class OpeningRule:
    """Rule for the messages whose names match."""

    names: str
    """Shell pattern, as in `layer*/mean`."""
    precision_bits: int = 32
    """Bits of each value that are released, after its leading one."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules that the authority enforces, whoever asks."""

    min_contributions: int = 3
    """Least contributions to a total: of fewer, each client could work out the others' values."""
    openings_per_run: int = 1_000_000
    rules: tuple[OpeningRule, ...] = (OpeningRule("*"),)
    """Rules, of which the first that matches counts; a name that none matches is not opened."""
    read: frozenset[str] | None = None
    """Names of the totals that the server reads: all others are sealed for their clients. None
    where it reads all."""
    noise_hides_clients: bool = False
    """True where totals have noise that hides each client, which a mean over many sessions would
    not have."""

    def rule_for(self, name: str) -> OpeningRule:
        """Raises OpeningRefused where the policy opens no message of this name."""
        for rule in self.rules:
            if name.isprintable() and fnmatchcase(name, rule.names):
                return rule
        raise OpeningRefused(f"the policy opens no {name!r:.100}")

    def is_blind(self, name: str) -> bool:
        """Return whether totals of this name are sealed for their clients."""
        return self.read is not None and name not in self.read


def require_clients(n_clients: int, least: int) -> None:
    """Raises TooFewContributions where a total is of fewer than `least`."""
    if n_clients < least:
        raise TooFewContributions(
            f"{n_clients} contributions, at least {least} (exchange.min_clients, or the "
            "consortium's policy) are needed, or each client could work out the others' values"
        )

"""Participants of a round, and the numbers they were selected by: a line of selections.jsonl."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from securefl.federation.ledger import utc_now


@dataclass(frozen=True, slots=True)
class RoundParticipants:
    """One round's selection."""

    round: int
    selected: Mapping[str, int]
    """Clients by how often they were drawn; once each, except in draws with replacement."""
    present: tuple[str, ...]
    """Selected clients that train: not lost, not late, and nothing of theirs was refused."""
    lost: tuple[str, ...] = ()
    """Selected clients that dropped out, by the devices' settings."""
    late: tuple[str, ...] = ()
    """Selected clients that would have missed the deadline."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Answers of the clients that were asked in this round: the divergence of a profile (FedProf),
    the mean loss (AFL)."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """FedProf's λ_k of all clients that could be selected."""
    simulated_s: float | None = None
    """Duration on simulated devices; None without."""
    energy_wh: float | None = None
    uncounted: tuple[str, ...] = ()
    """Present clients whose contributions did not count: lost in the round, or refused."""
    at: str = field(default_factory=utc_now, compare=False, repr=False)
    """Time of the selection, UTC; empty in older folders."""
    run: str = field(default="", compare=False, repr=False)
    """Id of the session in which it was written; empty before that."""

    @property
    def counted(self) -> tuple[str, ...]:
        """Present clients whose contributions counted."""
        return tuple(client for client in self.present if client not in self.uncounted)

"""Who took part in a round, and what the server knew of them: one line of selections.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Turnout:
    """One round's selection."""

    round: int
    selected: Mapping[str, int]
    """Clients by how often they were drawn; once each, but for draws with replacement."""
    present: tuple[str, ...]
    """Those of them that train: not lost, not late, and nothing of theirs was refused."""
    lost: tuple[str, ...] = ()
    """Those that dropped out, as the devices' settings have it."""
    late: tuple[str, ...] = ()
    """Those that would have been later than the deadline."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """What the selector goes by, of the clients that were asked for it in this round: the
    divergence of a profile (FedProf), the mean loss (AFL)."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """FedProf's λ_k at the selection, of all clients that could be selected."""
    simulated_s: float | None = None
    """None where no devices are simulated."""
    energy_wh: float | None = None

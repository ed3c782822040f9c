"""A simulation whose clients send bytes, also of what would be handed over in memory."""

from __future__ import annotations

from securefl.simulation.in_memory import InMemory


def nothing_is_handed_over(monkeypatch):
    """Have every contribution be what a test makes of `Client.contribute`."""
    monkeypatch.setattr(InMemory, "in_memory", False)

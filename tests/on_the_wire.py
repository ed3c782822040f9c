"""A simulation whose clients send bytes, also of what would be handed over in memory."""

from __future__ import annotations

from securefl.simulation.in_memory import InMemory


def nothing_is_handed_over(monkeypatch):
    """What a test makes of `Client.contribute` happens to every contribution."""
    monkeypatch.setattr(InMemory, "in_memory", False)

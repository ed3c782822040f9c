"""Runs with what each round had, for the tests to work it out anew: who, from what, to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import securefl
from securefl.engines.turnout import Turnout
from securefl.roles.ledger import Entry
from securefl.rounds import Rounds
from securefl.runrecord import RoundMetrics
from securefl.types import Memory, State


@dataclass(frozen=True)
class Round:
    """One round of a run."""

    turnout: Turnout
    before: State
    after: State
    kept_before: Mapping[str, Memory]
    kept_after: Mapping[str, Memory]
    entries: list[Entry]
    metrics: RoundMetrics

    @property
    def times(self):
        """How often each client that was present counts."""
        return {client: self.turnout.selected[client] for client in self.turnout.present}


@dataclass(frozen=True)
class Played:
    """A run in the order in which it happened."""

    rounds: list[Round]
    result: securefl.Result
    fleet: object
    """Devices by client, where they are simulated."""

    @property
    def selected(self):
        """By round."""
        return [dict(each.turnout.selected) for each in self.rounds]


def played(config, task=None, keys=None):
    """`securefl.run` without a folder, its rounds looked at one by one."""
    rounds, seen, n_entries = Rounds(config, task, keys, None), [], [0]
    next_state = rounds._next_state

    def noted():
        kept = dict(rounds._engine.memories)
        before = rounds._state
        turnout, after = next_state()
        seen.append((turnout, before, after, kept, dict(rounds._engine.memories)))
        return turnout, after

    found = []

    def note(metrics):
        entries = rounds._record.ledger.entries[n_entries[0] :]
        n_entries[0] += len(entries)
        found.append(Round(*seen[-1], entries, metrics))

    rounds._next_state = noted
    result = rounds.run(note)
    return Played(found, result, rounds._participation.conditions.fleet)


def place(client):
    """Of client-3 in the task's list: 2."""
    return int(client.split("-")[1]) - 1

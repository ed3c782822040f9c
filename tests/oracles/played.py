"""Runs with what each round had, for the tests to work it out anew: who, from what, to what."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import torch

import securefl
from securefl.build.simulation import simulated
from securefl.federation.ledger import Entry
from securefl.runs.round_metrics import RoundMetrics
from securefl.selection.round_participants import RoundParticipants
from securefl.types import ClientState, State


@dataclass(frozen=True)
class Round:
    """One round of a run."""

    participants: RoundParticipants
    before: State
    after: State
    kept_before: Mapping[str, ClientState]
    kept_after: Mapping[str, ClientState]
    entries: list[Entry]
    metrics: RoundMetrics
    loads: list
    """(client, load) for each time that the server worked out a cost, in order."""

    @property
    def times(self):
        """How often each client that was present counts."""
        return {client: self.participants.selected[client] for client in self.participants.present}


@dataclass(frozen=True)
class Played:
    """A run in the order in which it happened."""

    rounds: list[Round]
    result: securefl.Result
    devices: object
    """None, or the devices that are simulated."""

    @property
    def selected(self):
        """By round."""
        return [dict(each.participants.selected) for each in self.rounds]


@dataclass
class NotingDevices:
    """Devices that note the loads that they are asked about."""

    inner: object
    noted: list = field(default_factory=list)

    def cost(self, client, load):
        self.noted.append((client, load))
        return self.inner.cost(client, load)


def same_client_state(one, other):
    """The same tensors by the same names, to the bit."""
    parts = ((getattr(one, of.name), getattr(other, of.name)) for of in fields(ClientState))
    return all(
        set(named) == set(others) and all(torch.equal(v, others[n]) for n, v in named.items())
        for named, others in parts
    )


def played(config, task=None, keys=None):
    """`securefl.run` without a folder, its rounds looked at one by one."""
    rounds, seen, n_entries = simulated(config, task, keys), [], [0]
    next_state, who = rounds._next_state, rounds._participation
    devices = who.conditions.devices
    noting = NotingDevices(devices)
    if devices:
        who.conditions = replace(who.conditions, devices=noting)

    def noted():
        kept = copy.deepcopy(dict(rounds.parts.engine.client_states))  # which the round overwrites
        before = rounds._state
        participants, after = next_state()
        seen.append(
            (
                participants,
                before,
                after,
                kept,
                copy.deepcopy(dict(rounds.parts.engine.client_states)),
            )
        )
        return participants, after

    found = []

    def note(metrics):
        entries = rounds._record.ledger.entries[n_entries[0] :]
        n_entries[0] += len(entries)
        found.append(Round(*seen[-1], entries, metrics, list(noting.noted)))
        noting.noted.clear()

    rounds._next_state = noted
    result = rounds.run(note)
    return Played(found, result, devices)


def place(client):
    """Of client-3 in the task's list: 2."""
    return int(client.split("-")[1]) - 1

"""A round's clients on torch's "meta" device, which stands in for a GPU where there is none.

Tensors there have shapes and no values. So whatever reads a value, for which a GPU would have to be
waited for, raises; and an operation's devices tell what goes there or comes from there.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from securefl.algorithms.normalisation.fixbn import Window
from securefl.build.simulation import simulated
from securefl.data.resident import near
from securefl.simulation.clients import Clients
from securefl.simulation.sequential import Sequential
from securefl.simulation.stacked import block
from securefl.simulation.stacked.engine import Stacked
from securefl.types import ClientState, NamedTensors, Plan, State, Total

ELSEWHERE = torch.device("meta")
ENGINES = {"sequential": Sequential, "vectorised": Stacked}
COPIES = (torch.ops.aten._to_copy, torch.ops.aten.copy_)


class Crossings(TorchDispatchMode):
    """Within, copies from device to device are noted; any other operation on two is an error."""

    def __init__(self, noted):
        super().__init__()
        self.noted = noted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.native_batch_norm_backward.default:
            assert None not in args[5:7]  # a GPU's kernel asserts it
        result = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if func.overloadpacket in COPIES:
            if len({t.device for t in (*given, result)}) > 1:
                self.noted.append(str(func))
        elif len({t.device for t in given if t.dim() or t.device.type != "cpu"}) > 1:
            raise AssertionError(f"{func} on more than one device")
        return result


@dataclass
class Round:
    """A round without a server: the total of a sum is what the first client asks it for."""

    state: State
    plan: Plan
    times: Mapping[str, int]
    client_states: Mapping[str, ClientState]
    after: dict[str, ClientState] = field(default_factory=dict)

    def weight(self, name):
        return 1 / len(self.times)

    def sum(self, asks):
        values: NamedTensors = next(values for _, values in asks.values())
        return Total({n: v.clone() for n, v in values.items()}, 1.0, len(asks)), list(asks)

    def sum_rows(self, name, clients, rows):
        return self.sum({client: (name, row) for client, row in zip(clients, rows, strict=True)})

    def finish(self, name, contribution):
        self.after[name] = contribution.client_state


def clients_of(config, job):
    """A run's, with their model and their samples elsewhere."""
    clients = simulated(config, job).parts.engine._trainer._clients
    model = copy.deepcopy(clients.model).to(ELSEWHERE)
    return replace(clients, model=model, data=near(clients.data, model))


def crossings(config, job, engine):
    """Copies from device to device in clients' second round, in which they remember their first."""
    clients, noted = clients_of(config, job), []
    made = ENGINES[engine](clients)
    state, times = clients.algorithm.init(clients.model), dict.fromkeys(clients.data, 1)
    client_states = dict.fromkeys(times, ClientState())
    with (
        torch.library._scoped_library("aten", "IMPL") as meta,
        pytest.MonkeyPatch.context() as patch,
    ):
        meta.impl("batch_norm_update_stats", _moments, "Meta")  # torch has none there
        patch.setattr(
            block, "in_main_memory", lambda rows: rows
        )  # once a round, and here no values
        # Which each client's thread enters by itself; and torch has no autocast there.
        patch.setattr(Clients, "casting", lambda _self: Crossings(noted))
        # A number a round, which tells whether to freeze.
        patch.setattr(Window, "settled", lambda _self, _state: False)
        for _ in range(2):
            noted.clear()
            ongoing = Round(
                state, clients.algorithm.plan(state, clients.model), times, client_states
            )
            made.train(ongoing)
            client_states, state = (
                ongoing.after,
                State(state.round + 1, state.tensors, state.private),
            )
        made.close()
    assert client_states.keys() == times.keys()
    return noted


def _moments(y, running_mean, running_var, momentum):
    return y.new_empty(y.shape[1]), y.new_empty(y.shape[1])

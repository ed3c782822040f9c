"""Federated training: a normalisation policy, a solver, momentum and a server optimiser.

A round: each client loads w̄ and lays its own tensors over it, takes its local steps and sends what
travels; the server averages that and lets its optimiser step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, repeat
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import (
    Work,
    averaged_tensors,
    copied,
    lay_over,
    snapshot,
    trained_parameters,
    update_messages,
    with_gains,
)
from securefl.algorithms.local_sgd import local_sgd
from securefl.algorithms.normalisation.averaged_bn import aggregated
from securefl.algorithms.servers.average import Average
from securefl.algorithms.servers.server_optimiser import Averaged, ServerSteps
from securefl.algorithms.solvers.sgd import SGD
from securefl.algorithms.solvers.solver import End, LocalSolver, Start
from securefl.algorithms.standardisation import (
    input_messages,
    is_measured,
    measure,
    standard_tensors,
)
from securefl.exchange.sums import Exchange
from securefl.norms.standardised_input import find_standardised
from securefl.types import ClientState, Contribution, Kind, NamedTensors, Plan, State, Total

if TYPE_CHECKING:
    from securefl.algorithms.normalisation.policy import Policy, RoundNorm


class Momentum(StrEnum):
    """Fate of the momentum buffers between two rounds (FixBN, section 8.2)."""

    RESET = "reset"
    LOCAL = "local"
    """Each client keeps its own."""
    GLOBAL = "global"
    """They are averaged like weights and sent back."""


@dataclass(frozen=True, slots=True)
class Federated:
    """Any normalisation with any solver, any momentum and any server optimiser."""

    normalisation: Policy = aggregated
    solver: LocalSolver = field(default_factory=SGD)
    server: ServerSteps = field(default_factory=Average)
    momentum: Momentum = Momentum.RESET
    sealed: frozenset[Kind] = frozenset()
    """Kinds that travel encrypted, and so with gains."""
    min_clients: int = 1
    """Clients that have a column by which it is standardised, at least."""

    def init(self, model: nn.Module) -> State:
        """Return {w̄, S̄} of the model as it is, and zeros for all that is exchanged beside it."""
        tensors: dict[Kind, NamedTensors] = snapshot(averaged_tensors(model))
        parameters = tensors[Kind.PARAMETERS]
        if control := self.solver.control(model):
            tensors[Kind.CONTROL] = control
        if self.momentum is Momentum.GLOBAL:
            zeros = {name: torch.zeros_like(w) for name, w in parameters.items()}
            tensors[Kind.MOMENTUM] = zeros
        state = State(0, tensors, self.server.init(parameters))
        if carried := self.normalisation(state, model).carried(model):
            tensors[Kind.STATISTICS] = {**tensors.get(Kind.STATISTICS, {}), **carried}
        return state

    def plan(self, state: State, model: nn.Module) -> Plan:
        """Return the policy's sums, then one contribution of each kind.

        Before the first, columns are measured, by all clients.
        """
        norm = self.normalisation(state, model)
        travelling = _travelling(state, norm, model)
        update = with_gains(update_messages(travelling), travelling, self.sealed)
        columns = () if _input_stays(state, norm, model) else input_messages(model)
        return Plan((*columns, *norm.sums(model)), update, of_all=bool(columns))

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """Take K local steps."""
        model = work.model
        norm = self.normalisation(state, model)
        travelling = _travelling(state, norm, model)
        lay_over(model, work.client_state.own)
        _standardise(norm, work, exchange, self.min_clients)
        if norm.measurement:
            norm.measurement.measure(work, exchange)
        model.train()
        pooled: dict[str, Tensor] = {}
        with norm.training(work), norm.local_steps(model, work.client_state.policy) as followed:
            start = _start(state, work, travelling)
            sgd = _sgd(start, {**work.client_state.momentum, **travelling.get(Kind.MOMENTUM, {})})
            end = self._local_steps(start, sgd, norm.first_step(model, exchange, pooled))
            beside, policy = followed()
        after, buffers = averaged_tensors(model), _buffers(start, sgd)
        carried = travelling.get(Kind.STATISTICS, {})
        sent = {
            Kind.PARAMETERS: end.parameters,
            Kind.STATISTICS: {**carried, **after.get(Kind.STATISTICS, {}), **beside, **pooled},
            Kind.MOMENTUM: {**travelling.get(Kind.MOMENTUM, {}), **buffers},
            Kind.CONTROL: end.control,
        }
        client_state = ClientState(
            own=copied({n: v for of in after.values() for n, v in of.items() if n in norm.local}),
            momentum=self._kept(buffers, travelling),
            solver=end.client_state,
            policy=policy,
            personal=end.personal,
        )
        return Contribution(
            {kind: copied({n: sent[kind][n] for n in names}) for kind, names in travelling.items()},
            client_state,
        )

    def _local_steps(
        self, start: Start, sgd: torch.optim.SGD, first_step: AbstractContextManager[None]
    ) -> End:
        session = self.solver.begin(start)
        contexts: Iterator[AbstractContextManager[None]]
        contexts = chain([first_step], repeat(nullcontext()))
        for _ in range(start.work.local_steps):
            session.gradients(lambda: next(contexts))
            sgd.step()
        sgd.zero_grad()  # gradients are as large as the model
        return session.end()

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """Replace what travelled by its mean, and let the server's optimiser step from there."""
        tensors = dict(state.tensors)
        for kind, total in totals.items():
            tensors[kind] = {**tensors[kind], **total.values}
        private = state.private
        if Kind.PARAMETERS in totals:
            mean = totals[Kind.PARAMETERS].values
            last = {name: state.tensors[Kind.PARAMETERS][name] for name in mean}
            share = totals[Kind.PARAMETERS].weight
            averaged = Averaged(last, mean, tensors.get(Kind.CONTROL, {}), share)
            stepped, private = self.server.step(averaged, private)
            tensors[Kind.PARAMETERS] = {**tensors[Kind.PARAMETERS], **stepped}
        return State(state.round + 1, tensors, private)

    def _kept(
        self, buffers: NamedTensors, travelling: Mapping[Kind, NamedTensors]
    ) -> dict[str, Tensor]:
        if self.momentum is Momentum.RESET:
            return {}
        averaged = travelling.get(Kind.MOMENTUM, {})
        return copied({name: value for name, value in buffers.items() if name not in averaged})


def _travelling(state: State, norm: RoundNorm, model: nn.Module) -> dict[Kind, NamedTensors]:
    """Return the state's tensors that clients contribute to in this round."""
    stays = norm.stays(state, model)
    if _input_stays(state, norm, model):
        stays = stays | standard_tensors(model)
    found = {
        # As it is where all travel: some engines make a tensor only where it is asked for.
        kind: {n: named[n] for n in named if n not in stays} if stays & named.keys() else named
        for kind, named in state.tensors.items()
    }
    return {kind: named for kind, named in found.items() if named}


def _standardise(norm: RoundNorm, work: Work, exchange: Exchange, least: int) -> None:
    """Measure the model's columns where nobody has; of a client that keeps all, its own samples."""
    found = find_standardised(work.model)
    if found and not bool(found[1].input_deviation_C.any()):
        alone = standard_tensors(work.model) <= norm.local
        measure(found[1], work.data, None if alone else exchange, least)


def _input_stays(state: State, norm: RoundNorm, model: nn.Module) -> bool:
    """Return whether columns' mean and deviation stay as they are: measured, or a client's own."""
    names = standard_tensors(model)
    return names <= norm.local or is_measured(state, names)


def _start(state: State, work: Work, travelling: Mapping[Kind, NamedTensors]) -> Start:
    origin = travelling.get(Kind.PARAMETERS, {})
    control = state.tensors.get(Kind.CONTROL, {})
    return Start(work, trained_parameters(work.model), origin, control)


def _sgd(start: Start, buffers: NamedTensors) -> torch.optim.SGD:
    optimiser = local_sgd(start.parameters.values(), start.work.sgd)
    for name, parameter in start.parameters.items():
        if name in buffers:
            buffer = torch.empty_like(parameter, requires_grad=False).copy_(buffers[name])
            optimiser.state[parameter]["momentum_buffer"] = buffer
    return optimiser


def _buffers(start: Start, optimiser: torch.optim.SGD) -> dict[str, Tensor]:
    return {
        name: optimiser.state[parameter]["momentum_buffer"]
        for name, parameter in start.parameters.items()
        # None without momentum; nothing for a parameter that the loss does not reach
        if optimiser.state[parameter].get("momentum_buffer") is not None
    }

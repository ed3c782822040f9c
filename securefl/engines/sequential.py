"""Runs the clients of a round one after the other, on whatever device the model is.

Clients that talk only at the end of their round share one model. Clients that need a sum in the
middle of it (FedTAN) have a model each, since their graphs are alive at the same time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch
from torch import nn

from securefl.algorithms.base import Algorithm, Work, averaged_tensors, load_tensors
from securefl.data.samples import Samples, minibatches
from securefl.engines.broadcast import Broadcast
from securefl.engines.delivery import Delivery, OpenExchange
from securefl.engines.training import Training, round_generator
from securefl.engines.turns import Ask, ClientThread, Done
from securefl.errors import ConfigError, DataError
from securefl.privacy.randomness import seeded_layers
from securefl.types import (
    Contribution,
    Kind,
    Memory,
    MessageSpec,
    NamedTensors,
    Plan,
    State,
    Total,
)


@dataclass(frozen=True, slots=True)
class _End:
    """One client's end of the exchange."""

    weight: float
    ask: Callable[[str, NamedTensors], Total]

    def sum(self, name: str, values: NamedTensors) -> Total:
        return self.ask(name, values)


class SequentialEngine:
    """The clients of one run. The same seed gives the same bits."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        data: Mapping[str, Samples],
        training: Training,
        delivery: Delivery,
    ) -> None:
        """`data` and `delivery.clients` have the same names. `model` is copied, not changed.

        Raises:
            DataError: the algorithm cannot run on this model.
        """
        self._algorithm = algorithm
        self._data = data
        self._training = training
        self._delivery = delivery
        self._model = copy.deepcopy(model)
        algorithm.plan(algorithm.init(model), model)  # raises where it cannot run on this model
        self._models: list[nn.Module] = []
        self._index = {name: i for i, name in enumerate(data)}
        # Buffers that do not travel (counters) start each round as they were in the model given:
        # what one client or one round has left in them is not handed to the next.
        travelling = set().union(*averaged_tensors(model).values())
        self._constants = {
            name: buffer.clone() for name, buffer in model.named_buffers() if name not in travelling
        }
        # The threads outlive a round, since each keeps torch's own worker threads.
        self._pool = ThreadPoolExecutor(len(data), thread_name_prefix="client")
        self.memories: dict[str, Memory] = {name: Memory() for name in data}
        """What each client keeps between rounds."""
        self.broadcast = Broadcast(delivery)
        """What each client has been sent of the global state."""

    def plan(self, state: State) -> Plan:
        """What clients will send in the round after `state`."""
        return self._algorithm.plan(state, self._model)

    def round(self, state: State, times: Mapping[str, int] | None = None) -> State:
        """One round of the clients in `times`, each counting so often; of all once where None.

        Raises:
            Diverged: no client's values can be used.
            OpeningRefused: the authority does not open a total.
        """
        plan, times = self.plan(state), times or dict.fromkeys(self._data, 1)
        self._delivery.be_ready_for(plan)
        self.broadcast.send(state, times)
        # Clients move in a fixed order, so one seed for the round fixes what all their layers draw.
        seed = round_generator(self._training.seed, state.round, 0).initial_seed()
        with seeded_layers(next(self._model.parameters()).device, seed):
            run = self._in_turns if plan.sums else self._one_by_one
            next_state = self._algorithm.update(state, run(state, plan, times))
        if not isinstance(next_state, State):
            raise ConfigError(
                f"the algorithm's update() gave a {type(next_state).__name__}: it must return a "
                "securefl.types.State"
            )
        self.broadcast.changed(plan.update, next_state)
        return next_state

    def passed(self, state: State) -> State:
        """After a round that nobody was present in: the model stays, and there is no news."""
        self.broadcast.changed((), state)
        return replace(state, round=state.round + 1)

    def _one_by_one(self, state: State, plan: Plan, times: Mapping[str, int]) -> dict[Kind, Total]:
        ending = self._delivery.begin(state.round + 1, 1, plan.update, times)
        for name in times:
            work = self._work(name, state, self._model)
            exchange = _End(self._weight(name, times), _no_sum)
            self._finish(name, self._algorithm.client(state, work, exchange), ending)
        return _totals(plan, ending)

    def _in_turns(self, state: State, plan: Plan, times: Mapping[str, int]) -> dict[Kind, Total]:
        exchange = 1
        specs = {spec.name: spec for spec in plan.sums}
        # Where nothing before a layer learns (BN on the input), no gradient is asked for.
        due = {spec.name for spec in plan.sums if spec.kind is not Kind.GRADIENTS}
        answer: Total | None = None
        contributions: dict[str, Contribution] = {}
        with self._threads(state, times) as threads:
            while threads:
                asks: dict[str, Ask] = {}
                for name in list(threads):
                    outcome = threads[name].resume(answer)
                    if isinstance(outcome, Done):
                        contributions[name] = outcome.result
                        del threads[name]
                    else:
                        asks[name] = outcome
                if asks:
                    opened = self._delivery.begin(
                        state.round + 1, exchange, [_asked_for(asks, specs)], times
                    )
                    answer = self._sum(opened, asks, threads)
                    exchange += 1
                    due -= {ask.name for ask in asks.values()}
        if due:
            raise DataError(
                f"no client asked for the planned sums {sorted(due)}: is a BN layer never called, "
                "or used by another way than its own forward?"
            )
        ending = self._delivery.begin(state.round + 1, exchange, plan.update, times)
        for name, contribution in contributions.items():
            self._finish(name, contribution, ending)
        return _totals(plan, ending)

    def _sum(
        self,
        opened: OpenExchange,
        asks: Mapping[str, Ask],
        threads: dict[str, ClientThread[Contribution]],
    ) -> Total:
        """The sum that all `asks` are for; a client whose values are refused leaves the round."""
        for name, ask in asks.items():
            if not opened.deliver(name, {ask.name: ask.values}):
                thread = threads.pop(name)
                thread.dismiss()
                thread.wait()
        (total,) = opened.finish(receivers=list(threads)).values()
        return total

    @contextmanager
    def _threads(
        self, state: State, times: Mapping[str, int]
    ) -> Iterator[dict[str, ClientThread[Contribution]]]:
        """A thread for each client; whatever happens, none is left behind."""

        def work(name: str, model: nn.Module) -> ClientThread[Contribution]:
            weight = self._weight(name, times)
            return ClientThread(
                self._pool,
                lambda ask: self._algorithm.client(
                    state, self._work(name, state, model), _End(weight, ask)
                ),
            )

        while len(self._models) < len(times):
            self._models.append(copy.deepcopy(self._model))
        threads = {
            name: work(name, model) for name, model in zip(times, self._models, strict=False)
        }
        running = dict(threads)
        try:
            yield running
        finally:
            for thread in threads.values():
                thread.dismiss()  # all before the first is waited for: Ctrl-C may come twice
            for thread in threads.values():
                thread.wait()

    def _weight(self, name: str, times: Mapping[str, int]) -> float:
        return times[name] * self._delivery.clients[name].weight

    def _work(self, name: str, state: State, model: nn.Module) -> Work:
        load_tensors(model, state)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name in self._constants:
                buffer.copy_(self._constants[buffer_name])
        training = self._training
        rng = round_generator(training.seed, state.round, self._index[name])
        device = next(model.parameters()).device
        data = self._data[name]
        return Work(
            model,
            data,
            minibatches(data, training.batch_size, rng, device),
            training.steps(data),
            training.loss,
            training.sgd(state.round),
            self.memories[name],
            rng,
        )

    def _finish(self, name: str, contribution: Contribution, ending: OpenExchange) -> None:
        if not isinstance(contribution, Contribution):
            raise ConfigError(
                f"the algorithm's client() gave a {type(contribution).__name__}: it must return a "
                "securefl.types.Contribution"
            )
        if lost := _not_finite(contribution.memory):
            ending.refuse(name, f"{name}: its own {lost} is not finite")
            return
        tensors = {f"update/{kind}": named for kind, named in contribution.tensors.items()}
        if ending.deliver(name, tensors):
            self.memories[name] = contribution.memory


def _not_finite(memory: Memory) -> str:
    """The first tensor with a NaN or an infinity in it; empty where there is none."""
    kept = (named for field in fields(memory) for named in getattr(memory, field.name).items())
    return next((name for name, value in kept if not torch.isfinite(value).all()), "")


def _no_sum(name: str, values: NamedTensors) -> Total:
    del values
    raise DataError(f"the algorithm asks for the sum {name!r} that its plan() does not list")


def _asked_for(asks: Mapping[str, Ask], specs: Mapping[str, MessageSpec]) -> MessageSpec:
    names = {ask.name for ask in asks.values()}
    if len(names) > 1 or not names <= specs.keys():
        raise DataError(f"clients ask for sums {sorted(names)} where one of the plan is due")
    return specs[names.pop()]


def _totals(plan: Plan, ending: OpenExchange) -> dict[Kind, Total]:
    if not plan.update:
        return {}
    totals = ending.finish()
    return {spec.kind: totals[spec.name] for spec in plan.update}

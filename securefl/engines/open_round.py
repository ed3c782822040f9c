"""A round while its clients train: what they send is added up as it comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch

from securefl.engines.delivery import Delivery, OpenExchange
from securefl.errors import ConfigError, DataError
from securefl.types import Contribution, Kind, Memory, NamedTensors, Plan, State, Total


class OpenRound:
    """The round after a state, of the clients in `times`, each of whom counts so often."""

    def __init__(
        self,
        delivery: Delivery,
        state: State,
        plan: Plan,
        times: Mapping[str, int],
        memories: dict[str, Memory],
    ) -> None:
        """`memories` gets what clients want to keep, once their contribution counts."""
        self.state = state
        self.plan = plan
        self.times = times
        self.memories = memories
        self._delivery = delivery
        self._specs = {spec.name: spec for spec in plan.sums}
        # Where nothing before a layer learns (BN on the input), no gradient is asked for.
        self._due = {spec.name for spec in plan.sums if spec.kind is not Kind.GRADIENTS}
        self._exchange = 1
        self._ending: OpenExchange | None = None

    def weight(self, name: str) -> float:
        """A client's, before it is divided by the sum of weights."""
        return self.times[name] * self._delivery.clients[name].weight

    def sum(self, asks: Mapping[str, tuple[str, NamedTensors]]) -> tuple[Total, list[str]]:
        """One sum in the middle of the round, and who may go on: whose values were not refused.

        Args:
            asks: of each client that is still training, the sum's name and its values.

        Raises:
            DataError: they are for different sums, or for one that the plan does not list.
        """
        names = {name for name, _ in asks.values()}
        if len(names) > 1 or not names <= self._specs.keys():
            raise DataError(f"clients ask for sums {sorted(names)} where one of the plan is due")
        (name,) = names
        opened = self._delivery.begin(
            self.state.round + 1, self._exchange, [self._specs[name]], self.times
        )
        left = [c for c, (_, values) in asks.items() if opened.deliver(c, {name: values})]
        (total,) = opened.finish(receivers=left).values()
        self._exchange += 1
        self._due.discard(name)
        return total, left

    def finish(self, name: str, contribution: Contribution) -> None:
        """A client has trained: its contribution is added, and what it keeps is kept."""
        if not isinstance(contribution, Contribution):
            raise ConfigError(
                f"the algorithm's client() gave a {type(contribution).__name__}: it must return a "
                "securefl.types.Contribution"
            )
        ending = self._begun_ending()
        if lost := not_finite(contribution.memory):
            ending.refuse(name, f"{name}: its own {lost} is not finite")
            return
        tensors = {f"update/{kind}": named for kind, named in contribution.tensors.items()}
        if ending.deliver(name, tensors):
            self.memories[name] = contribution.memory

    def totals(self) -> dict[Kind, Total]:
        """Of all contributions.

        Raises:
            DataError: a sum of the plan was never asked for.
            Diverged, TooFewContributions, OpeningRefused: as `OpenExchange.finish`.
        """
        if not self.plan.update:
            return {}
        totals = self._begun_ending().finish()
        return {spec.kind: totals[spec.name] for spec in self.plan.update}

    def _begun_ending(self) -> OpenExchange:
        if self._ending is None:
            if self._due:
                raise DataError(
                    f"no client asked for the planned sums {sorted(self._due)}: is a BN layer "
                    "never called, or used by another way than its own forward?"
                )
            number, plan = self.state.round + 1, self.plan
            self._ending = self._delivery.begin(number, self._exchange, plan.update, self.times)
        return self._ending


def not_finite(memory: Memory) -> str:
    """The first tensor with a NaN or an infinity in it; empty where there is none."""
    kept = (named for field in fields(memory) for named in getattr(memory, field.name).items())
    return next((name for name, value in kept if not torch.isfinite(value).all()), "")

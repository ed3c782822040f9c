"""A round while its clients train: what they send is added up as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from securefl.engines.delivery import Delivery, OpenExchange
from securefl.engines.handed import Way
from securefl.engines.outgoing import Outgoing, Sent
from securefl.errors import DataError
from securefl.exchange.layout import Rows
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
        self.outgoing = Outgoing(
            delivery.run,
            state.round + 1,
            {way.spec.name: way for way in delivery.ways(plan.sums)},
            delivery.ways(plan.update),
            times,
            delivery.clients,
        )
        self._delivery = delivery
        # Where nothing before a layer learns (BN on the input), no gradient is asked for.
        self._due = {spec.name for spec in plan.sums if spec.kind is not Kind.GRADIENTS}
        self._exchange = 1
        self._ending: OpenExchange | None = None

    def weight(self, name: str) -> float:
        """A client's, before it is divided by the sum of weights."""
        return self.outgoing.weight(name)

    def sum(self, asks: Mapping[str, tuple[str, NamedTensors]]) -> tuple[Total, list[str]]:
        """One sum in the middle of the round, and who may go on: whose values were not refused.

        Args:
            asks: of each client that is still training, the sum's name and its values.

        Raises:
            DataError: they are for different sums, or for one that the plan does not list.
        """
        way = self.outgoing.due({name for name, _ in asks.values()})
        sent = ((c, self.outgoing.asked(c, way, values)) for c, (_, values) in asks.items())
        return self._sum(way, sent)

    def sum_sent(self, asks: Mapping[str, tuple[str, Sent]]) -> tuple[Total, list[str]]:
        """As `sum`, of what clients have sent for it."""
        way = self.outgoing.due({name for name, _ in asks.values()})
        return self._sum(way, ((client, sent) for client, (_, sent) in asks.items()))

    def sum_rows(self, name: str, clients: Sequence[str], rows: Rows) -> tuple[Total, list[str]]:
        """As `sum`, of clients side by side: in the clear, one reduction over the client axis."""
        way = self.outgoing.due({name})
        if not way.handed:
            return self.sum(
                {client: (name, row) for client, row in zip(clients, rows, strict=True)}
            )
        opened = self._delivery.begin(self.state.round + 1, self._exchange, (way,))
        handed, refused = self.outgoing.asked_by_row(clients, way, rows)
        for client, sent in refused.items():
            opened.take(client, sent)
        return self._ended(way, opened, opened.take_rows(handed))

    def _sum(self, way: Way, sent: Iterable[tuple[str, Sent]]) -> tuple[Total, list[str]]:
        opened = self._delivery.begin(self.state.round + 1, self._exchange, (way,))
        return self._ended(way, opened, [c for c, own in sent if opened.take(c, own)])

    def _ended(self, way: Way, opened: OpenExchange, left: list[str]) -> tuple[Total, list[str]]:
        (total,) = opened.finish(receivers=left).values()
        self._exchange += 1
        self._due.discard(way.spec.name)
        return total, left

    def finish(self, name: str, contribution: Contribution) -> None:
        """A client has trained: its contribution is added, and what it keeps is kept."""
        sent = self.outgoing.trained(name, contribution)
        self.finish_sent(name, sent, contribution.memory)

    def finish_sent(self, name: str, sent: Sent, memory: Memory) -> None:
        """As `finish`, of what a client has sent at the end of its round."""
        if self._begun_ending().take(name, sent):
            self.memories[name] = memory

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
            number, ways = self.state.round + 1, self.outgoing.update
            self._ending = self._delivery.begin(number, self._exchange, ways)
        return self._ending

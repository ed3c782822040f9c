"""A round while its clients train: what they send is added up as it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from securefl.errors import DataError
from securefl.exchange.layout import Rows
from securefl.federation.contribution import HandedRows, Way
from securefl.federation.delivery import Delivery, OpenExchange
from securefl.federation.outgoing import Outgoing, Sent
from securefl.simulation.client_state import Memories
from securefl.types import Contribution, Kind, Memory, NamedTensors, Plan, State, Total


@dataclass(frozen=True, slots=True)
class OpenSum:
    """A sum in the middle of a round, while what clients send for it arrives."""

    way: Way
    _exchange: OpenExchange
    _counted: list[str] = field(default_factory=list)

    def take(self, client: str, sent: Sent) -> None:
        """See `OpenExchange.take`."""
        if self._exchange.take(client, sent):
            self._counted.append(client)

    def take_rows(self, handed: HandedRows) -> None:
        """See `OpenExchange.take_rows`."""
        self._counted.extend(self._exchange.take_rows(handed))

    def total(self) -> tuple[Total, list[str]]:
        """Raises as `OpenExchange.finish`; and who may go on: whose values were not refused."""
        (total,) = self._exchange.finish(receivers=self._counted).values()
        return total, self._counted


class OpenRound:
    """The round after a state, of the clients in `times`, each of whom counts so often."""

    def __init__(
        self,
        delivery: Delivery,
        state: State,
        plan: Plan,
        times: Mapping[str, int],
        memories: Memories,
    ) -> None:
        """`memories` gets what clients want to keep, once their contribution counts."""
        self.state = state
        self.plan = plan
        self.times = times
        self.memories = memories
        sums = {way.spec.name: way for way in delivery.ways(plan.sums)}
        ways = sums, delivery.ways(plan.update)
        self.outgoing = Outgoing.after(state, delivery.run, ways, times, delivery.clients)
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
        opened = self.open_sum({name for name, _ in asks.values()})
        for client, (_, values) in asks.items():
            opened.take(client, self.outgoing.asked(client, opened.way, values))
        return opened.total()

    def sum_rows(self, name: str, clients: Sequence[str], rows: Rows) -> tuple[Total, list[str]]:
        """As `sum`, of clients side by side: in the clear, one reduction over the client axis."""
        if not self.outgoing.due({name}).handed:
            return self.sum({c: (name, row) for c, row in zip(clients, rows, strict=True)})
        opened = self.open_sum({name})
        opened.take_rows(self.outgoing.asked_by_row(clients, opened.way, rows))
        return opened.total()

    def open_sum(self, names: set[str]) -> OpenSum:
        """The sum in the middle of the round that clients ask for by these names.

        Raises:
            DataError: they are for different sums, or for one that the plan does not list.
        """
        way = self.outgoing.due(names)
        exchange = self._begin((way,))
        self._exchange += 1
        self._due.discard(way.spec.name)
        return OpenSum(way, exchange)

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
            self._ending = self._begin(self.outgoing.update)
        return self._ending

    def _begin(self, ways: tuple[Way, ...]) -> OpenExchange:
        about = self.outgoing.round, self.outgoing.state
        return self._delivery.begin(about, self._exchange, ways)

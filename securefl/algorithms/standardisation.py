"""Mean and deviation of each column over all sites' samples, by sums over clients.

Axes: N columns of numbers. The sums come in the first round, before any client's first step, and
all clients take part: counts and sums, then squares about the mean over all, so that nothing
cancels. What is missing is in neither. Nobody learns more of a client than is in the totals, which
are sealed where statistics are.

A total is a client's own where no other one has the column. So where numbers may be missing, the
clients that have each column are counted first, and nothing is sent of one that few have.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from securefl.data.samples import Samples, in_order
from securefl.exchange.sums import Exchange
from securefl.norms.standardised_input import (
    DEVIATION,
    MEAN,
    StandardisedInput,
    find_standardised,
)
from securefl.types import Kind, MessageSpec, State, Weighing

CLIENTS, SUM, VARIANCE = "input/clients/sum", "input/sum", "input/variance"
"""Names of the messages: a one for each column that a client has, where any may be missing; counts
and sums of columns; sums of squares about the mean over all."""
COLUMN_SUMS = frozenset({CLIENTS, SUM, VARIANCE})
"""Sums that follow from clients' data alone, whatever the model and the round."""


def standard_tensors(model: nn.Module) -> frozenset[str]:
    """Return the names of the tensors that hold mean and deviation; empty without such a layer."""
    found = find_standardised(model)
    return frozenset(f"{found[0]}.{name}" for name in (MEAN, DEVIATION)) if found else frozenset()


def is_standard(name: str) -> bool:
    """Return whether a tensor of a state holds columns' mean or deviation."""
    return name.rpartition(".")[2] in {MEAN, DEVIATION}


def is_measured(state: State, names: frozenset[str]) -> bool:
    """Return whether a state has mean and deviation; True where there is nothing to measure."""
    found = state.tensors.get(Kind.STATISTICS, {})
    return all(bool(found[n].any()) for n in names if n.endswith(DEVIATION))


def measured(state: State) -> State:
    """Return a state as after its columns are measured, with ones for the deviations."""
    found = state.tensors.get(Kind.STATISTICS, {})
    ones = {n: torch.ones_like(v) for n, v in found.items() if n.endswith(DEVIATION)}
    if not ones:
        return state
    return replace(state, tensors={**state.tensors, Kind.STATISTICS: {**found, **ones}})


def input_messages(model: nn.Module) -> tuple[MessageSpec, ...]:
    """Return the sums by which the model's columns are measured."""
    found = find_standardised(model)
    if found is None:
        return ()
    layer, n = found[1], len(found[1].numbers)
    sums = {CLIENTS: n} if layer.may_miss else {}
    sums |= {SUM: 2 * n, VARIANCE: n}
    return tuple(MessageSpec(x, Kind.STATISTICS, size, Weighing.EQUAL) for x, size in sums.items())


def measure(
    layer: StandardisedInput, data: Samples, exchange: Exchange | None, least: int = 1
) -> None:
    """Write mean and deviation of all clients' samples into a layer; without exchange, of these.

    Args:
        layer: the first of the model.
        data: all of one client's samples.
        exchange: way to the other clients' sums.
        least: number of clients, or all of fewer, that have a column of which anything is sent.
    """
    own, n_clients = _Own(layer, data), 1
    if exchange and layer.may_miss:
        (count_N,) = own.added(lambda _, present: (present,))
        total = exchange.sum(CLIENTS, {"clients": count_N.gt(0).double()})
        # Sealed, it has noise.
        own.sent_N = total.values["clients"] * total.n_clients > min(least, total.n_clients) - 0.5
    count_N, sum_N = own.added(lambda x, present: (present, x * present))
    if exchange:
        total = exchange.sum(SUM, {"count": count_N, "sum": sum_N})
        count_N, sum_N, n_clients = total.values["count"], total.values["sum"], total.n_clients
    # Of noise, no sample: a column that nobody has counts less than half a one.
    nobody_N = count_N * (n_clients * layer.most) < 0.5
    count_N = count_N.masked_fill(nobody_N, 1.0)
    mean_N = (sum_N / count_N).masked_fill(nobody_N, 0.0)
    (square_N,) = own.added(lambda x, present: ((x - mean_N).square() * present,))
    if exchange:
        square_N = exchange.sum(VARIANCE, {"square": square_N}).values["square"]
    layer.set(mean_N, (square_N / count_N).clamp_min(0.0).masked_fill(nobody_N, 0.0).sqrt())


class _Own:
    """Sums over one client's samples, in 64 bits, divided by the most samples of any."""

    def __init__(self, layer: StandardisedInput, data: Samples) -> None:
        self._layer, self._data = layer, data
        self.sent_N: Tensor | None = None
        """Columns of which anything is sent; all of them where absent."""

    def added(self, of: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return Σ f(x, present) over samples, of values of shape (n, N), by the columns N."""
        places, added = list(self._layer.numbers), list[Tensor]()
        for x, _ in in_order(self._data):
            x = x.to(self._layer.input_mean_C.device)  # noqa: PLW2901
            n_pixels = x[0, 0].numel()  # of a picture, which counts as one sample
            x_C = x.movedim(1, -1).flatten(0, -2)
            x_BN, present_BN = (y[:, places].double() for y in (x_C, self._layer.present(x_C)))
            if self.sent_N is not None:
                present_BN = present_BN * self.sent_N
            found = [values.sum(dim=0) / n_pixels for values in of(x_BN, present_BN)]
            added = [a + b for a, b in zip(added, found, strict=True)] if added else found
        return tuple(each / self._layer.most for each in added)

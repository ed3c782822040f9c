"""Profiles of many clients' data, whose samples share forward passes of the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from securefl.algorithms.profiling import View, merged_profile, representing
from securefl.data.samples import BATCH, Samples, TensorSamples, in_order
from securefl.errors import DataError
from securefl.exchange.profile import Profile

Represent = Callable[[Tensor], Tensor]
_TOLERANCE = 1e-3
"""Of a representation, to its largest value: far above rounding in single precision."""


def profiles(view: View, data: Mapping[str, Samples]) -> dict[str, Profile | DataError]:
    """Each client's `profile` in the view's unit, or why it has none.

    Clients of less than a batch share a pass, unless a first try of it shows that the model looks
    at several samples at once.

    Raises:
        DataError: the layer cannot be profiled, whosever data it sees.
    """
    found: dict[str, Profile | DataError] = {}
    with representing(view.model, view.layer) as represented:
        shared = _by_sample(represented, data)
        for names in _groups(data) if shared else ([name] for name in data):
            for name, batches in _values(represented, {name: data[name] for name in names}):
                try:
                    found[name] = merged_profile(batches, view)
                except DataError as error:
                    found[name] = error
    return found


def _values(
    represented: Represent, data: Mapping[str, Samples]
) -> Iterator[tuple[str, Iterable[Tensor]]]:
    """Representations of clients' samples, in batches; of several clients in one pass."""
    if len(data) > 1:
        x_by_client = [_x(of) for of in data.values()]
        with suppress(DataError):  # which of them it is for shows in passes of their own
            rows = represented(torch.cat(x_by_client)).split([len(x) for x in x_by_client])
            yield from zip(data, ([values_BQ] for values_BQ in rows), strict=True)
            return
    for name, of in data.items():
        yield name, (represented(x) for x, _ in in_order(of))


def _x(of: Samples) -> Tensor:
    return of.take(torch.arange(len(of)))[0]


def _groups(data: Mapping[str, Samples]) -> Iterator[Sequence[str]]:
    """Clients of samples alike, in order, with at most a batch together, or one with more."""
    names, n, kind = list[str](), 0, None
    for name, of in data.items():
        own = (of.x.dtype, of.x.shape[1:]) if isinstance(of, TensorSamples) else None
        if names and (own is None or own != kind or n + len(of) > BATCH):
            yield names
            names, n = [], 0
        names, n, kind = [*names, name], n + len(of), own
    if names:
        yield names


def _by_sample(represented: Represent, data: Mapping[str, Samples]) -> bool:
    """Whether samples of one client are represented together as each is alone."""
    for of in data.values():
        x, _ = of.take(torch.arange(2))
        if x.is_floating_point():  # larger ones beside, for who divides by the largest
            noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
            x = torch.cat([x, 2 * x.flip(0) + noise])
        with suppress(DataError):
            both, alone = represented(x), torch.cat([represented(one) for one in x.split(1)])
            # Those that are alike would show nothing.
            if torch.isfinite(alone).all() and not torch.equal(alone[0], alone[1]):
                return bool((both - alone).abs().max() <= _TOLERANCE * alone.abs().max())
    return False

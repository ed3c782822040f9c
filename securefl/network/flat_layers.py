"""Flat layers: the plainest of what a crafted model has, which a client refuses.

A layer whose values are all alike, and were not in the model that the client's own installation
begins with, comes of no training. Most crafted models have none: see "A crafted model" in
docs/one-time-keys.md, with what other checks would cost and find.
"""

from collections.abc import Iterator

from torch import Tensor

from securefl.errors import ModelRefused
from securefl.types import Kind, State

LEAST = 8
"""Least number of values of a layer that is looked at: fewer may be alike by chance."""


def varied(first: State) -> frozenset[str]:
    """Return the names of the layers that are not flat in the model that a run begins with."""
    return frozenset(name for name, value in _layers(first) if not _is_flat(value))


def require_varied(client: str, state: State, names: frozenset[str]) -> None:
    """Raise ModelRefused where one of these layers is flat."""
    flat = next((name for name, value in _layers(state) if name in names and _is_flat(value)), None)
    if flat:
        raise ModelRefused(
            f"{client}: round {state.round + 1}: all values of {flat} are alike in the model that "
            "the server shows. No training makes it so: the model is crafted to read clients' "
            "data, or damaged. This client takes no part: ask who runs the server"
        )


def _layers(state: State) -> Iterator[tuple[str, Tensor]]:
    for name, value in state.tensors.get(Kind.PARAMETERS, {}).items():
        if value.numel() >= LEAST:
            yield name, value


def _is_flat(value: Tensor) -> bool:
    flat = value.reshape(-1)
    few = flat[:LEAST]  # an honest layer is told by these
    return bool((few == flat[0]).all()) and bool((flat == flat[0]).all())

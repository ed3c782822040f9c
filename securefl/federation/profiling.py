"""Profiling of clients' data (FedProf): the layer, and the noise of differential privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from securefl.algorithms.profiles import profiles
from securefl.algorithms.profiling import View
from securefl.data.samples import Samples, in_order
from securefl.errors import DataError
from securefl.exchange.gaussian import Draw
from securefl.exchange.profile import Profile
from securefl.privacy.randomness import Randomness, Secret


class Profiler(Protocol):
    """Function that makes profiles other than the exact ones."""

    def __call__(self, view: View, batches: Iterable[Tensor], randomness: Randomness) -> Profile:
        """Return a profile in the view's unit; raises DataError where there is none."""


@dataclass(frozen=True, slots=True)
class Profiling:
    """Settings of profiles, the same for all clients of a run."""

    layer: str | None
    """Name of the layer; `default_layer` where None."""
    profiler: Profiler | None = None
    """Profiler of clients; profiles are exact where None, as the server's baseline always is."""
    randomness: Callable[[int, str], Randomness] = lambda _version, _client: Secret()
    """Source of a client's noise, on its profile or on its score in the clear, by the number of
    rounds completed and the client's name."""

    def draw(self, version: int, client: str) -> Draw:
        """Return the source of the noise on a client's score."""
        return self.randomness(version, client).gaussian

    def profiles(self, view: View, data: Mapping[str, Samples]) -> dict[str, Profile | DataError]:
        """Return each client's profile, or the error of one that has none."""
        if self.profiler is None:
            return profiles(view, data)
        made: dict[str, Profile | DataError] = {}
        for client, of in data.items():
            randomness = self.randomness(view.version, client)
            try:
                made[client] = self.profiler(view, inputs(of), randomness)
            except DataError as error:
                made[client] = error
        return made


def inputs(data: Samples) -> Iterator[Tensor]:
    """Yield the samples in batches, without their labels."""
    return (x for x, _ in in_order(data))

"""FedPer (Arivazhagan et al., arXiv 1912.00818): layers that stay at each client.

The base layers are averaged, the personalisation layers are each client's own and never travel: by
default the last linear layer, else those that the settings name. The paper trains both parts
together, by the same SGD, and so does this. What a client has not trained yet is the first model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from securefl.errors import DataError
from securefl.settings.axes import Normalisation
from securefl.types import State

if TYPE_CHECKING:
    from torch import nn

    from securefl.algorithms.normalisation.policy import Policy, RoundNorm
    from securefl.settings.tables import Config

MOST_NAMES = 60
"""Most names of layers in a message."""


class FedPer(Normalisation):
    """Layers that stay at each client."""

    name: Literal["fedper"] = "fedper"
    layers: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    """Layers or tensors that stay at the clients, by their names in the model; `*` stands for
    anything, so that `stage3.*` is all of a part. The last linear layer where empty."""
    kept: ClassVar[str] = "layers"
    serves_others: ClassVar[bool] = False

    def clashes(self, config: Config) -> Iterator[str]:
        """See `Choice.clashes`."""
        if config.fnr.trains and not config.fnr.refines:
            yield (
                f'algorithm.name = "{self.name}" with fnr.name = "{config.fnr.name}": the server '
                "would train the layers that are shared together with first ones of those that "
                'stay at the clients; set fnr.name = "none", or one by which clients train'
            )

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        del rounds
        return KeptLayers(self.layers)


@dataclass(frozen=True, slots=True)
class KeptLayers:
    """The policy by which each client keeps the layers of these names, or the last linear one."""

    layers: Sequence[str] = ()

    def __call__(self, state: State, model: nn.Module) -> RoundNorm:
        """Return the same in all rounds.

        Raises:
            DataError: a name matches nothing in the model, or nothing is left to share; or none is
                given and the model has no last linear layer.
        """
        from securefl.algorithms.algorithm import averaged_tensors
        from securefl.algorithms.normalisation.policy import RoundNorm

        del state
        names = [name for named in averaged_tensors(model).values() for name in named]
        found = self._matching(names) if self.layers else _last(model)
        local = frozenset(names) & found
        if len(local) == len(names):
            raise DataError(
                f"algorithm.layers = {list(self.layers)} leaves nothing to share: name fewer "
                'layers, or set algorithm.name = "singlenet"'
            )
        return RoundNorm(local=local)

    def _matching(self, names: Sequence[str]) -> set[str]:
        found = set[str]()
        for layer in self.layers:
            matching = {n for n in names if fnmatchcase(n, layer) or fnmatchcase(n, f"{layer}.*")}
            if not matching:
                raise DataError(
                    f'algorithm.layers: "{layer}" is none of this model, whose layers are '
                    f"{_listed(names)}: name one of them, or a part such as "
                    f'"{names[-1].rpartition(".")[0] or names[-1]}"'
                )
            found |= matching
        return found


def _last(model: nn.Module) -> set[str]:
    """Return the names of the parameters of the last linear layer."""
    from securefl.algorithms.features import last_linear

    try:
        last = {id(parameter) for parameter in last_linear(model).parameters()}
    except DataError as error:
        raise DataError(f"{error}; or name the layers that stay in algorithm.layers") from None
    return {name for name, parameter in model.named_parameters() if id(parameter) in last}


def _listed(names: Sequence[str]) -> str:
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    more = len(layers) - MOST_NAMES
    return ", ".join(layers[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

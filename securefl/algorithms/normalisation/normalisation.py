"""A normalisation of one's own: its settings, and the policy that it is built to."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from securefl.settings.axes import NormalisationChoice

if TYPE_CHECKING:
    from securefl.algorithms.normalisation.policy import Policy


class Normalisation(NormalisationChoice):
    """A normalisation with its settings: its fields are keys of the table `[algorithm]`.

    Examples:
        >>> from securefl.algorithms.normalisation.policy import RoundNorm
        >>> class LocalAffine(securefl.Normalisation):  # γ and β of one layer stay at the clients
        ...     layer: str = "1"
        ...     def build(self, rounds):
        ...         local = frozenset({f"{self.layer}.weight", f"{self.layer}.bias"})
        ...         return lambda state, model: RoundNorm(local=local)
        >>> task = securefl.Task(model, clients, test, choices=[LocalAffine(layer="1")])
        >>> sorted(securefl.run(config, task).own)
        ['east', 'north', 'south']
    """

    @abstractmethod
    def build(self, rounds: int) -> Policy:
        """Return the policy of a run of so many rounds."""

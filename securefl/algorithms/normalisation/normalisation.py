"""A normalisation of one's own: its settings, and the policy that it is built to."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from securefl.settings.axes import NormalisationChoice

if TYPE_CHECKING:
    from securefl.algorithms.normalisation.policy import Policy


class Normalisation(NormalisationChoice):
    """A normalisation with its settings: its fields are keys of the table `[algorithm]`."""

    @abstractmethod
    def build(self, rounds: int) -> Policy:
        """Return the policy of a run of so many rounds."""

"""Compensatory first-come-first-merge (Wu et al., SAFA, IEEE Trans. Computers 2021).

The first clients to submit are merged, those that were not in the last round before those that
were; without that compensation, the fastest devices would be the whole federation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.selection.selector import Selector, Standing
from securefl.settings.axes import DrawnSelector

if TYPE_CHECKING:
    import torch


class Cfcfm(DrawnSelector, Selector):
    """Clients in the order of submission, which is that of their round time; nothing is drawn."""

    name: Literal["cfcfm"] = "cfcfm"
    needs_devices: ClassVar[bool] = True

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`; it goes by `time_s` and `rounds_waited`."""
        from securefl.selection.draw import in_order

        del rng
        time_s_K, waited_K = standing.values("time_s"), standing.values("rounds_waited")
        arrivals = sorted(
            range(len(standing.clients)), key=lambda k: (bool(waited_K[k] == 0), float(time_s_K[k]))
        )
        return in_order(standing.clients, arrivals[:n])

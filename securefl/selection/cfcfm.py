"""Compensatory first-come-first-merge (Wu et al., SAFA, IEEE Trans. Computers 2021).

The first clients to submit are merged, those that were not in the last round before those that
were; without that compensation, the fastest devices would be the whole federation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from securefl.selection.draw import in_order
from securefl.selection.selector import Standing


@final
@dataclass(frozen=True, slots=True)
class Cfcfm:
    """Clients in the order of submission, which is that of their round time; nothing is drawn."""

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`; it goes by `time_s` and `rounds_waited`."""
        del rng
        time_s_K, waited_K = standing.values("time_s"), standing.values("rounds_waited")
        arrivals = sorted(
            range(len(standing.clients)), key=lambda k: (bool(waited_K[k] == 0), float(time_s_K[k]))
        )
        return in_order(standing.clients, arrivals[:n])

"""When to freeze BN: once its batch statistics change at a steady rate (FixBN, appendix B.6).

ΔBN_{m,t} is the change, from one round to the next, of client m's batch statistics, and over a
window of W rounds

    Var_{m,t} = 1/W Σ_i (ΔBN_{m,i} - mean ΔBN_m)²

taken as the mean over all channels' μ and σ². BN is frozen once Σ p_m Var_{m,t} < τ: the paper has
a client's own value, but all clients must freeze in the same round. A round's statistics are the
mean over its local steps, since it is in these that clients drift apart: a first batch, of the
model that all have, varies by its sampling alone, no less at the end than at the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from securefl.errors import DataError
from securefl.types import Kind

if TYPE_CHECKING:
    from torch import Tensor, nn

    from securefl.algorithms.normalisation.policy import Followed
    from securefl.norms.watch import WatchedMoments
    from securefl.types import NamedTensors, State

VARIATION = "fixbn/variation"
FILLED = "fixbn/filled"
LAST, CHANGES = "last", "changes"


@dataclass(frozen=True, slots=True)
class Window:
    """W and τ; the paper recommends a large W and a small τ."""

    size: int
    threshold: float

    def settled(self, state: State) -> bool:
        """Return True where all clients' windows are full and their mean variation is below τ."""
        known = state.tensors.get(Kind.STATISTICS, {})
        if VARIATION not in known:
            return False
        full = float(known[FILLED]) > 1 - 1e-3  # a rounded mean of ones
        return full and float(known[VARIATION]) < self.threshold

    @property
    def holds(self) -> bool:
        """See `Following`."""
        return False

    def start(self, model: nn.Module) -> dict[str, Tensor]:
        """Return what clients' sums say before the first round."""
        like = next(model.parameters())
        return {VARIATION: like.new_zeros(()), FILLED: like.new_zeros(())}

    @contextmanager
    def steps(self, model: nn.Module, kept: NamedTensors) -> Iterator[Followed]:
        """See `Following`."""
        from securefl.norms.watch import observed_batch_norm

        with observed_batch_norm(model) as seen:
            yield lambda: self.follow(seen, kept)

    def follow(
        self, seen: WatchedMoments, kept: NamedTensors
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what a client sends and what it keeps after a round whose batches were `seen`.

        Raises:
            DataError: no BN layer was called.
        """
        if not seen:
            raise DataError(
                "no BN layer of the model was called in a whole round, so that there are no "
                'statistics to settle: call one, or use algorithm.name = "fedavg"'
            )
        import torch

        now = torch.cat(
            [torch.stack([torch.cat(pair) for pair in passes]).mean(0) for passes in seen.values()]
        )
        changes = kept.get(CHANGES, now.new_zeros((0, len(now))))
        if LAST in kept:
            changes = torch.cat([changes, (now - kept[LAST])[None]])[-self.size :]
        full = len(changes) == self.size
        variation = changes.var(dim=0, correction=0).mean() if full else now.new_zeros(())
        sent = {VARIATION: variation, FILLED: now.new_tensor(float(full))}
        return sent, {LAST: now, CHANGES: changes}

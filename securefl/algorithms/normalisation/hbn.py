"""HBN (Chen, Xu, Wu, Kittler, "Hybrid Batch Normalisation", ICML 2025, Algorithm 1).

A local step normalises by a mixture of its batch's statistics and the global ones, in shares that
each client learns for itself, channel by channel (`norms.mixed`). The global statistics follow no
training: they are measured on the global model, which is one for all clients, so that their mean is
unbiased.

Choices where the paper and its authors' code differ, or neither fits:

- A round begins with the measurement, in one sum over clients, and trains and ends with what was
  found. So the last model is scored with the statistics of the one before it, as under static BN.
  The authors train with those of a round earlier, and measure once more before they score.
- It is a pass over all of a client's samples, in which BN is at rest with the statistics of the
  last round: the same function at every client. The authors' code has each client mix with its own
  batches and factors, and takes one batch.
- The variance is the one about the mean over all clients, not the mean of theirs.
- The statistics of the last round are replaced; the code moves them by a momentum of 0.002.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.algorithms.normalisation.client_bn import OTHERS
from securefl.settings.axes import Normalisation, Normalises
from securefl.types import Kind, MessageSpec, NamedTensors, State

if TYPE_CHECKING:
    from torch import Tensor, nn

    from securefl.algorithms.algorithm import Work
    from securefl.algorithms.normalisation.policy import Followed, Policy, RoundNorm
    from securefl.exchange.sums import Exchange

NAME = "HBN"
MESSAGE = "hbn/moments"


class HybridBN(Normalisation):
    """Batch and global statistics, mixed in shares that each client learns."""

    name: Literal["hbn"] = "hbn"
    normalises: ClassVar[Normalises] = Normalises.BY_MIXTURE
    needs_bn: ClassVar[bool] = True
    measures: ClassVar[bool] = True
    mixes_records: ClassVar[str] = OTHERS

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        del rounds
        return hybrid_bn


def hybrid_bn(state: State, model: nn.Module) -> RoundNorm:
    """Return the same in all rounds; DataError where the model has no BN with global statistics."""
    from securefl.algorithms.normalisation.policy import RoundNorm, required_tracking

    del state
    required_tracking(model, NAME)
    return RoundNorm(following=MixingFactors(), measurement=OfUnion(), layers_alone=True)


@dataclass(frozen=True, slots=True)
class MixingFactors:
    """The factors α that a client keeps, by layer."""

    @property
    def holds(self) -> bool:
        """See `Following`."""
        return True

    def start(self, model: nn.Module) -> dict[str, Tensor]:
        """Return nothing: α never travels."""
        del model
        return {}

    @contextmanager
    def steps(self, model: nn.Module, kept: NamedTensors) -> Iterator[Followed]:
        """See `Following`."""
        from securefl.algorithms.algorithm import copied
        from securefl.norms.mixed import mixed_batch_norm

        with mixed_batch_norm(model, kept) as factors:
            yield lambda: ({}, copied(factors))


@dataclass(frozen=True, slots=True)
class OfUnion:
    """Statistics of the global model on all samples of the round's clients."""

    def messages(self, model: nn.Module) -> tuple[MessageSpec, ...]:
        """Return the one message, with a mean and a mean square for each channel."""
        from securefl.algorithms.normalisation.policy import required_tracking

        n_channels = sum(len(mean_C) for mean_C, _ in required_tracking(model, NAME).values())
        return (MessageSpec(MESSAGE, Kind.STATISTICS, 2 * n_channels),)

    def measure(self, work: Work, exchange: Exchange) -> None:
        """See `Measurement`; moments travel about the last global mean, which all clients have."""
        import torch

        from securefl.algorithms.normalisation.policy import required_tracking
        from securefl.data.samples import in_order
        from securefl.norms.measured import moments_about

        tracked = required_tracking(work.model, NAME)
        references = {layer: mean_C for layer, (mean_C, _) in tracked.items()}
        device = next(work.model.parameters()).device
        inputs = (x.to(device) for x, _ in in_order(work.data))
        found = moments_about(work.model, inputs, references)
        values = {}
        for layer, (mean_C, var_C) in tracked.items():
            # A layer that is not called stays as it is.
            shift_C, square_C = found.get(layer, (torch.zeros_like(mean_C), var_C))
            values[f"{layer}/mean"] = shift_C.to(mean_C)
            values[f"{layer}/square"] = square_C.to(var_C)
        total = exchange.sum(MESSAGE, values).values
        with torch.no_grad():
            for layer, (mean_C, var_C) in tracked.items():
                shift_C, square_C = total[f"{layer}/mean"], total[f"{layer}/square"]
                mean_C.add_(shift_C)
                var_C.copy_((square_C - shift_C.square()).clamp_min(0.0))

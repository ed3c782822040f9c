"""FBN, Federated BatchNorm (Guerraoui, Pinot, Rizk, Stephan, Taïani, arXiv 2405.14670).

All local steps of a round normalise by the global running statistics (μ̄, σ̄²), constants that all
clients share, so that a client's batch is told from another's as in one place. They follow the
batches meanwhile, and are averaged at the round's end:

    μ̄ ← (1 - ρ) μ̄ + ρ μ_B,    σ̄² ← (1 - ρ) σ̄² + ρ mean of (y - μ̄)²    at each local step

With E = 1 a round is one step of the same in one place, on the union of the batches. One exchange a
round, in the message of the statistics.

The paper was at hand in its abstract alone. This is its method as the authors of HBN wrote it for
their comparison (github.com/Hongyao-Chen/HybridBN, FedBaseline/models/FBN). Where ours differs:

- ρ is the layer's momentum, 0.1 unless the model says else, and counts at each local step, as it
  does in one place; theirs counts once a round, of the mean over its batches. With E = 1 that is
  the same.
- The variance is about the mean that the round normalises by, which clients know before the sum;
  theirs is about the next one, and unbiased. Both end at the variance of the union.
- The first round normalises by the statistics that the model begins with, as theirs does: 0 and 1,
  so inputs should be of about that scale.
- The abstract can be read as moments of all clients' batches in the middle of a step: that is
  `forward-only` of `algorithms.normalisation.fedtan`.
- The paper's robust variant is not here: it compares the statistics of single clients, and all that
  an algorithm here gets is sums over clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.algorithms.normalisation.static_bn import MEASURED
from securefl.settings.axes import Normalisation, Normalises
from securefl.types import Freeze, NamedTensors, State

if TYPE_CHECKING:
    from torch import Tensor, nn

    from securefl.algorithms.normalisation.policy import Followed, Policy, RoundNorm
    from securefl.norms.watch import WatchedMoments

NAME = "FBN"


class GlobalBN(Normalisation):
    """Global running statistics, which follow the batches from round to round."""

    name: Literal["fbn"] = "fbn"
    normalises: ClassVar[Normalises] = Normalises.BY_CONSTANTS
    needs_bn: ClassVar[bool] = True
    mixes_records: ClassVar[str] = MEASURED

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        del rounds
        return fbn


def fbn(state: State, model: nn.Module) -> RoundNorm:
    """Return the same in all rounds; DataError where the model has no BN with global statistics."""
    from securefl.algorithms.normalisation.policy import RoundNorm, required_tracking

    del state
    required_tracking(model, NAME)
    return RoundNorm(freeze=Freeze.STATISTICS, following=RunningStatistics(), layers_alone=True)


@dataclass(frozen=True, slots=True)
class RunningStatistics:
    """The running statistics that a client sends, while its model keeps the round's."""

    @property
    def holds(self) -> bool:
        """See `Following`."""
        return True

    def start(self, model: nn.Module) -> dict[str, Tensor]:
        """Return nothing: they are the model's own."""
        del model
        return {}

    @contextmanager
    def steps(self, model: nn.Module, kept: NamedTensors) -> Iterator[Followed]:
        """See `Following`."""
        from securefl.norms.watch import observed_batch_norm

        del kept
        with observed_batch_norm(model) as seen:
            yield lambda: (_moved(model, seen), {})


def _moved(model: nn.Module, seen: WatchedMoments) -> dict[str, Tensor]:
    """Return the running statistics, by their names in the model, after the batches in `seen`."""
    from securefl.norms.find import batch_norm_layers

    layers = batch_norm_layers(model)
    names = {id(buffer): name for name, buffer in model.named_buffers()}
    moved: dict[str, Tensor] = {}
    for layer, batches in seen.items():
        rho = layers[layer].momentum or 0.0  # None is refused
        mean_C, var_C = (layers[layer].get_buffer(f"running_{of}") for of in ("mean", "var"))
        mu_C, v_C = mean_C, var_C
        for mu_B_C, var_B_C in batches:
            about_mean_C = var_B_C + (mu_B_C - mean_C).square()
            mu_C, v_C = mu_C.lerp(mu_B_C.to(mu_C), rho), v_C.lerp(about_mean_C.to(v_C), rho)
        moved |= {names[id(mean_C)]: mu_C, names[id(var_C)]: v_C}
    return moved

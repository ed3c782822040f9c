"""BN-SCAFFOLD (Quintana, Vancamberg, Jugnon, Mougeot, Desolneux, arXiv 2410.03281).

Control variates for BN's statistics, as SCAFFOLD has them for gradients:

    a local step normalises by s_batch + (S - S_k),    S_k⁺ = mean of s_batch over the local steps,
    S = Σ p_k S_k over all clients, in a round or not

with s = (mean, variance) and S_k the client's own. One exchange a round, in the message of the
statistics: a client sends S + S_k⁺ - S_k, so that S moves by Σ p_k (S_k⁺ - S_k) of those present
(`algorithms.participation`). The global model is scored with S. With `solver.name = "scaffold"` it
is the whole of the paper's algorithm; without, gradients are each client's own.

The paper was at hand in abstracts and summaries alone, so these are choices of our own:

- the variance is about the corrected mean, without which S would be no variance of the union, and
  a correction to below zero is bounded (`norms.corrected`);
- S_k is SCAFFOLD's option II, of the batches that the local steps saw;
- a client that was never in a round counts in S with the statistics that the model began with.
  These say nothing of its data, so its first round is not corrected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from securefl.algorithms.normalisation.client_bn import OTHERS
from securefl.settings.axes import Normalisation, Weights
from securefl.types import Kind, NamedTensors, State

if TYPE_CHECKING:
    from torch import Tensor, nn

    from securefl.algorithms.normalisation.policy import Followed, Policy, RoundNorm
    from securefl.norms.corrected import Pair
    from securefl.settings.tables import Config

NAME = "BN-SCAFFOLD"
Tracked: TypeAlias = "Mapping[str, NamedTensors]"
"""Running mean and variance of each BN layer that normalises by the batch, by their dotted name."""


class CorrectedBN(Normalisation):
    """Batch statistics that are corrected by the drift of the last round's."""

    name: Literal["bn-scaffold"] = "bn-scaffold"
    needs_bn: ClassVar[bool] = True
    corrected: ClassVar[bool] = True
    mixes_records: ClassVar[str] = OTHERS

    def clashes(self, config: Config) -> Iterator[str]:
        """See `Choice.clashes`."""
        if config.samples is not None and self.weights is not Weights.UNIFORM:
            yield (
                f'algorithm.weights = "{self.weights}" with algorithm.name = "{self.name}" and '
                "[samples]: nobody tells the weight of sites that miss a round, by which the "
                'statistics of all move; set algorithm.weights = "uniform"'
            )

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        del rounds
        return bn_scaffold


def bn_scaffold(state: State, model: nn.Module) -> RoundNorm:
    """Return the same in all rounds; DataError where the model has no BN with global statistics."""
    from securefl.algorithms.normalisation.policy import RoundNorm, required_tracking

    required_tracking(model, NAME)
    control = StatisticsControl(state.tensors.get(Kind.STATISTICS, {}))
    return RoundNorm(following=control, layers_alone=True)


@dataclass(frozen=True, slots=True)
class StatisticsControl:
    """A client's S_k and its part in S, which is the model's running statistics."""

    state: NamedTensors
    """Statistics in the state: S, and those before the first round."""

    @property
    def holds(self) -> bool:
        """See `Following`."""
        return True

    def start(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the S_k of a client that was never in a round."""
        from securefl.algorithms.normalisation.policy import START

        tracked = _tracked(model).values()
        return {START + name: s.clone() for pair in tracked for name, s in pair.items()}

    @contextmanager
    def steps(self, model: nn.Module, kept: NamedTensors) -> Iterator[Followed]:
        """See `Following`; what is kept is S_k, by the names of S."""
        from securefl.norms.corrected import corrected_batch_norm

        tracked = _tracked(model)
        of_all = {layer: _pair(named) for layer, named in tracked.items()}
        own = {
            layer: _pair({name: kept.get(name, s) for name, s in named.items()})
            for layer, named in tracked.items()
        }
        with corrected_batch_norm(model, own, of_all) as measured:
            yield lambda: self._end(tracked, kept, measured())

    def _end(
        self, tracked: Tracked, kept: NamedTensors, measured: Mapping[str, Pair]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return S + S_k⁺ - S_k and S_k⁺, of the layers that had a batch."""
        from securefl.algorithms.normalisation.policy import START

        sent, own = {}, dict(kept)
        for layer, pair in measured.items():
            for (name, s), new in zip(tracked[layer].items(), pair, strict=True):
                last = kept[name] if name in kept else self.state[START + name].to(s)
                sent[name], own[name] = s + (new - last), new
        return sent, own


def _tracked(model: nn.Module) -> Tracked:
    from securefl.algorithms.normalisation.policy import required_tracking

    names = {id(buffer): name for name, buffer in model.named_buffers()}
    return {
        layer: {names[id(s)]: s for s in pair}
        for layer, pair in required_tracking(model, NAME).items()
    }


def _pair(named: NamedTensors) -> Pair:
    mean_C, var_C = named.values()
    return mean_C, var_C

"""DP-FixBN: FixBN whose statistics are a release of differential privacy, never a batch's.

Stage I is its releases: at the start of a round, layer by layer, all clients sum up the clipped
[mean, second moment] of each of their records, with noise in shares; the lower layers have the new
statistics already. Everything else is stage II: BN at rest, so that a record's gradient is its own
and DP-SGD clips all that the record does.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Work
from securefl.algorithms.normalisation.policy import RoundNorm, required_normalising
from securefl.data.samples import in_order
from securefl.errors import DataError
from securefl.exchange.sums import Exchange
from securefl.norms.find import BatchNorm
from securefl.privacy.distributed_noise import DistributedNoise
from securefl.privacy.randomness import Randomness, RandomnessOf, noisy
from securefl.privacy.record_moments import ChannelMoments, MomentRelease
from securefl.types import Freeze, Kind, MessageSpec, State, Weighing


@final
@dataclass(frozen=True, slots=True)
class StatisticsRelease:
    """One release of every BN layer's statistics."""

    rms_clip: float
    sigma: float
    """Noise multiplier of each layer's release."""
    shares: DistributedNoise
    records: int
    """Records of a client, a public number: sums are sent divided by it, to fit what seals them."""
    randomness: RandomnessOf

    def messages(self, model: nn.Module) -> tuple[MessageSpec, ...]:
        """Return the message of each layer's sum."""
        return tuple(
            MessageSpec(_message(name), Kind.STATISTICS, self._of(layer).n_values, Weighing.EQUAL)
            for name, layer in required_normalising(model, "FixBN").items()
        )

    def measure(self, work: Work, exchange: Exchange) -> None:
        """Release layer after layer, and write down what comes of it.

        Raises:
            DataError: the noise has drowned the records, or a layer does not meet each of them
                once in a pass, as what it costs is counted; nothing of that layer is sent.
            TooFewContributions: more clients are missing than the noise is made for.
        """
        randomness = self.randomness(work.rng)
        work.model.eval()
        for name, layer in _as_called(work).items():
            found = self._released(name, layer, work, exchange, randomness)
            with torch.no_grad():
                _running(layer.running_mean).copy_(found.mean_C)
                _running(layer.running_var).copy_(found.var_C)

    def _released(
        self,
        name: str,
        layer: BatchNorm,
        work: Work,
        exchange: Exchange,
        randomness: Randomness,
    ) -> ChannelMoments:
        release, reference = self._of(layer), _reference(layer)
        device = reference.mean_C.device
        sum_V = torch.zeros(release.n_values, dtype=torch.float64, device=device)
        for y in _inputs(work, name, layer):
            sum_V += release.sum_of(y, reference)
        share = self.shares.deviation(1.0) * release.deviation
        sent_V = noisy(sum_V, randomness, share) / self.records
        total = exchange.sum(_message(name), {"moments": sent_V})
        self.shares.require(total.n_clients)
        total_V = total.values["moments"] * (total.n_clients * self.records)
        # Of all who took part, tellers too: what is in the sum.
        deviation = self.shares.deviation(release.deviation) * total.n_clients**0.5
        return release.moments_of(total_V, reference, deviation)

    def _of(self, layer: BatchNorm) -> MomentRelease:
        return MomentRelease(layer.num_features, self.rms_clip, self.sigma)


@final
@dataclass(frozen=True, slots=True)
class DpFixBN:
    """BN at rest in all rounds, with statistics that are released at the start of some."""

    released_in: frozenset[int]
    """Rounds of a release, by the number of those completed before."""
    release: StatisticsRelease
    freeze: Freeze = Freeze.STATISTICS

    def __call__(self, state: State, model: nn.Module) -> RoundNorm:
        """Return a frozen round; DataError where the model has no BN."""
        required_normalising(model, "FixBN")
        measurement = self.release if state.round in self.released_in else None
        return RoundNorm(freeze=self.freeze, measurement=measurement, layers_alone=True)


def evenly(releases: int, switch: int) -> frozenset[int]:
    """Return the rounds completed before each release: 0 first, T* for the last of several."""
    steps = max(1, releases - 1)
    return frozenset(round(i * switch / steps) for i in range(releases))


def _message(layer: str) -> str:
    return f"{layer}/moments"


def _reference(layer: BatchNorm) -> ChannelMoments:
    mean, var = _running(layer.running_mean), _running(layer.running_var)
    return ChannelMoments(mean.detach().double(), var.detach().double())


def _running(buffer: Tensor | None) -> Tensor:
    assert buffer is not None  # noqa: S101 -- for mypy: a layer without is refused when it is frozen
    return buffer


@torch.no_grad()
def _as_called(work: Work) -> dict[str, BatchNorm]:
    """Return the BN layers, the lower ones first: as a pass calls them, not as they are defined."""
    layers = required_normalising(work.model, "FixBN")
    with _heard(layers) as heard:
        _pass(work, work.data.take(torch.arange(1))[0])
    return {name: layers[name] for name in (*(name for name, _ in heard), *layers)}


@torch.no_grad()
def _inputs(work: Work, name: str, layer: BatchNorm) -> Iterator[Tensor]:
    """Yield a layer's inputs over all records, each once, or the release's bound would not hold."""
    for x, _ in in_order(work.data):
        with _heard({name: layer}) as heard:
            _pass(work, x)
        rows = [len(y) for _, y in heard]
        if rows != [len(x)]:
            raise DataError(
                f"BN layer {name!r} is called {len(rows)} times in a pass, or not on one entry a "
                "record: a release of its statistics counts each record once; give each call a "
                "layer of its own, and let no axis be folded into that of the records"
            )
        yield heard[0][1]


def _pass(work: Work, x: Tensor) -> None:
    work.model(x.to(next(work.model.parameters()).device))


@contextmanager
def _heard(layers: Mapping[str, BatchNorm]) -> Iterator[list[tuple[str, Tensor]]]:
    """Note every call of one of the layers with its input, in order, within the block."""
    heard: list[tuple[str, Tensor]] = []
    with ExitStack() as hooks:
        for name, layer in layers.items():
            note = partial(_note, heard, name)
            hooks.callback(layer.register_forward_pre_hook(note).remove)
        yield heard


def _note(
    heard: list[tuple[str, Tensor]], name: str, _layer: nn.Module, inputs: tuple[Tensor, ...]
) -> None:
    heard.append((name, inputs[0]))

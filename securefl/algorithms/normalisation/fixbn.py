"""FixBN (Zhong, Chen, Chao, "Making Batch Normalization Great in Federated Deep Learning", Alg. 1).

Stage I, rounds 1..T*: FedAvg with BN. Stage II: the global running statistics are frozen and
normalise every batch; all else learns on. It needs the learning rate to drop by then.

When to freeze BN: once its batch statistics change at a steady rate (FixBN, appendix B.6).

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
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from securefl.errors import DataError
from securefl.settings.axes import Normalisation, Normalises, never_frozen, rounds_in
from securefl.settings.table import Count, Positive, Share
from securefl.types import Freeze, Kind, NamedTensors, State

if TYPE_CHECKING:
    from torch import Tensor, nn

    from securefl.algorithms.normalisation.policy import Followed, Policy, RoundNorm
    from securefl.norms.watch import WatchedMoments
    from securefl.settings.tables import Config

VARIATION = "fixbn/variation"
FILLED = "fixbn/filled"
LAST, CHANGES = "last", "changes"
WINDOW = "window"
HALFWAY = 0.5


class FrozenBN(Normalisation):
    """FixBN: FedAvg with BN, then with BN frozen."""

    name: Literal["fixbn"] = "fixbn"
    switch: Share | Count | Literal["window"] = HALFWAY
    """When BN is frozen: after this share of the rounds, after so many rounds, or once batch
    statistics settle."""
    window: Annotated[int, Field(ge=2, le=10**4, strict=True)] = 20
    """W, the rounds that `switch = "window"` looks back on."""
    threshold: Positive = 0.001
    """τ, the variance of the statistics' changes below which they have settled: the smaller, the
    later. The defaults freeze the demo's job soon after its learning rate has dropped."""
    freeze: Literal["statistics", "affine", "both"] = "statistics"
    """Part of BN that is frozen."""
    normalises: ClassVar[Normalises] = Normalises.BY_CONSTANTS
    needs_bn: ClassVar[bool] = True
    releases_statistics: ClassVar[bool] = True

    @property
    def frozen(self) -> Freeze:
        """See `Normalisation`."""
        return Freeze(self.freeze)

    def switch_round(self, rounds: int) -> int | None:
        """See `Normalisation`."""
        return None if isinstance(self.switch, str) else rounds_in(self.switch, rounds)

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        at = self.switch_round(rounds)
        found = Window(self.window, self.threshold) if at is None else at
        return FixBN(found, self.frozen)

    def clashes(self, config: Config) -> Iterator[str]:
        """See `Normalisation`."""
        exchange = config.exchange
        rounds = config.run.rounds
        yield from never_frozen(self.switch, rounds)
        if self.switch == WINDOW and (full := self.window + 1) >= rounds:
            yield (
                f"algorithm.window = {self.window} with run.rounds = {rounds}: as many changes "
                f"from round to round are there after {full} rounds at the earliest, so BN would "
                "never be frozen; have a shorter window, or more rounds"
            )
        finest = 2.0 ** (4 - exchange.precision_bits)
        if exchange.encrypt and self.switch == WINDOW and self.threshold < finest:
            yield (
                f"algorithm.threshold = {self.threshold}: the authority releases a variance to "
                f"{exchange.precision_bits} bits after the point, so it must be at least "
                f"{finest:.3g}"
            )
        if config.privacy.of_clients and self.switch == WINDOW:
            yield (
                'privacy.level = "client" with algorithm.switch = "window": the noise on what each '
                "client's window says would hide that it is full; give a round, or a share"
            )

    def clashes_with_records(self, config: Config) -> Iterator[str]:
        """See `Normalisation`."""
        devices, privacy = config.devices, config.privacy
        if self.freeze == "affine":
            yield (
                'privacy.level = "record" with algorithm.freeze = "affine": batches would go on '
                'being normalised by themselves; freeze "statistics" or "both"'
            )
        if self.switch == WINDOW:
            yield (
                'privacy.level = "record" with algorithm.switch = "window": to watch batch '
                "statistics settle would be a release of its own in each round; give a round, or "
                "a share"
            )
        if not privacy.warm_up and (devices.dropout or devices.deadline_s):
            yield (
                f'privacy.level = "record" with algorithm.name = "{self.name}" and '
                "devices.dropout or devices.deadline_s: the round that releases BN statistics "
                "could pass without clients, and all others train without them; leave these out, "
                "or set privacy.warm_up"
            )
        if privacy.releases == 1 and self.switch != HALFWAY:
            yield (
                f"algorithm.switch = {self.switch} with privacy.releases = 1: the one release is "
                "before the first round, and nothing reads when the last one would be; leave it "
                "out"
            )
        if config.selection.counts_all:
            yield (
                f'privacy.level = "record" with algorithm.name = "{self.name}" and '
                'selection.aggregation = "full": clients that stay away would count with the '
                "statistics from before a release, and mix them into it; set "
                'selection.aggregation = "partial"'
            )


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


@dataclass(frozen=True, slots=True)
class FixBN:
    """FixBN's policy: T* as a round, or as the window rule that finds it; and what is frozen."""

    switch: int | Window
    freeze: Freeze = Freeze.STATISTICS

    def __call__(self, state: State, model: nn.Module) -> RoundNorm:
        """Return FedAvg's round, or a frozen one; DataError where the model has no BN."""
        from securefl.algorithms.normalisation.policy import RoundNorm, required_layers

        required_layers(model, "FixBN")
        if isinstance(self.switch, Window):
            # Frozen rounds send no variation: once settled, the state says so for ever.
            if self.switch.settled(state):
                return RoundNorm(freeze=self.freeze, layers_alone=True)
            return RoundNorm(following=self.switch, layers_alone=True)
        freeze = self.freeze if state.round >= self.switch else None
        return RoundNorm(freeze=freeze, layers_alone=True)

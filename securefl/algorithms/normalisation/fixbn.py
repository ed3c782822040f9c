"""FixBN (Zhong, Chen, Chao, "Making Batch Normalization Great in Federated Deep Learning", Alg. 1).

Stage I, rounds 1..T*: FedAvg with BN. Stage II: the global running statistics are frozen and
normalise every batch; all else learns on. It needs the learning rate to drop by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from securefl.algorithms.normalisation.normalisation import Normalisation
from securefl.algorithms.normalisation.window import Window
from securefl.settings.axes import Normalises, never_frozen, rounds_in
from securefl.settings.table import Count, Positive, Share
from securefl.types import Freeze

if TYPE_CHECKING:
    from torch import nn

    from securefl.algorithms.normalisation.policy import Policy, RoundNorm
    from securefl.settings.tables import Config
    from securefl.types import State

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
        """See `NormalisationChoice`."""
        return Freeze(self.freeze)

    def switch_round(self, rounds: int) -> int | None:
        """See `NormalisationChoice`."""
        return None if isinstance(self.switch, str) else rounds_in(self.switch, rounds)

    def build(self, rounds: int) -> Policy:
        """See `NormalisationChoice`."""
        at = self.switch_round(rounds)
        found = Window(self.window, self.threshold) if at is None else at
        return FixBN(found, self.frozen)

    def clashes(self, config: Config) -> Iterator[str]:
        """See `NormalisationChoice`."""
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
        """See `NormalisationChoice`."""
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

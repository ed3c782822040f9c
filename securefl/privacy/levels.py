"""Levels of differential privacy: what presence is hidden, by whose noise, and what goes with it.

The mathematics is in `dp_sgd` and `dp_fixbn` for records, in `client_level` for clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.errors import ConfigError
from securefl.privacy.events import Gaussian, PrivacyEvent, SampledGaussian
from securefl.settings.axes import NORMALISATIONS, PrivacyChoice, require_shares
from securefl.types import Freeze, Kind, Plan

if TYPE_CHECKING:
    from torch import nn

    from securefl.algorithms.algorithm import Algorithm
    from securefl.algorithms.federated import Federated
    from securefl.exchange.noise import ScoreNoise
    from securefl.privacy.clipped import Quantile
    from securefl.privacy.distributed_noise import DistributedNoise
    from securefl.privacy.private_profiles import PrivateProfiler
    from securefl.settings.tables import Config


class NoPrivacy(PrivacyChoice):
    """No noise."""

    level: Literal["none"] = "none"


class NoisyLevel(PrivacyChoice):
    """Rules and parts of both levels that have noise."""

    def reads(self, config: Config) -> frozenset[str]:
        """See `PrivacyChoice`."""
        read = {"sigma", "clip", "clipping", "delta", "budget", "noise"}
        if self.adapts:
            read.add("quantile")
        if config.selection.asks_for_profiles:
            read.add("statistics_sigma")
        return frozenset(read)

    def clashes(self, config: Config) -> Iterator[str]:
        """See `PrivacyChoice`."""
        yield from super().clashes(config)
        if config.algorithm.weights != "uniform":
            yield (
                f'privacy.level = "{self.level}" with algorithm.weights = '
                f'"{config.algorithm.weights}": weights tell how many records a client has, and '
                "let one client count more than another; "
                'set algorithm.weights = "uniform"'
            )
        if config.selection.repeats:
            yield (
                f'privacy.level = "{self.level}" with selection.replacement = "with": a client '
                "could count twice in a sum, and a round have fewer shares of the noise; set "
                'selection.replacement = "without"'
            )

    def require_clients(self, n_clients: int) -> None:
        """See `PrivacyChoice`: δ would allow to publish one record, or all of one client."""
        hidden, of = self.hidden_among(n_clients)
        if self.delta >= 1 / hidden:
            raise ConfigError(
                f"privacy.delta = {self.delta:g} with {of}: must be below 1 / {hidden}, since to "
                f"publish one {self.level} at random would satisfy it"
            )

    def require_shares(self, config: Config, n_clients: int) -> None:
        """See `PrivacyChoice`."""
        if "dropouts" in self.reads(config):
            n = config.selection.n_selected(n_clients)
            require_shares(n, self.dropouts, self.colluders)

    def in_shares(self, config: Config) -> bool:
        """Return whether clients add noise in shares, so that as many have to count."""
        raise NotImplementedError

    def fewest_shares(self, config: Config, n_clients: int) -> int:
        """See `PrivacyChoice`."""
        return self.shares(config, n_clients).fewest if self.in_shares(config) else 1

    def shares(self, config: Config, n_clients: int) -> DistributedNoise:
        """Return clients' shares of a round's noise; raises ConfigError where too few would."""
        from securefl.privacy.distributed_noise import DistributedNoise

        n = config.selection.n_selected(n_clients)
        return DistributedNoise(n, self.dropouts, self.colluders)

    def quantile_among(self, expected: float) -> Quantile | None:
        """Return the quantile that C follows among so many norms; None where it stays."""
        from securefl.privacy.clipped import Quantile

        if not self.adapts:
            return None
        return Quantile(self.quantile, expected, self.sigma)


class OfRecords(NoisyLevel):
    """DP-SGD at each client, and noise in shares on BN statistics that are released."""

    level: Literal["record"] = "record"
    of_records: ClassVar[bool] = True

    def in_shares(self, config: Config) -> bool:
        """See `NoisyLevel`."""
        return config.algorithm.releases_statistics and not self.warm_up

    def reads(self, config: Config) -> frozenset[str]:
        """See `PrivacyChoice`."""
        read = {"records"}
        if config.algorithm.releases_statistics:
            read |= {"dropouts", "colluders", "warm_up", "statistics_sigma", "statistics_clip"}
            read |= set() if self.warm_up else {"releases"}
        if config.selection.asks_for_profiles:
            read.add("statistics_clip")
        return super().reads(config) | read

    def clashes(self, config: Config) -> Iterator[str]:
        """See `PrivacyChoice`."""
        yield from super().clashes(config)
        algorithm, solver = config.algorithm, config.solver
        if algorithm.mixes_records:
            yield (
                f'privacy.level = "record" with algorithm.name = "{algorithm.name}": '
                f"{algorithm.mixes_records}, so that no clip bounds what one record does; "
                f"algorithm.name = {_releasing()} freezes BN and releases its statistics with noise"
            )
        yield from algorithm.clashes_with_records(config)
        switch = algorithm.switch_round(config.run.rounds) or 0
        if algorithm.releases_statistics and not self.warm_up and self.releases > switch + 1:
            yield (
                f"privacy.releases = {self.releases}: up to algorithm.switch, round {switch}, "
                f"there are {switch + 1} rounds that could begin with one; have fewer releases, or "
                "a later switch"
            )
        if config.targets.by_pairs:
            form = config.samples
            of = (
                f'samples.event = "{form.event}"'
                if form
                else f'data.dataset = "{config.data.dataset}"'
            )
            yield (
                f'privacy.level = "record" with {of}: targets are {config.targets.in_words}, whose '
                "loss compares the records of a batch, so that no gradient is of one alone and no "
                'clip bounds what it does; set privacy.level = "client", or "none"'
            )
        if algorithm.local_epochs is not None:
            yield (
                f'privacy.level = "record" with algorithm.local_epochs = {algorithm.local_epochs}: '
                "how many steps a client takes would tell how many records it has; give "
                "algorithm.local_steps"
            )
        if solver.second_gradient:
            yield (
                f'privacy.level = "record" with solver.name = "{solver.name}": '
                f"{solver.second_gradient}, which DP-SGD does not clip; take another solver"
            )
        if solver.follows_refinement and config.fnr.refines:
            yield (
                f'privacy.level = "record" with solver.name = "{solver.name}" and fnr.name = '
                f'"{config.fnr.name}": the solver follows the refinement, and not through DP-SGD; '
                "take another solver"
            )
        if config.train.precision == "bfloat16":
            yield (
                'privacy.level = "record" with train.precision = "bfloat16": norms of gradients '
                "would be off by 0.4 %, and a clipped one longer than the noise is for; leave "
                "train.precision out"
            )
        yield from self._public_numbers(config.train.batch_size)

    def _public_numbers(self, batch: int) -> Iterator[str]:
        if self.records is None:
            yield (
                'privacy.level = "record" needs privacy.records: how many records the smallest '
                "client has, a public number, of which train.batch_size are sampled in a step"
            )
        elif batch >= self.records:
            yield (
                f"train.batch_size = {batch} with privacy.records = {self.records}: must be below "
                "it, so that a sample leaves records out; have a smaller batch"
            )

    def hidden_among(self, n_clients: int) -> tuple[int, str]:
        """See `PrivacyChoice`."""
        of = self._records * n_clients
        return of, f"{self._records} records of each of {n_clients} clients"

    def around_training(
        self, config: Config, inner: Federated, n_clients: int, batch_size: int
    ) -> Federated:
        """Replace the solver's gradients by DP-SGD, and FixBN by DP-FixBN."""
        from securefl.privacy.clipping import clipping_of
        from securefl.privacy.dp_fixbn import DpFixBN, StatisticsRelease
        from securefl.privacy.dp_sgd import DpSgd, PrivateStep
        from securefl.privacy.randomness import randomness_of

        step = PrivateStep(
            self.sigma,
            self.clip,
            clipping_of(self.clipping),
            config.train.batch_size / self._records,
            batch_size,
            self.quantile_among(batch_size),
        )
        randomness = randomness_of(self.noise)
        private = replace(inner, solver=DpSgd(inner.solver, step, randomness))
        if not config.algorithm.releases_statistics:
            return private
        release = StatisticsRelease(
            self.statistics_clip,
            self.statistics_sigma,
            self.shares(config, n_clients),
            self._records,
            randomness,
        )
        frozen = config.algorithm.frozen or Freeze.STATISTICS
        policy = DpFixBN(self._released_in(config), release, frozen)
        return replace(private, normalisation=policy)

    def trained(
        self, config: Config, done: int, plan_of: Callable[[int], Plan], n_layers: int
    ) -> list[PrivacyEvent]:
        """See `PrivacyChoice`; a record is in one client's data alone."""
        del plan_of
        rate = config.train.batch_size / self._records
        events: list[PrivacyEvent] = [
            SampledGaussian(self.sigma, rate, config.algorithm.local_steps)
        ]
        if config.algorithm.releases_statistics and done in self._released_in(config):
            events.append(Gaussian(self.statistics_sigma, n_layers))
        return events

    def profiler(self) -> PrivateProfiler:
        """See `PrivacyChoice`."""
        from securefl.privacy.private_profiles import PrivateProfiler

        return PrivateProfiler(self.statistics_clip, self.statistics_sigma)

    @property
    def _records(self) -> int:
        assert self.records is not None  # noqa: S101 -- for mypy: the settings are checked
        return self.records

    def _released_in(self, config: Config) -> frozenset[int]:
        """Return the rounds, by how many come before, that begin with a release of statistics."""
        from securefl.privacy.dp_fixbn import evenly

        if self.warm_up:
            return frozenset()
        switch = config.algorithm.switch_round(config.run.rounds) or 0
        return evenly(self.releases, switch)


class OfClients(NoisyLevel):
    """Noise that clients add in shares to all that they contribute."""

    level: Literal["client"] = "client"
    of_clients: ClassVar[bool] = True

    def in_shares(self, config: Config) -> bool:
        """See `NoisyLevel`."""
        del config
        return True

    def reads(self, config: Config) -> frozenset[str]:
        """See `PrivacyChoice`."""
        read = {"dropouts", "colluders"}
        read |= {"statistics_clip"} if config.fnr.refines else set()
        read |= {"score_clip"} if config.selection.asks_for_profiles else set()
        return super().reads(config) | read

    def clashes(self, config: Config) -> Iterator[str]:
        """See `PrivacyChoice`."""
        yield from super().clashes(config)
        algorithm, name = config.algorithm, config.algorithm.name
        if algorithm.pools:
            yield (
                f'privacy.level = "client" with algorithm.name = "{name}": clients send sums in '
                "the middle of a step, each of which would be a noisy release, and variances that "
                f'noise makes negative; take {_releasing()} or "fedavg"'
            )
        if algorithm.measures:
            yield (
                f'privacy.level = "client" with algorithm.name = "{name}": clients add up '
                "statistics of all their records at each round's start, and noise would make "
                f'variances negative; take {_releasing()} or "fedavg"'
            )
        if algorithm.alone:
            yield (
                f'privacy.level = "client" with algorithm.name = "{name}": nothing is added up in '
                'which a client could hide; take privacy.level = "record"'
            )
        if self.clipping == "ghost":
            yield (
                'privacy.clipping = "ghost" is of records\' gradients: with privacy.level = '
                '"client" take "flat"'
            )
        if config.server.counts_steps:
            yield (
                f'privacy.level = "client" with server.name = "{config.server.name}": the server '
                "divides by the clients' steps, which would have noise; take server.name = "
                '"average"'
            )

    def around(
        self, config: Config, inner: Algorithm, model: nn.Module, n_clients: int
    ) -> Algorithm:
        """Wrap the algorithm so that contributions are clipped and noisy."""
        from securefl.algorithms.features import last_linear
        from securefl.algorithms.fnr import ACCURACIES, NORMS
        from securefl.norms.find import variances
        from securefl.privacy.client_level import ClientLevel
        from securefl.privacy.clipping import clipping_of
        from securefl.privacy.distributed_noise import ClientNoise
        from securefl.privacy.randomness import randomness_of

        shares = self.shares(config, n_clients)
        bounds = {}
        if config.fnr.refines:
            n_classes = last_linear(model).out_features
            norms = self.statistics_clip * sqrt(2 * n_classes)
            bounds = {ACCURACIES: 1.0, NORMS: norms}  # a client counts one at one level
        noise = ClientNoise(
            self.sigma,
            self.clip,
            clipping_of(self.clipping),
            shares,
            self.quantile_among(shares.n_clients),
            bounds,
        )
        return ClientLevel(inner, noise, randomness_of(self.noise), variances(model))

    def trained(
        self, config: Config, done: int, plan_of: Callable[[int], Plan], n_layers: int
    ) -> list[PrivacyEvent]:
        """See `PrivacyChoice`."""
        del config, n_layers
        plan = plan_of(done)
        sent = [s for s in (*plan.sums, *plan.update) if s.kind is not Kind.CLIPPING]
        return [Gaussian(self.sigma, len(sent))]

    def score_noise(self) -> ScoreNoise:
        """See `PrivacyChoice`."""
        from securefl.exchange.noise import ScoreNoise

        return ScoreNoise(self.score_clip, self.statistics_sigma * self.score_clip)


def _releasing() -> str:
    return NORMALISATIONS.those(lambda kind: kind.releases_statistics)

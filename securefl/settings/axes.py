"""The axes of an algorithm: what all choices on each have in common, and which choices there are.

A choice is declared in the file of its mathematics, whose name stands here. It says by its traits
what the rules between choices ask (`clashes`), and nobody asks for its name.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from securefl.errors import ConfigError
from securefl.settings.choice import Axis, Choice, OpenChoice, named
from securefl.settings.table import Count, Positive
from securefl.types import LOSS, PROFILE, Freeze, Plan

if TYPE_CHECKING:
    from securefl.settings.tables import Config


class Weights(StrEnum):
    """Number that a client's weight p_i is the share of."""

    SAMPLES = "samples"
    UNIFORM = "uniform"
    BATCH = "batch"
    """The size of its mini-batch: makes FedTAN equal centralised training for unequal batches."""


class Normalises(StrEnum):
    """Statistics by which BN normalises in a client's gradient, as an attacker must assume them."""

    BY_BATCH = "batch"
    BY_POOLED = "pooled"
    """Those of all clients' batches, which gradients pass through."""
    BY_POOLED_CONSTANTS = "pooled constants"
    BY_CONSTANTS = "constants"
    """The global ones."""
    BY_MIXTURE = "mixture"
    """Those of the batch and the global ones, mixed by factors that each client keeps to itself."""


class Normalisation(OpenChoice):
    """The table `[algorithm]`: what happens to batch normalisation, and how much in a round.

    Fields of a normalisation of one's own are keys of the table.

    Examples:
        >>> from securefl.algorithms.normalisation.policy import RoundNorm
        >>> class LocalAffine(securefl.Normalisation):  # γ and β of one layer stay at the clients
        ...     layer: str = "1"
        ...     def build(self, rounds):
        ...         local = frozenset({f"{self.layer}.weight", f"{self.layer}.bias"})
        ...         return lambda state, model: RoundNorm(local=local)
        >>> task = securefl.Task(model, clients, test, choices=[LocalAffine(layer="1")])
        >>> sorted(securefl.run(config, task).own)
        ['east', 'north', 'south']
    """

    local_steps: Annotated[int, Field(ge=1, le=10**6, strict=True)] = 5
    """E, mini-batches a client takes in a round."""
    local_epochs: Annotated[int, Field(ge=1, le=10**4, strict=True)] | None = None
    """Passes over its own data that a client takes in a round, in the place of `local_steps`."""
    weights: Weights = Weights.SAMPLES

    normalises: ClassVar[Normalises] = Normalises.BY_BATCH
    needs_bn: ClassVar[bool] = False
    """There is nothing for it in a model without batch normalisation."""
    pools: ClassVar[bool] = False
    """Clients add up statistics in the middle of a step."""
    measures: ClassVar[bool] = False
    """Clients add up statistics of all their records at a round's start."""
    kept: ClassVar[str] = ""
    """Part of the model that stays at the clients."""
    statistics_stay: ClassVar[bool] = False
    """The server never learns BN statistics."""
    global_model: ClassVar[bool] = True
    """There is a model that all clients share."""
    serves_others: ClassVar[bool] = True
    """The global model is of use to clients that never trained."""
    joins_data: ClassVar[bool] = False
    """One client has the data of all."""
    mixes_records: ClassVar[str] = ""
    """Reason why a record's gradient depends on other records; empty where it does not."""
    releases_statistics: ClassVar[bool] = False
    """Statistics that are frozen may be released with noise, of records."""
    corrected: ClassVar[bool] = False
    """Statistics are corrected by a mean over all clients, each with what it keeps itself."""

    @property
    def alone(self) -> bool:
        """True where clients send nothing that is added up."""
        return self.joins_data or not self.global_model

    @property
    def frozen(self) -> Freeze | None:
        """Part of BN that is frozen at some time in the run; None where none is."""
        return None

    def switch_round(self, rounds: int) -> int | None:
        """Return the rounds before BN is frozen; None where it never is, or a window decides.

        Args:
            rounds: of the whole run.
        """
        del rounds
        return None

    def clashes_with_records(self, config: Config) -> Iterator[str]:  # noqa: ARG002
        """Yield reasons why there is no differential privacy of records under its own keys."""
        yield from ()

    @abstractmethod
    def build(self, rounds: int) -> Any:
        """Return the `Policy` (`algorithms.normalisation.policy`) of a run of so many rounds."""


class SolverChoice(OpenChoice):
    """The table `[solver]`: how a client takes its local steps."""

    elementwise: ClassVar[bool] = False
    """True where each element of a gradient counts by itself: clients may train side by side."""
    second_gradient: ClassVar[str] = ""
    """Reason why a step looks at the data twice; empty where it takes one gradient of the loss."""
    passes: ClassVar[int] = 1
    """Forward and backward passes of a step through the model that is shared."""
    own_model: ClassVar[bool] = False
    """Each client trains a whole model of its own beside the shared one, and is scored by it."""
    holds_to_global: ClassVar[bool] = True
    """True where the global model or other clients steer local steps."""
    corrected: ClassVar[bool] = False
    """Steps are corrected by a mean over all clients, each with what it keeps itself."""
    server_half: ClassVar[bool] = False
    """The server takes a step of the solver's own from the average."""
    follows_refinement: ClassVar[bool] = False
    """A client's kept state follows a refinement after its steps: `Solver.followed` says how."""

    def build(self) -> Any:
        """Return the solver."""
        return self


class ServerChoice(OpenChoice):
    """The table `[server]`: what the server makes of the clients' average."""

    takes_step: ClassVar[bool] = True
    """True where the next model is another than the average."""
    counts_steps: ClassVar[bool] = False
    """Clients send a count of their local steps, by which the server divides."""

    def build(self, expected_steps: float) -> Any:
        """Return the server optimiser.

        Args:
            expected_steps: weight of the gradients of a client's round (FedNova's ‖a‖₁).
        """
        del expected_steps
        return self

    def around(self, solver: Any, expected_steps: float) -> Any:
        """Return the clients' solver with the server optimiser's half at clients around it."""
        del expected_steps
        return solver


class SelectorChoice(OpenChoice):
    """The table `[selection]`: which clients take part in a round."""

    selects: ClassVar[bool] = True
    """A round has some of the clients."""
    needs_devices: ClassVar[bool] = False
    """True where the time of simulated devices counts."""
    asks: ClassVar[tuple[str, ...]] = ()
    """Names of the answers that it needs of each client, if its keys do not say otherwise:
    `selection/size` (its number of samples), `selection/loss` (its mean loss of the global model),
    `profile`."""
    told: ClassVar[str] = ""
    """The answers' name in messages, where clients tell numbers in the clear."""

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of the answers that it needs of each client, with its keys as they are."""
        return self.asks

    @property
    def tells(self) -> str:
        """Numbers that clients tell the server in the clear, in words; empty for none."""
        return self.told or ", ".join(name for name in self.asked if name != PROFILE)

    @property
    def measured(self) -> str:
        """Measurement of a client that it goes by, in words; empty for none."""
        if self.asks_for_profiles:
            return "divergence"
        return "mean loss" if LOSS in self.asked else ""

    @property
    def asks_for_profiles(self) -> bool:
        """True where clients send profiles of the model on their data."""
        return PROFILE in self.asked

    @property
    def counts_all(self) -> bool:
        """True where clients that were not selected count, with the current global model."""
        return False

    @property
    def repeats(self) -> bool:
        """True where a client may be drawn, and count, more than once in a round."""
        return False

    @property
    def longest_wait(self) -> int | None:
        """Rounds after which a client that waits comes first; None for no bound."""
        return None

    @property
    def profiled_layer(self) -> str | None:
        """Layer that is profiled; None for the model's default."""
        return None

    def n_selected(self, n_clients: int) -> int:
        """Return K, the number of clients of a round."""
        return n_clients

    def require_clients(self, clients: Sequence[str]) -> None:
        """Raise ConfigError where a key names a client that there is none of."""


class DrawnSelector(SelectorChoice):
    """Keys of all selectors but `all`."""

    fraction: Annotated[float, Field(gt=0, le=1, strict=True)] = 0.2
    """C, the share of the clients in a round."""
    aggregation: Literal["partial", "full"] = "partial"
    """`full`: a client that was not selected counts, with the current global model."""
    fairness: Count | None = None
    """Rounds after which a client that waits comes first."""

    @property
    def counts_all(self) -> bool:
        """See `SelectorChoice`."""
        return self.aggregation == "full"

    @property
    def longest_wait(self) -> int | None:
        """See `SelectorChoice`."""
        return self.fairness

    def n_selected(self, n_clients: int) -> int:
        """See `SelectorChoice`; FedProf has K = |U| · C, whole in all its tasks."""
        return clients_per_round(self.fraction, n_clients)


class Replaceable(DrawnSelector):
    """Keys of selectors that draw each client by itself."""

    replacement: Literal["without", "with"] = "without"
    """`with`: a client that is drawn twice counts twice; in the clear alone."""

    @property
    def repeats(self) -> bool:
        """See `SelectorChoice`."""
        return self.replacement == "with"


class FnrChoice(OpenChoice):
    """The table `[fnr]`: what is trained on public samples after the clients' own training."""

    trains: ClassVar[bool] = True
    """Somebody trains on public samples."""
    refines: ClassVar[bool] = False
    """The clients that do worst on public samples train on them."""

    def around(self, inner: Any, context: Any) -> Any:
        """Return the algorithm with the refinement around it.

        Args:
            inner: the clients' own training.
            context: a `RefinementContext` of securefl.algorithms.refinements.
        """
        del context
        return inner


NoiseMultiplier = Annotated[float, Field(ge=0.01, le=1e6, strict=True)]


class PrivacyChoice(Choice):
    """The table `[privacy]`: differential privacy, whose level says what presence is hidden."""

    key: ClassVar[str] = "level"
    level: str = ""
    """Presence that is hidden: of one record of one client, by DP-SGD (`record`); of all that a
    client contributes, by noise that clients add in shares (`client`)."""
    sigma: NoiseMultiplier = 1.0
    """σ, the noise's standard deviation over the clip norm; `securefl privacy plan` finds it."""
    clip: Positive = 1.0
    """C, the L2 norm that a record's gradient, or each kind of tensor of a client's update, is
    clipped to. Where clipping adapts, what it starts from."""
    clipping: Literal["flat", "per-layer", "adaptive", "ghost"] = "flat"
    """`per-layer`: each tensor to C / √(number of tensors). `adaptive`: C follows the quantile of
    the norms. `ghost` (record): flat, without a gradient of each record in memory."""
    quantile: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.5
    """Quantile of norms that adaptive clipping follows."""
    delta: Annotated[float, Field(ge=1e-12, le=0.1, strict=True)] = 1e-5
    """δ; below 1 / records, or 1 / clients."""
    budget: Positive | None = None
    """ε by PLD at which the run stops before it would be exceeded."""
    records: Count | None = None
    """Records of the smallest client, a public number (`record`): each is sampled with the
    probability train.batch_size / records."""
    dropouts: Annotated[int, Field(ge=0, le=10**6, strict=True)] = 0
    """Clients of a round whose shares of the noise may be missing; with more, no total is opened.
    """
    colluders: Annotated[int, Field(ge=0, le=10**6, strict=True)] = 1
    """Clients that may tell others their shares of the noise; each knows its own."""
    releases: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    """Releases of BN statistics under `fixbn` with `record`: the first before any training, others
    evenly up to algorithm.switch."""
    warm_up: Annotated[int, Field(ge=0, le=10**4, strict=True)] = 0
    """Passes over the public samples before the first round (`fixbn` with `record`), from which BN
    statistics then come: clients release none. Counts no ε."""
    statistics_sigma: NoiseMultiplier = 10.0
    """σ of each release of BN statistics and, under `fedprof`, of profiles or their scores."""
    statistics_clip: Positive = 1.5
    """To what the [mean, second moment] of a record (`record`), or FNR-FL's table of class norms
    (`client`), is clipped, as a root mean square over its values."""
    score_clip: Positive = 10.0
    """To what a profile's score is clipped (`client`)."""
    noise: Literal["secret", "seeded"] = "secret"
    """`seeded`: noise and samples follow from run.seed, so that a run can be repeated. Whoever
    knows the seed takes the noise off: for experiments alone."""

    of_records: ClassVar[bool] = False
    """Hides one record of one client."""
    of_clients: ClassVar[bool] = False
    """Hides all that a client contributes."""

    @property
    def adapts(self) -> bool:
        """True where the clip norm follows a quantile."""
        return self.clipping == "adaptive"

    @property
    def by_layer(self) -> bool:
        """True where each tensor is clipped by itself."""
        return self.clipping == "per-layer"

    @property
    def seeded(self) -> bool:
        """True where whoever knows the run's seed can take the noise off."""
        return self.noise == "seeded"

    @property
    def private(self) -> bool:
        """True where noise hides anybody."""
        return self.of_records or self.of_clients

    def reads(self, config: Config) -> frozenset[str]:  # noqa: ARG002
        """Return the names of its keys that something in the run reads."""
        return frozenset()

    def clashes(self, config: Config) -> Iterator[str]:
        """See `Choice.clashes`; a key that nothing reads stands at its default."""
        read = {self.key, *self.reads(config)}
        for key, field in type(self).model_fields.items():
            value = getattr(self, key)
            if key not in read and value != field.get_default():
                yield (
                    f"privacy.{key} = {value!r} is read by nothing in this run, of privacy.level = "
                    f'"{named(type(self))}" and algorithm.name = "{config.algorithm.name}": leave '
                    "it out"
                )

    def require_clients(self, n_clients: int) -> None:
        """Raise ConfigError where its keys hide nobody among so many."""

    def require_shares(self, config: Config, n_clients: int) -> None:
        """Raise ConfigError where no share of a round's noise would be left."""

    def fewest_shares(self, config: Config, n_clients: int) -> int:
        """Return the least contributions whose noise together is what the accounting assumes."""
        del config, n_clients
        return 1

    def hidden_among(self, n_clients: int) -> tuple[int, str]:
        """Return the number of those that one is hidden among, and their name in words."""
        return n_clients, f"{n_clients} clients"

    def around_training(self, config: Config, inner: Any, n_clients: int, batch_size: int) -> Any:
        """Return the clients' training with noise in its steps."""
        del config, n_clients, batch_size
        return inner

    def around(self, config: Config, inner: Any, model: Any, n_clients: int) -> Any:
        """Return the whole algorithm with noise in what each client contributes."""
        del config, model, n_clients
        return inner

    def trained(
        self, config: Config, done: int, plan_of: Callable[[int], Plan], n_layers: int
    ) -> list[Any]:
        """Return the releases of the training of a round.

        Args:
            config: the settings.
            done: rounds before it.
            plan_of: function that returns a round's plan of messages, by the rounds before it.
            n_layers: layers of the model that have BN statistics.
        """
        raise NotImplementedError

    def score_noise(self) -> Any:
        """Return the noise that hides a client in its opened score; None where none does."""
        return None

    def profiler(self) -> Any:
        """Return the profiling with noise that hides records; None without."""
        return None


def rounds_in(switch: float, rounds: int) -> int:
    """Return a number of rounds as it is, or those that a share of all makes.

    A part of a round counts as one.
    """
    # 0.55 of 100 are 55.00000000000001, which is no 56th round.
    return switch if isinstance(switch, int) else max(1, math.ceil(switch * rounds - 1e-9))


def never_frozen(switch: object, rounds: int) -> Iterator[str]:
    """Yield the reason against a `switch` that comes when the run is over."""
    if isinstance(switch, int) and switch >= rounds:
        yield (
            f"algorithm.switch = {switch} with run.rounds = {rounds}: BN would never be frozen; "
            "give an earlier round, or a share of the rounds such as 0.5"
        )


def require_shares(n_clients: int, dropouts: int, colluders: int) -> None:
    """Raise ConfigError where no share of the noise is left of so many clients of a round."""
    if n_clients - dropouts - colluders < 1:
        raise ConfigError(
            f"privacy.dropouts = {dropouts} and privacy.colluders = {colluders} of {n_clients} "
            "clients in a round: no share of the noise would be left; lower them, or have more "
            "clients"
        )


def clients_per_round(fraction: float, n_clients: int) -> int:
    """Return K, the whole number nearest to C · N, halves upwards, and 1 at least.

    C counts as the decimal that it is written as, so that no rounding error of 0.07 · 100 adds a
    client.

    Raises:
        ConfigError: C is not in (0, 1], or there is no client.
    """
    if not 0 < fraction <= 1:
        raise ConfigError(f"fraction = {fraction}: must be above 0 and at most 1; 1 selects all")
    if n_clients < 1:
        raise ConfigError(f"{n_clients} clients: there must be one to select")
    return max(1, math.floor(Fraction(str(fraction)) * n_clients + Fraction(1, 2)))


def _homes(package: str, *files: str) -> tuple[str, ...]:
    return tuple(f"securefl.{package}.{file}" for file in files)


NORMALISATIONS = Axis(
    "algorithm",
    "normalisation",
    Normalisation,  # type: ignore[type-abstract]  # of its choices each is concrete
    "fedtan",
    _homes(
        "algorithms.normalisation",
        *(
            "fedtan",
            "fixbn",
            "averaged_bn",
            "client_bn",
            "fedper",
            "static_bn",
            "bn_scaffold",
            "hbn",
            "fbn",
        ),
    ),
    "securefl.Normalisation",
)
SOLVERS = Axis(
    "solver",
    "solver",
    SolverChoice,
    "sgd",
    _homes(
        "algorithms.solvers",
        *("sgd", "fedprox", "scaffold", "moon", "feddyn", "feddc", "per_fedavg", "agc", "ditto"),
    ),
    "securefl.Solver",
)
SERVERS = Axis(
    "server",
    "server",
    ServerChoice,
    "average",
    _homes("algorithms.servers", "average", "momentum", "adaptive", "fednova"),
    "securefl.ServerOptimiser",
)
SELECTORS = Axis(
    "selection",
    "selector",
    SelectorChoice,
    "all",
    _homes("selection", "everybody", "uniform", "data_share", "fedprof", "afl", "cfcfm"),
    "securefl.Selector",
)
REFINEMENTS = Axis(
    "fnr",
    "refinement",
    FnrChoice,
    "none",
    _homes("algorithms", "refinements"),
    "securefl.settings.axes.FnrChoice",
)
PRIVACY = Axis("privacy", "privacy level", PrivacyChoice, "none", _homes("privacy", "levels"))
AXES = (NORMALISATIONS, SOLVERS, SERVERS, SELECTORS, REFINEMENTS, PRIVACY)

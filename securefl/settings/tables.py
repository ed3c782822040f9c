"""All settings, one model per TOML table, with their ranges and defaults.

The defaults are the demo's job: digits, five clients with two classes each, FedTAN, all of it
encrypted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from securefl.data.catalogue import Inputs, Targets
from securefl.errors import ConfigError
from securefl.metrics.by_name import METRICS
from securefl.settings.axes import (
    AXES,
    NORMALISATIONS,
    PRIVACY,
    REFINEMENTS,
    SELECTORS,
    SERVERS,
    SOLVERS,
    FnrChoice,
    Normalisation,
    PrivacyChoice,
    SelectorChoice,
    ServerChoice,
    SolverChoice,
    rounds_in,
)
from securefl.settings.choice import Choice, OpenChoice
from securefl.settings.clashes import reasons_against
from securefl.settings.data import DataTable
from securefl.settings.devices import DevicesTable
from securefl.settings.models import MODELS, NormName, width_of
from securefl.settings.reasons import reasons_of
from securefl.settings.samples import SamplesTable
from securefl.settings.sites import SitesTable
from securefl.settings.table import (
    BatchSize,
    Count,
    NotNegative,
    Positive,
    Share,
    Table,
    of_form,
)

FEWEST_ROUNDS_WITH_DROPS = 50
DEFAULT_LR_DROPS = (0.5, 0.75)


class Encrypt(StrEnum):
    """Parts that travel as ciphertext."""

    STATISTICS = "statistics"
    """BN statistics, their gradients, and the running statistics in the update."""
    PROFILES = "profiles"
    """The representation profiles that FedProf selects clients by."""
    MODEL = "model"
    """All that is added up or profiled: what clients send, but for sizes and losses."""


def _listed(value: Any) -> Any:
    """Return the parts of `"statistics,profiles"`; `"none"` as no part."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",")] if value != "none" else []


_NAME = "1 to 80 letters, digits, and any of . _ + -, since it names a folder"


_CODE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}:[A-Za-z_][A-Za-z0-9_]{0,99}")


def _known_metric(name: str) -> str:
    if name not in METRICS and not _CODE.fullmatch(name):
        raise ValueError(
            f"run.metric = {name!r:.80}: must be one of {', '.join(METRICS)}, or MODULE:FUNCTION"
        )
    return name


class RunTable(Table):
    """The table `[run]`."""

    name: Annotated[str, of_form(r"[\w.+-]{1,80}", _NAME)] | None = None
    """Names the run in tables and folders; the algorithm's name where absent."""
    seed: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 0
    """Fixes the split, the first weights and every mini-batch of a simulation."""
    reproducible: Annotated[bool, Field(strict=True)] = False
    """True: the seed fixes more, at the cost of what chance protects: in separate processes the
    mini-batches, too, which else differ from run to run. A run in the clear then repeats to the
    bit, a sealed one to about 1e-6, since each sealing draws noise of its own. Noise of
    differential privacy follows `privacy.noise` alone: where that is not "seeded", no private run
    repeats."""
    rounds: Count = 200
    metric: (
        Annotated[
            str,
            AfterValidator(_known_metric),
            Field(json_schema_extra={"pattern": f"^({'|'.join(METRICS)}|.*:.*)$"}),
        ]
        | None
    ) = None
    """Metric of tests, one of `securefl.metrics.by_name.METRICS`, or `module:function`, code that
    each party has installed and allowed. Where absent, accuracy of classes and R² of numbers; of a
    task of one's own, the task's, or what its loss implies."""
    engine: Literal["auto", "sequential", "vectorised", "parallel", "ray"] = "auto"
    """Way in which a simulation trains: one client after the other, many side by side, or one after
    the other in several processes, of this machine (`parallel`) or of a cluster (`ray`). The result
    is the same but for rounding, and in the clear of all but `vectorised` with as many `threads`
    the same bits; `auto` takes one of the first two."""
    workers: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    """Processes of `parallel`, actors of `ray`; one for each core, or GPU, where absent."""
    threads: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    """With which torch computes in each process that trains; where absent as many as it takes by
    itself, shared among the workers; one in each actor of `ray`. The last bits of a result depend
    on it."""
    device: (
        Annotated[str, of_form(r"cpu|cuda(:\d{1,3})?", "cpu, cuda, or cuda:1 and so on")] | None
    ) = None
    """Where a simulation trains: `cpu`, `cuda` or `cuda:1`. Where the model is if absent, which is
    the CPU for a model of the settings."""

    @model_validator(mode="after")
    def _workers_have_an_engine(self) -> RunTable:
        if self.workers is not None and self.engine not in {"parallel", "ray"}:
            raise ValueError(
                f'run.workers = {self.workers} goes with run.engine = "parallel" or "ray", '
                f'not with "{self.engine}": set that, or leave run.workers out'
            )
        return self

    def clashes(self, config: Config) -> Iterator[str]:
        """Yield why the metric does not go with what sites' targets are; nothing where it does."""
        if config.samples is not None:
            yield from self.metric_clashes(config.samples.targets, "[samples]")

    def metric_clashes(self, targets: Targets, said_by: str) -> Iterator[str]:
        """Yield why the metric does not go with such targets; nothing where it does.

        Args:
            targets: their form.
            said_by: setting that says so, for the message.
        """
        fitting = [name for name, metric in METRICS.items() if getattr(metric, f"of_{targets}")]
        # One of somebody's own takes what it takes.
        if self.metric in METRICS and self.metric not in fitting:
            yield (
                f'run.metric = "{self.metric}": needs {METRICS[self.metric].needs}; by {said_by} '
                f"targets are {targets.in_words}: take {', '.join(map(_quoted, fitting))}, or "
                "leave it out"
            )


def _quoted(name: str) -> str:
    return f'"{name}"'


def _known_model(name: str) -> str:
    if name not in MODELS and not _CODE.fullmatch(name):
        raise ValueError(
            f"model.name = {name!r:.100}: must be {', '.join(MODELS)}, or MODULE:FUNCTION"
        )
    return name


class ModelTable(Table):
    """The table `[model]`."""

    name: Annotated[str, AfterValidator(_known_model)] = "mlp"
    """`mlp`, `cnn`, `resnet20`, `alexnet`, or `unet` for volumes. Or `module:function`, code that
    each party has installed, where sites bring their own data ([samples]): it is called with a
    sample's shape and the number of outputs."""
    norm: NormName = "batch"
    """`group-ws`: group normalisation with weight standardisation. `scaled-ws`: none, with scaled
    weight standardisation (FedWon, with solver.name = "agc"). `fixup`: none, with Fixup
    initialisation (resnet20)."""
    groups: Annotated[int, Field(ge=1, le=4096, strict=True)] = 2
    """Groups of channels, for `group` and `group-ws`."""
    width: Annotated[int, Field(ge=0, le=4096, strict=True)] | None = None
    """Hidden units of the mlp (30; 0 makes it linear), or channels of the first stage (16; alexnet
    64, unet 8)."""
    dtype: Literal["float32", "float64"] = "float32"

    @property
    def takes(self) -> frozenset[Inputs]:
        """Forms of samples that the model takes; all where it is somebody's own."""
        return MODELS[self.name].takes if self.name in MODELS else frozenset(Inputs)

    @property
    def gives_masks(self) -> bool:
        """True where it gives a class for each voxel."""
        return self.takes == frozenset({Inputs.VOLUMES})

    @staticmethod
    def those_for(inputs: Inputs) -> str:
        """Return the models that take samples of this form, for a message."""
        return " or ".join(f'"{name}"' for name, of in MODELS.items() if inputs in of.takes)

    @property
    def has_bn(self) -> bool:
        """True where the model has batch normalisation, or is somebody's own, which may have it."""
        return self.name not in MODELS or (self.norm == "batch" and self.width != 0)

    @model_validator(mode="after")
    def _has_fitting_sizes(self) -> ModelTable:
        default = ModelTable.model_fields["groups"].default
        if self.groups != default and self.norm not in {"group", "group-ws"}:
            raise ValueError(
                f'model.groups = {self.groups} goes with model.norm = "group" or "group-ws" '
                f'alone, not with "{self.norm}": set that, or leave model.groups out'
            )
        if self.name in MODELS:
            width_of(self.name, self.norm, self.groups, self.width)
        return self


class TrainTable(Table):
    """The table `[train]`."""

    batch_size: BatchSize = 32
    """A client with fewer samples takes all of them; batch normalisation needs two."""
    precision: Literal["model", "bfloat16"] = "model"
    """Precision of layers in local steps: the model's, or bfloat16 by torch's autocast. Weights,
    statistics, what is sent and every evaluation keep the model's."""
    lr: Positive = 0.5
    lr_drops: tuple[Share, ...] | None = None
    """Shares of the rounds after which the learning rate drops. Where absent: 0.5 and 0.75 in a run
    of 50 rounds or more, or in which BN is frozen; none in a shorter one."""
    lr_drop_factor: Annotated[float, Field(gt=0, le=1, strict=True)] = 0.1
    lr_decay: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    """Factor of the learning rate after each round."""
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    momentum_across_rounds: Literal["reset", "local", "global"] = "reset"
    """`local`: each client keeps its momentum buffers from round to round; `global`: they are
    averaged like weights and sent back."""
    weight_decay: NotNegative = 0.0


class ExchangeTable(Table):
    """The table `[exchange]`."""

    encrypt: Annotated[
        tuple[Encrypt, ...],
        BeforeValidator(_listed, json_schema_input_type=tuple[Encrypt, ...] | str),
    ] = (Encrypt.MODEL,)
    """`model` (all sums, and profiles), `statistics`, `profiles` or both, or `none`."""
    min_clients: Annotated[int, Field(ge=3, le=10**6, strict=True)] = 3
    """The authority opens no total of fewer: with two, each learns the other's value."""
    precision_bits: Annotated[int, Field(ge=16, le=32, strict=True)] = 32
    """Bits of each value that the authority releases, after its leading one."""
    officers: Annotated[int, Field(ge=1, le=7, strict=True)] = 1
    """Officers who open sums together, each with a key of its own (docs/one-time-keys.md). 1: one
    authority."""
    threshold: Annotated[int, Field(ge=1, le=7, strict=True)] | None = None
    """Officers that are needed, more than half of them; the least such number where absent."""

    blind: Annotated[bool, Field(strict=True)] = False
    """True: the server relays totals that it cannot read, wherever clients alone use them: all
    encrypted sums that they ask for in the middle of their work, which are FedTAN's statistics and
    gradients, FNR-FL's ranks and norms, and DP-FixBN's moments. The authority seals them for the
    clients on its list. Totals that the server applies itself it reads: updates, and means of
    scores."""

    @property
    def needed(self) -> int:
        """Number of officers that open a sum."""
        return self.threshold or self.officers // 2 + 1

    @property
    def seals_sums(self) -> bool:
        """True where anything that is added up is encrypted."""
        return Encrypt.STATISTICS in self.encrypt or Encrypt.MODEL in self.encrypt

    @property
    def seals_profiles(self) -> bool:
        """True where profiles are encrypted, if there are any."""
        return Encrypt.PROFILES in self.encrypt or Encrypt.MODEL in self.encrypt

    @property
    def seals_anything(self) -> bool:
        """True where anything is encrypted that an authority opens."""
        return self.seals_sums or self.seals_profiles


class Config(Table):
    """A whole run.

    Examples:
        >>> config = securefl.Config()  # the demo's job
        >>> config.algorithm.name, config.run.rounds
        ('fedtan', 200)
        >>> config = securefl.load_config(settings=["solver.name=fedprox", "solver.mu=0.1"])
        >>> config.solver.mu
        0.1
    """

    run: RunTable = RunTable()
    data: DataTable = DataTable()
    samples: SamplesTable | None = None
    """Where sites bring their own data."""
    model: ModelTable = ModelTable()
    algorithm: Annotated[SerializeAsAny[Normalisation], BeforeValidator(NORMALISATIONS.parse)] = (
        Field(default_factory=NORMALISATIONS.by_default)
    )
    solver: Annotated[SerializeAsAny[SolverChoice], BeforeValidator(SOLVERS.parse)] = Field(
        default_factory=SOLVERS.by_default
    )
    server: Annotated[SerializeAsAny[ServerChoice], BeforeValidator(SERVERS.parse)] = Field(
        default_factory=SERVERS.by_default
    )
    train: TrainTable = TrainTable()
    exchange: ExchangeTable = ExchangeTable()
    selection: Annotated[SerializeAsAny[SelectorChoice], BeforeValidator(SELECTORS.parse)] = Field(
        default_factory=SELECTORS.by_default
    )
    sites: SitesTable = SitesTable()
    devices: DevicesTable = DevicesTable()
    fnr: Annotated[SerializeAsAny[FnrChoice], BeforeValidator(REFINEMENTS.parse)] = Field(
        default_factory=REFINEMENTS.by_default
    )
    privacy: Annotated[SerializeAsAny[PrivacyChoice], BeforeValidator(PRIVACY.parse)] = Field(
        default_factory=PRIVACY.by_default
    )

    @model_serializer(mode="wrap")
    def _without_absent_tables(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a table that is absent, as a file of settings does."""
        return {table: keys for table, keys in dump(self).items() if keys is not None}

    @property
    def targets(self) -> Targets:
        """Form of what is predicted: of sites' own samples, or of the data set."""
        return self.samples.targets if self.samples else self.data.traits.targets

    @property
    def name(self) -> str:
        """The run's name, or one made of what it does."""
        if self.run.name:
            return self.run.name
        model = re.sub(r"\W", "-", self.model.name)  # `module:function` names no folder
        return self.named(self.algorithm.name, model, self.model.norm)

    def named(self, *parts: str) -> str:
        """Return a name made of these and of what else the run does."""
        beside = [
            prefix + re.sub(r"[^\w.+-]", "-", choice.name)
            for axis, choice, prefix in (
                (SOLVERS, self.solver, ""),
                (SERVERS, self.server, ""),
                (REFINEMENTS, self.fnr, "fnr-"),
            )
            if choice.name != axis.default
        ]
        return "-".join([*parts, *beside])

    def of_own_task(self, *parts: str) -> Config:
        """Return the settings of a run on a user's own task; these parts name it if nothing does.

        `[data]` and `[model]` do not count in it, so they hold nothing but the clients' names. The
        settings of sites that bring their own data count all.
        """
        if self.samples is not None:
            return self
        name = self.run.name or re.sub(r"[^\w.+-]", "-", self.named(*parts))[:80]
        run = self.run.model_copy(update={"name": name})
        data = DataTable(names=self.data.names)
        return self.model_copy(update={"run": run, "data": data, "model": ModelTable()})

    def tables(self, *, own_task: bool = False) -> dict[str, Any]:
        """Return the settings as JSON has them: no data set's where sites bring their own data.

        Of an own task, `[model]` does not count either.
        """
        if self.samples is None and not own_task:
            return self.model_dump(mode="json")
        names = {"data": {"names": list(self.data.names)}} if self.data.names else {}
        others = {"data"} if self.samples else {"data", "model"}
        return self.model_dump(mode="json", exclude=others) | names

    def read_tables(self, *, own_task: bool = False) -> dict[str, Any]:
        """Return `tables` for readers: without the keys of `[data]` that its data set ignores."""
        tables = self.tables(own_task=own_task)
        if data := tables.get("data"):
            tables["data"] = {key: of for key, of in data.items() if key not in self.data.unread}
        return tables

    def rounds_in(self, share: float) -> int:
        """Return the rounds that a share of all rounds makes; a part of one counts as one."""
        return rounds_in(share, self.run.rounds)

    @property
    def lr_drops(self) -> tuple[float, ...]:
        """Shares of the rounds after which the learning rate drops: the setting's, or by default.

        A short run would be over before a smaller rate pays. A frozen BN needs the drop however
        short the run is: with a large rate it diverges.
        """
        if self.train.lr_drops is not None:
            return self.train.lr_drops
        drops = self.run.rounds >= FEWEST_ROUNDS_WITH_DROPS or self.algorithm.frozen
        return DEFAULT_LR_DROPS if drops else ()

    @property
    def seals_scores(self) -> bool:
        """True where clients are selected by scores of encrypted profiles."""
        return self.exchange.seals_profiles and self.selection.asks_for_profiles

    @property
    def needs_cards(self) -> bool:
        """True where clients give cards: a sum or a score is sealed."""
        return self.exchange.seals_sums or self.seals_scores

    @property
    def models_at_clients(self) -> bool:
        """True where each client is scored by a model of which some or all is its own."""
        return bool(self.algorithm.kept) or self.solver.own_model

    @property
    def choices(self) -> tuple[OpenChoice, ...]:
        """The choice on each axis that takes choices of users' own."""
        return self.algorithm, self.solver, self.server, self.selection, self.fnr

    def with_choices(self, choices: Iterable[Choice]) -> Config:
        """Return the same run with these choices, each in the place of the settings' on its axis.

        A key that a choice leaves open, and settings give another value than the default, is
        theirs where the choice's class has it.

        Raises:
            ConfigError: one is of no axis, or two are of one; or they do not go with the settings.
        """
        tables: dict[str, Any] = {}
        for choice in choices:
            axis = next((axis for axis in AXES if isinstance(choice, axis.base)), None)
            if axis is None or axis.table in tables or not axis.takes(type(choice)):
                raise ConfigError(
                    f"choices: {choice!r:.100}: give one Normalisation, Solver, ServerOptimiser "
                    "or Selector at most"
                )
            tables[axis.table] = self._filled(axis.table, choice)
        if not tables:
            return self
        try:
            return Config.model_validate({**dict(self), **tables})
        except ValidationError as error:
            raise ConfigError("; ".join(reasons_of(error, Config))) from None

    def _filled(self, table: str, choice: Choice) -> Choice:
        """Return the choice with the keys that settings give another value, and it leaves open."""
        ours, kind = getattr(self, table), type(choice)
        own = {key: getattr(choice, key) for key in choice.model_fields_set}
        given = {
            key: getattr(ours, key)
            for key in ours.model_fields_set & kind.model_fields.keys() - {kind.key}
            if getattr(ours, key) != type(ours).model_fields[key].get_default()
        }
        for key in sorted(given.keys() & own.keys()):
            if given[key] != own[key]:
                raise ConfigError(
                    f"{table}.{key} = {given[key]!r:.100}, and the task's {kind.__qualname__} has "
                    f"{key} = {own[key]!r:.100}: leave one of them out"
                )
        if given.keys() <= own.keys():
            return choice
        try:
            return kind.model_validate(given | own)
        except ValidationError as error:
            raise ConfigError("; ".join(reasons_of(error, kind, (table,)))) from None

    def with_sigma(self, sigma: float) -> Config:
        """Return the same run with this `privacy.sigma`, which is not checked."""
        privacy = self.privacy.model_copy(update={"sigma": sigma})
        return self.model_copy(update={"privacy": privacy})

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        for reason in reasons_against(self):
            raise ValueError(reason)
        return self

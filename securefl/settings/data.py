"""The table `[data]`: which data set, who holds what of it, and how clients' images differ."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from securefl.data.catalogue import (
    CORRUPTION_FAMILIES,
    DATA_SETS,
    DataSet,
    Inputs,
    Targets,
    left_out_of,
    names_by_domain,
)
from securefl.errors import ConfigError
from securefl.settings.table import ClosedShare, Table, of_form, one_of

OfImages = Literal["irrelevant", "blurred", "salt-and-pepper"]
OfReadings = Literal["polluted", "noisy"]
LowQuality = Literal[OfImages, OfReadings]


PARTIES = frozenset({"server", "authority"})
"""Names that no client has, since the ledger has the parties' own messages under them."""
MAX_NAMES = 2000
"""Most names that a consortium lists."""
ClientName = Annotated[
    str, of_form(r"[^/\x00-\x1f\x7f]{1,64}", "1 to 64 characters, no / and no control among them")
]


def _known(name: str) -> str:
    if name not in DATA_SETS:
        raise ValueError(f"data.dataset = {name!r:.200}: must be one of {', '.join(DATA_SETS)}")
    return name


def _partition(text: str) -> str:
    if text == "iid":
        return text
    from securefl.data.partition import parse_partition  # noqa: PLC0415  (it loads numpy)

    try:
        parse_partition(text)
    except ConfigError as error:
        raise ValueError(f"data.{error}") from None
    return text


class DataTable(Table):
    """The table `[data]`."""

    dataset: Annotated[str, AfterValidator(_known), one_of(DATA_SETS)] = "digits"
    """A name of `securefl.data.catalogue`. Where a data set comes by domain, each domain is a
    client, and `partition` and `clients` do not count."""
    root: Annotated[str, of_form(r"[^\x00-\x1f\x7f]+", "a folder's path")] | None = None
    """The folder with the data set's standard files; nothing is downloaded. The files of `heart`
    are those of an installed package where it is absent."""
    side: Annotated[int, Field(ge=8, le=1024, strict=True)] = 32
    """Height and width that the pictures of `folders`, `camelyon17` and `isic2019` are resized
    to."""
    n_per_center: Annotated[int, Field(ge=6, le=10**6, strict=True)] | None = None
    """So many patches of each hospital of `camelyon17`; all 456 000 where absent."""
    partition: Annotated[str, AfterValidator(_partition)] = "classes:2"
    """`iid`, `sizes:SHARE` (normal sizes, that share of their mean for deviation), `classes:K` (K
    classes a client, FedTAN App. D), `dominant:SHARE` (of one class each, FedProf),
    `dirichlet:ALPHA`, `quantity:ALPHA` or `label-quantity:ALPHA`."""
    clients: Annotated[int, Field(ge=1, le=10**6, strict=True)] = 5
    """Number of clients; that of `names`, where these are given."""
    names: Annotated[tuple[ClientName, ...], Field(max_length=MAX_NAMES)] = ()
    """The clients', in the order of their parts, as their certificates have them; `client-1`,
    `client-2` … where absent."""
    public: Annotated[int, Field(ge=2, le=10**6, strict=True)] | None = None
    """Training samples that are set aside before clients get theirs: FedProf's server profiles
    them, FNR-FL trains on them. Where absent, 180 if something reads them, else none; with a number
    every run sets them aside, so that runs with and without are of the same data."""
    quality: dict[LowQuality, ClosedShare] = Field(default_factory=dict)
    """Shares of the clients whose training data are of low quality (FedProf); the others' are
    normal, and so is what is tested. `irrelevant`, `blurred` and `salt-and-pepper` are of images;
    `polluted` and `noisy` are of readings, and take an image's pixels for such."""
    feature_noise: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False, strict=True)] = 0.0
    """Client i of K trains on images with normal noise of i/K of this standard deviation, beside
    any partition; pixels are in 0..1. Testing is on clean images."""
    corruptions: tuple[str, ...] = ()
    """One per client, cyclically, for its training images and a test set of its own. With
    `cifar10-c` the files to read, a client each; its fifteen where empty."""
    severity: Annotated[int, Field(ge=1, le=5, strict=True)] = 3
    """Severity of the corruptions: 1 is mild."""
    leave_out: str | None = None
    """A corruption, a family of them (`noise`, `blur`, `weather` or `digital`) or a domain whose
    clients do not train: they are external, for testing alone."""

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(names := given.get("names"), list | tuple):
            return ({"clients": len(names)} if names else {}) | given
        return given

    @property
    def traits(self) -> DataSet:
        """Line of the data set in the catalogue."""
        return DATA_SETS[self.dataset]

    @property
    def unread(self) -> frozenset[str]:
        """Keys that change nothing about this data set: others are refused with it, or ignored."""
        reads = self.traits.reads
        found = {"side", "n_per_center"} - reads
        if not (self.traits.files or self.traits.files_instead):
            found |= {"root"}
        if self.traits.by_domain:
            dealt = {"clients", "partition", "public", "quality", "feature_noise", "corruptions"}
            found |= dealt - reads
        if not (self.corruptions or "corruptions" in reads):
            found |= {"severity"}
        return frozenset(found)

    @property
    def families(self) -> Mapping[str, str]:
        """Family of each domain that the settings tell; empty where a folder alone does."""
        of = self._known_corruptions
        return {name: of[name] for name in self.corruptions} or self.traits.domains

    @property
    def _known_corruptions(self) -> Mapping[str, str]:
        """Family of each corruption that there is: made here, or a file of the data set."""
        return self.traits.domains if "corruptions" in self.traits.reads else CORRUPTION_FAMILIES

    @property
    def folder(self) -> Path:
        """The folder `root`, of a data set that has one."""
        return Path(self.root or "")

    @model_validator(mode="after")
    def _fits_together(self) -> "DataTable":
        self._check_root()
        if self.names and len(self.names) != self.clients:
            raise ValueError(
                f"data.clients = {self.clients} and data.names has {len(self.names)} names: leave "
                "data.clients out, or name each client"
            )
        if twice := sorted({name for name in self.names if self.names.count(name) > 1}):
            raise ValueError(f"data.names: {', '.join(map(repr, twice))} twice; name each once")
        if taken := sorted({*self.names} & PARTIES):
            raise ValueError(
                f"data.names: {', '.join(map(repr, taken))} is another party's name, under which "
                "the ledger has its messages; name the client otherwise"
            )
        if repeated := sorted({c for c in self.corruptions if self.corruptions.count(c) > 1}):
            raise ValueError(
                f"data.corruptions: {', '.join(repeated)} more than once; name it once"
            )
        known = self._known_corruptions
        if unknown := [name for name in self.corruptions if name not in known]:
            raise ValueError(
                f'data.corruptions: "{unknown[0]:.80}" must be one of {", ".join(known)}'
            )
        if self.traits.by_domain:
            self._check_domains()
        else:
            self._check_dealt()
        if self.leave_out is not None and self.families:
            left_out_of(self.families, self.leave_out)
        for key in ("side", "n_per_center"):
            value, default = getattr(self, key), DataTable.model_fields[key].default
            if value != default and key not in self.traits.reads:
                readers = [f'"{name}"' for name, d in DATA_SETS.items() if key in d.reads]
                raise ValueError(
                    f"data.{key} = {value} goes with data.dataset = {' or '.join(readers)} alone; "
                    "leave it out"
                )
        if self.severity != DataTable.model_fields["severity"].default and not (
            self.corruptions or "corruptions" in self.traits.reads
        ):
            raise ValueError(
                f"data.severity = {self.severity}: there is no corruption; set data.corruptions, "
                "or leave data.severity out"
            )
        return self

    def _check_root(self) -> None:
        if self.root is not None and not (self.traits.files or self.traits.files_instead):
            raise ValueError(
                f'data.root = "{self.root}": the {self.dataset} {self.traits.origin}; leave '
                "data.root out, or name the data set that lies there in data.dataset"
            )
        if self.root is None and self.traits.files:
            raise ValueError(
                f'data.dataset = "{self.dataset}" needs data.root, the folder with '
                f"{self.traits.files}"
            )

    def _check_domains(self) -> None:
        if self.feature_noise:
            raise ValueError(
                f'data.feature_noise = {self.feature_noise} with data.dataset = "{self.dataset}": '
                "its domains are its feature skew; set data.feature_noise = 0.0"
            )
        if self.quality:
            shares = ", ".join(f"{name} = {share}" for name, share in self.quality.items())
            raise ValueError(
                f'data.quality = {{{shares}}} with data.dataset = "{self.dataset}": its clients '
                "are its domains, whose samples stay as they are; leave data.quality out, or take "
                "a data set that a partition deals"
            )
        if self.corruptions and "corruptions" not in self.traits.reads:
            raise ValueError(
                f'data.corruptions = {[*self.corruptions]} with data.dataset = "{self.dataset}": '
                "its clients are its domains, whose samples stay as they are; leave "
                "data.corruptions out"
            )

    def _check_dealt(self) -> None:
        if self.corruptions and self.feature_noise:
            raise ValueError(
                "data.corruptions and data.feature_noise are both feature skew, a client has one: "
                "leave one out"
            )
        if self.quality:
            self._check_quality()
        if self.traits.inputs is not Inputs.IMAGES:
            self._check_no_images()
        if self.traits.targets is not Targets.CLASSES:
            self._check_no_classes()
        if self.clients < len(self.corruptions):
            raise ValueError(
                f"data.clients = {self.clients}: {len(self.corruptions)} corruptions need as many "
                "clients or more"
            )
        if self.leave_out is not None and not self.corruptions:
            raise ValueError(
                f'data.leave_out = "{self.leave_out}": the clients of "{self.dataset}" are alike; '
                f"set data.corruptions, or a data set of domains: {', '.join(names_by_domain())}"
            )

    def _check_quality(self) -> None:
        if self.corruptions or self.feature_noise:
            other = "corruptions" if self.corruptions else "feature_noise"
            raise ValueError(
                f"data.quality and data.{other} both spoil a client's data, which are spoilt once: "
                "leave one out"
            )
        if (total := sum(self.quality.values())) > 1 + 1e-9:
            raise ValueError(
                f"data.quality: shares of clients that sum to {total:.3g}; together at most 1"
            )

    def _check_no_images(self) -> None:
        """Check that nothing is set that images alone have."""
        if self.corruptions:
            raise ValueError(
                f'data.corruptions = {[*self.corruptions]} with data.dataset = "{self.dataset}": '
                f"corruptions are of images, and these are {self.traits.inputs}; leave them out, "
                "or set data.feature_noise or data.quality"
            )
        if of_images := [name for name in self.quality if name in get_args(OfImages)]:
            raise ValueError(
                f'data.quality: {", ".join(of_images)} is of images, and "{self.dataset}" has '
                f"readings; take {' or '.join(get_args(OfReadings))}"
            )

    def _check_no_classes(self) -> None:
        """Check that samples are not dealt by their classes."""
        if self.partition != "iid" and not self.partition.startswith("sizes:"):
            raise ValueError(
                f'data.partition = "{self.partition}" with data.dataset = "{self.dataset}": its '
                "targets are numbers and have no class to be dealt by; set "
                '"iid", or "sizes:0.2" for clients of unequal size'
            )

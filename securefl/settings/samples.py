"""The table `[samples]`: the form of samples that sites bring themselves."""

from collections import Counter
from typing import Annotated

from pydantic import Field, model_validator

from securefl.data.catalogue import Targets
from securefl.settings.reasons import shown
from securefl.settings.table import Table, of_form

Word = Annotated[
    str,
    of_form(
        r"(?=.{1,200}$)[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?",
        "text of 1 to 200 characters, none of them a control, that begins and ends with no space",
    ),
]


class SamplesTable(Table):
    """The table `[samples]`: what all sites' data are alike in.

    The files themselves are each site's own affair. Where this table stands, `[data]` has the
    sites' names and nothing else.
    """

    columns: Annotated[tuple[Word, ...], Field(max_length=10_000)] = ()
    """Columns of a table that the model reads, in this order. Others are passed over."""
    levels: dict[Word, Annotated[tuple[Word, ...], Field(min_length=2, max_length=1000)]] = Field(
        default_factory=dict
    )
    """Values of a column that holds words, by its name: the model reads 1 for the value that a
    sample has, and 0 for the others."""
    units: dict[Word, Annotated[float, Field(ge=1e-30, le=1e30, strict=True)]] = Field(
        default_factory=dict
    )
    """Size that counts as one in a column of numbers, or in a target that is a number, by its name:
    values are divided by it as they are read. It is 1 for those that are not named."""
    missing: Annotated[tuple[Word, ...], Field(max_length=10_000)] = ()
    """Columns that may be empty: the model reads 0 for such a value, and beside it a 1. Elsewhere
    an empty field is an error."""
    shape: Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096, strict=True)], ...], Field(max_length=4)
    ] = ()
    """Shape of a sample of arrays and of pictures, such as [3, 32, 32], in the place of columns."""
    target: Word = "label"
    """Column of what the model is to say."""
    classes: Annotated[tuple[Word, ...], Field(max_length=10_000)] = ()
    """Values of the target, in the order of the model's outputs; folders of pictures are named so.
    Without them the target is a number, and there are no pictures."""
    event: Word | None = None
    """Column of 1 for an event, 0 for the end of observation. The target is then its time, and what
    the model says is a risk: survival, by Cox's model. Arrays have y of two columns, (time,
    event)."""
    most: Annotated[int, Field(ge=1, le=10**7, strict=True)]
    """Samples that a site trains on, at most. It bounds the sites' weights, so that no weight tells
    a size where totals are sealed. Name one near the largest site's: with a bound a thousand times
    too large, sealed totals lose ten bits."""
    public: Annotated[str, of_form("[0-9a-f]{64}", "64 hex digits, 0-9 and a-f")] | None = None
    """Digest of the public samples, where FedProf, FNR-FL or a warm-up reads any: all parties who
    read them take the same. A party whose own file names them tells the digest where it is left
    out here."""
    standardise: Annotated[bool, Field(strict=True)] = True
    """Each column of numbers is standardised by its mean and deviation over all sites' training
    samples, which are found by two sums before the first local step, sealed where statistics are.
    Words and what says that a value is missing stay 0 and 1; of arrays each channel is a column."""

    @model_validator(mode="after")
    def _fits_together(self) -> "SamplesTable":
        if bool(self.columns) == bool(self.shape):
            raise ValueError(
                f"samples.columns = {shown([*self.columns])} with samples.shape = "
                f"{[*self.shape]}: columns are of tables, a shape is of arrays and pictures; give "
                "one of the two"
            )
        named = (*self.columns, *self.target_columns)
        if twice := _twice(named):
            raise ValueError(
                f"samples.columns, samples.target and samples.event: {twice} twice; name each "
                "column once"
            )
        if self.event and self.classes:
            raise ValueError(
                f'samples.event = "{self.event}" with samples.classes: an event has a time, and '
                "classes have none; leave one of the two out"
            )
        for key, of in (("levels", self.levels), ("missing", self.missing)):
            if unknown := sorted({*of} - {*self.columns}):
                raise ValueError(
                    f"samples.{key}: {', '.join(unknown)} is not in samples.columns: add it there"
                )
        numbers = {*self.columns} - {*self.levels}
        if self.targets is Targets.NUMBERS:
            numbers |= {self.target}
        if unknown := sorted({*self.units} - numbers):
            raise ValueError(
                f"samples.units: {', '.join(unknown)} is no column of numbers, nor a target that "
                "is one: leave it out"
            )
        levels = {f"levels.{column}": words for column, words in self.levels.items()}
        for key, words in {**levels, "classes": self.classes}.items():
            if twice := _twice(words):
                raise ValueError(f"samples.{key}: {twice} twice; name it once")
        if len(self.classes) == 1:
            raise ValueError(
                f"samples.classes = {list(self.classes)} is one class: name two at least, or none "
                "for numbers"
            )
        return self

    @property
    def targets(self) -> Targets:
        """Form of what is predicted."""
        if self.event:
            return Targets.SURVIVAL
        return Targets.CLASSES if self.classes else Targets.NUMBERS

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Columns of a table that hold what is predicted."""
        return (self.target, self.event) if self.event else (self.target,)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of what the model reads of one sample."""
        return self.shape or (len(self.inputs),)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what the model reads of a row, in order; empty of arrays and pictures."""
        named: list[str] = []
        for column in self.columns:
            per = f" / {self.units[column]:g}" if column in self.units else ""
            absent = " (0 where missing)" if column in self.missing else ""
            words = self.levels.get(column)
            named += [f"{column} = {w} (0 or 1)" for w in words or ()] or [f"{column}{per}{absent}"]
        return (*named, *(f"{column} is missing (0 or 1)" for column in self.missing))

    @property
    def form_said(self) -> str:
        """Sentences on what a trained model takes of a sample, and what it gives."""
        takes = ", ".join(self.inputs) or f"arrays of shape {list(self.shape)}"
        inside = " Standardisation is inside." if self.standardises else ""
        per = f" / {self.units[self.target]:g}" if self.target in self.units else ""
        gives = {
            Targets.CLASSES: f"logits of {', '.join(self.classes)}",
            Targets.NUMBERS: f"{self.target}{per}",
            Targets.SURVIVAL: "logarithm of the risk",
        }[self.targets]
        return f"Inputs, in order: {takes}.{inside} Output: {gives}."

    @property
    def standardises(self) -> bool:
        """True where there are numbers, and they are standardised."""
        return self.standardise and bool(self.shape or self.numbers)

    @property
    def numbers(self) -> dict[str, int]:
        """Place of each column of numbers in what the model reads."""
        places, place = {}, 0
        for column in self.columns:
            if column not in self.levels:
                places[column] = place
            place += len(self.levels.get(column, (column,)))
        return places

    @property
    def target_unit(self) -> str:
        """Words on the unit of a target's errors, in brackets; empty where it is 1."""
        unit = self.units.get(self.target)
        return "" if unit is None else f" ({self.target} in units of {unit:g})"

    @property
    def n_outputs(self) -> int:
        """Number of the model's outputs."""
        return len(self.classes) or 1


def _twice(words: tuple[str, ...]) -> str:
    return ", ".join(sorted(word for word, n in Counter(words).items() if n > 1))

"""Recipe: one table of a paper, as settings by row and column, with the printed values.

    title = "…"
    paper = "Authors: title. Table 1"
    seeds = 5
    [train]                        # and all other tables of a run: what the whole table shares
    lr = 0.5
    [[columns]]
    name = "Non-IID (%)"
    settings.data.partition = "classes:2"
    [[rows]]
    name = "FedTAN"
    settings.algorithm.name = "fedtan"
    paper."Non-IID (%)" = "87.66 ± 0.43"

A cell's settings are the common ones, then its column's, then its row's.
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from securefl.errors import ConfigError
from securefl.recipes.quantities import Measure
from securefl.settings.load import parse_tables, read_tables
from securefl.settings.reasons import suggestion
from securefl.settings.tables import Config

Tables = dict[str, dict[str, Any]]
Name = Annotated[str, Field(max_length=40, pattern=r"^[^\p{Cc}\p{Zl}\p{Zp}]+$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]
MAX_SLUG_BYTES = 120  # a folder takes 255 of a row, a column and a seed
MAX_CELLS = 2000  # of a table, each with settings of its own
NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"  # of more digits a float may be infinite
PRINTED = re.compile(rf"({NUMBER})(?: ± ({NUMBER}))?")


@dataclass(frozen=True, slots=True)
class Printed:
    """Value as the paper has it."""

    text: str
    mean: float
    std: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One row in one column."""

    row: str
    column: str
    tables: Tables
    measure: Measure
    printed: Printed | None
    """Printed value; None where the paper draws a curve or leaves the cell empty."""

    @property
    def name(self) -> str:
        """Name of the cell's runs; no two cells of a table have the same."""
        return f"{slug(self.row)}--{slug(self.column)}"

    def config(self, seed: int) -> Config:
        """Return the settings of one run; ConfigError where they do not fit."""
        run = {**self.tables.get("run", {}), "name": self.name[:80], "seed": seed}
        where = f"row {self.row!r}, column {self.column!r}: "
        return parse_tables(Config, {**self.tables, "run": run}, where)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One table."""

    title: str
    paper: str
    seeds: int
    """Number of seeds: each cell is the mean over runs with seeds 0..seeds-1."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    """Cells, row by row."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Column(_Table):
    name: Name
    settings: Tables = {}
    measure: dict[str, Any] = {}


class _Row(_Column):
    paper: dict[str, str | Annotated[tuple[Finite, ...], Field(min_length=1)]] = {}
    """Printed values by column: `"87.66 ± 0.43"`, or a list of values whose mean counts."""
    columns: tuple[str, ...] | None = None
    """Columns in which the row has a cell; all where absent."""


class _File(_Table):
    title: str
    paper: str
    seeds: Annotated[int, Field(ge=1, le=1000, strict=True)]
    measure: dict[str, Any] = {}
    columns: Annotated[tuple[_Column, ...], Field(min_length=1)]
    rows: Annotated[tuple[_Row, ...], Field(min_length=1)]


def load_recipe(path: Path, data_root: Path | None = None) -> Recipe:
    """Load the recipe in a TOML file, with all its cells' settings checked.

    Args:
        path: the file.
        data_root: in the place of the recipe's own `data.root`.

    Raises:
        ConfigError: an unknown key (with a suggestion), a value that does not fit, a name that
            stands twice, or a cell whose settings do not go together.
    """
    tables = read_tables(path)
    common = {name: tables.pop(name) for name in Config.model_fields if name in tables}
    if data_root:
        common["data"] = {**common.get("data", {}), "root": str(data_root)}
    try:
        _check_keys(tables)
        return _recipe(parse_tables(_File, tables), common)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def slug(name: str) -> str:
    """Return the name's letters and digits, with dashes between words; points in numbers stay."""
    return "-".join(re.findall(r"\d+\.\d+|[^\W_]+", name.lower()))


def _check_keys(tables: Mapping[str, Any]) -> None:
    for key in tables:
        if key not in _File.model_fields:
            known = [*_File.model_fields, *Config.model_fields]
            raise ConfigError(f"{key}: no such key{suggestion([], key, known)}")


def _recipe(file: _File, common: Tables) -> Recipe:
    if len(file.rows) * len(file.columns) > MAX_CELLS:
        raise ConfigError(
            f"{len(file.rows)} rows and {len(file.columns)} columns: a table has at most "
            f"{MAX_CELLS} cells; make several recipes of it"
        )
    rows, columns = _names(file.rows, "rows"), _names(file.columns, "columns")
    cells = tuple(
        _cell(file, common, row, column)
        for row in file.rows
        for column in file.columns
        if row.columns is None or column.name in row.columns
    )
    for row in file.rows:
        for name in (*row.paper, *(row.columns or ())):
            if name not in columns:
                hint = suggestion([], name, columns)
                raise ConfigError(f"row {row.name!r}: there is no column {name!r}{hint}")
    return Recipe(file.title, file.paper, file.seeds, rows, columns, cells)


def _names(parts: Sequence[_Column], kind: str) -> tuple[str, ...]:
    """Return the parts' names, which also tell their folders apart."""
    by_slug: dict[str, str] = {}
    for part in parts:
        key = slug(part.name)
        if len(key.encode()) > MAX_SLUG_BYTES:
            raise ConfigError(
                f"{kind}: {part.name!r}: a folder is named after it, which takes "
                f"{MAX_SLUG_BYTES} bytes; {len(key.encode())} are too many: shorten it"
            )
        if not key or key in by_slug:
            also = f" and {by_slug[key]!r}" if key else ""
            raise ConfigError(
                f"{kind}: {part.name!r}{also}: names have letters or digits and differ in them"
            )
        by_slug[key] = part.name
    return tuple(by_slug.values())


def _cell(file: _File, common: Tables, row: _Row, column: _Column) -> Cell:
    where = f"row {row.name!r}, column {column.name!r}: "
    tables = _merged(common, column.settings, row.settings)
    for key in ("name", "seed"):
        if key in tables.get("run", {}):
            raise ConfigError(f"{where}run.{key}: a recipe's runs get theirs from its {key}s")
    measure = parse_tables(Measure, file.measure | column.measure | row.measure, where)
    value = row.paper.get(column.name)
    printed = None if value is None else _printed(value, where)
    cell = Cell(row.name, column.name, tables, measure, printed)
    _check_measure(measure, cell.config(seed=0), where)
    return cell


def _check_measure(measure: Measure, config: Config, where: str) -> None:
    """Raise ConfigError where runs of these settings leave behind nothing to measure."""
    if missing := measure.row.missing(config):
        raise ConfigError(f'{where}measure.quantity = "{measure.quantity}": {missing}')


def _merged(*parts: Tables) -> Tables:
    merged: Tables = {}
    for part in parts:
        for name, table in part.items():
            if not isinstance(table, dict):
                raise ConfigError(f"{name} is a table: write {name}.key = value")
            merged[name] = merged.get(name, {}) | table
    return merged


def _printed(value: str | Iterable[float], where: str) -> Printed:
    if not isinstance(value, str):
        values = list(value)
        mean = statistics.mean(values)
        return Printed(f"{mean:.2f} (mean of {len(values)})", mean)
    found = PRINTED.fullmatch(value)
    if not found:
        raise ConfigError(f'{where}paper = {value!r}: write "87.66", "87.66 ± 0.43" or a list')
    return Printed(value, float(found[1]), float(found[2]) if found[2] else None)

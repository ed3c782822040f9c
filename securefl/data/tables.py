"""Tables of samples: CSV and Parquet files, read by the columns that the settings name."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securefl.data.files import n_bytes_of, read
from securefl.errors import ConfigError, DataError
from securefl.settings.samples import SamplesTable

SUFFIXES = frozenset({".csv", ".parquet"})
_MAX_BYTES = 1 << 32  # also of what a Parquet file unpacks to
MAX_ROWS = 10**7
"""Most samples of a Parquet file; as many as `samples.most` can be."""
_MOST = 3.4e38
"""Largest number of 32 bits."""
_EMPTY = frozenset({"", "na", "nan", "null", "none", "?"})
"""Fields that hold nothing, in lower case."""
Fields = Sequence[str]


def load_table(path: Path, form: SamplesTable, most: int = MAX_ROWS) -> tuple[Tensor, Tensor]:
    """Read samples and targets of a table.

    Args:
        path: a file .csv (UTF-8, its first line names the columns) or .parquet.
        form: the columns, and what they hold.
        most: number of samples above which a Parquet file is refused before it is unpacked: a few
            kilobytes can hold millions.

    Returns x, (n, features), and y: labels, (n,), numbers, (n, 1), or times and events,
    (n, 2).

    Raises:
        ConfigError: a Parquet file, and pyarrow is not installed.
        DataError: the file cannot be read or holds too much, a column is missing, or a field is not
            of the form; the message says where, and shows no field of another column.
    """
    wanted = (*form.columns, *form.target_columns)
    if path.suffix.lower() == ".parquet":
        return _samples(path, _parquet(path, wanted, most), form)
    return parse_csv(read(path, _MAX_BYTES), path, form)


def parse_csv(content: bytes, path: Path, form: SamplesTable) -> tuple[Tensor, Tensor]:
    """Return samples and targets of a CSV file's bytes; see `load_table`.

    Args:
        content: UTF-8, its first line names the columns.
        path: stands in messages.
        form: the columns, and what they hold.

    Raises:
        DataError: as `load_table`.
    """
    wanted = (*form.columns, *form.target_columns)
    return _samples(path, _csv(content, path, wanted), form)


def _samples(path: Path, fields: Mapping[str, Fields], form: SamplesTable) -> tuple[Tensor, Tensor]:
    n = len(fields[form.target])
    if not n:
        raise DataError(
            f"{path}: has no line of values, only names: save the table anew, with its samples"
        )
    features: list[NDArray[np.float64]] = []
    absent: dict[str, NDArray[np.float64]] = {}
    for column in form.columns:
        words = form.levels.get(column, ())
        stripped = (field.strip() for field in fields[column])
        empty = np.array([field.lower() in _EMPTY and field not in words for field in stripped])
        if column in form.missing:
            absent[column] = empty.astype(np.float64)
        elif empty.any():
            raise DataError(
                f"{_place(path, column, int(empty.argmax()))}: empty: fill it, leave the line out, "
                "or have all sites name the column in samples.missing"
            )
        if column in form.levels:
            features += _one_hot(path, column, fields[column], empty, form.levels[column])
        else:
            found = _numbers(path, column, fields[column], empty)
            features.append(found / form.units.get(column, 1.0))
    x = np.stack([*features, *(absent[column] for column in form.missing)], axis=1)
    return torch.from_numpy(x), _targets(path, fields, form)


def _targets(path: Path, fields: Mapping[str, Fields], form: SamplesTable) -> Tensor:
    if form.classes:
        return torch.tensor(_places(path, form.target, fields[form.target], form.classes))
    none = np.zeros(len(fields[form.target]), dtype=bool)
    columns = [_numbers(path, name, fields[name], none) for name in form.target_columns]
    return torch.from_numpy(np.stack(columns, axis=1))


def _one_hot(
    path: Path, column: str, fields: Fields, empty: NDArray[np.bool_], levels: Sequence[str]
) -> list[NDArray[np.float64]]:
    known = [levels[0] if e else field for field, e in zip(fields, empty, strict=True)]
    places = np.array(_places(path, column, known, levels))
    return [np.where(empty, 0.0, places == place) for place in range(len(levels))]


def _places(path: Path, column: str, fields: Fields, words: Sequence[str]) -> list[int]:
    place = {word: i for i, word in enumerate(words)}
    try:
        return [place[field.strip()] for field in fields]
    except KeyError:
        line = next(i for i, field in enumerate(fields) if field.strip() not in place)
        raise DataError(
            f"{_place(path, column, line)}: {fields[line].strip()!r:.60} is none of "
            f"{', '.join(words):.200}: mend it, or have all sites add it to the settings"
        ) from None


def _numbers(
    path: Path, column: str, fields: Fields, empty: NDArray[np.bool_]
) -> NDArray[np.float64]:
    found = np.empty(len(fields))
    for i, field in enumerate(fields):
        try:
            found[i] = 0.0 if empty[i] else float("nan" if "_" in field else field)
        except ValueError:
            found[i] = math.nan
        if not abs(found[i]) <= _MOST:  # NaN compares false
            raise DataError(
                f"{_place(path, column, i)}: {field!r:.60} is no finite number of 32 bits: mend "
                "it, or, where the column holds words, have all sites name them in samples.levels"
            )
    return found


def _place(path: Path, column: str, row: int) -> str:
    return f"{path}: column {column!r:.60}, sample {row + 1}"


def _csv(content: bytes, path: Path, wanted: Sequence[str]) -> Mapping[str, Fields]:
    try:
        text = content.decode("utf-8-sig")
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = [name.strip() for name in next(rows, [])]
        lines = [row for row in rows if row]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is no CSV file of UTF-8 text ({error}): save it as CSV UTF-8"
        ) from error
    except csv.Error as error:
        raise DataError(
            f"{path}: is no CSV file ({error} in line {rows.line_num}): close its quotes, or save "
            "it anew from your table"
        ) from error
    for number, row in enumerate(lines, 1):
        if len(row) != len(header):
            raise DataError(
                f"{path}: sample {number} has {len(row)} fields, and the first line {len(header)}: "
                "mend that line; a field that holds a comma stands in quotes"
            )
    if not header and not lines:
        raise DataError(f"{path}: is empty: save the table anew, names in its first line")
    places = _columns(path, header, wanted)
    return {name: [row[place] for row in lines] for name, place in places.items()}


def _parquet(path: Path, wanted: Sequence[str], most: int) -> Mapping[str, Fields]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            f"{path}: Parquet files need pyarrow: pip install pyarrow, or save it as CSV"
        ) from error
    n_bytes_of(path, _MAX_BYTES)
    fields: dict[str, list[str]] = {name: [] for name in wanted}
    n_rows = n_bytes = 0
    try:
        with parquet.ParquetFile(path) as file:
            _columns(path, file.schema_arrow.names, wanted)
            said = file.metadata
            groups = (said.row_group(i).total_byte_size for i in range(said.num_row_groups))
            _require_bounded(path, said.num_rows, sum(groups), most)
            single = {said.schema.column(i).path for i in range(said.num_columns)}
            for name in wanted:
                if name not in single:
                    kind = file.schema_arrow.field(name).type
                    raise DataError(
                        f"{path}: column {name!r:.60} is of {kind!s:.60}: save it as numbers or "
                        "text, one for each sample"
                    )
        # Each text comes once, however many rows have it.
        with parquet.ParquetFile(path, read_dictionary=[*wanted]) as file:
            for batch in file.iter_batches(columns=[*wanted]):
                words = {name: _words(path, name, batch.column(name)) for name in wanted}
                n_rows += len(batch)
                n_bytes += sum(len(word) for column in words.values() for word in column)
                _require_bounded(path, n_rows, n_bytes, most)  # whatever the file says of itself
                for name in wanted:
                    fields[name] += words[name]
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: is no Parquet file that can be used ({error})") from error
    return fields


def _require_bounded(path: Path, n_rows: int, n_bytes: int, most: int) -> None:
    """Raise DataError where a Parquet file has more rows, or unpacks to more, than is read."""
    if n_rows > most:
        way = ", or have all sites set a larger samples.most" if most < MAX_ROWS else ""
        raise DataError(
            f"{path}: {n_rows} samples, and at most {most} are read of it: leave some out{way}"
        )
    if n_bytes > _MAX_BYTES:
        raise DataError(
            f"{path}: unpacks to {n_bytes} bytes, at most {_MAX_BYTES}: leave samples out, or "
            "columns that are not read"
        )


def _words(path: Path, name: str, column: Any) -> Fields:
    """Return a column of a Parquet file as a CSV file would have it."""
    try:
        if not hasattr(column, "dictionary"):
            return [_word(value) for value in column.to_pylist()]
        places = column.indices.unique()
        values = column.dictionary.take(places).to_pylist()
        words = dict(zip(places.to_pylist(), map(_word, values), strict=True))
        return [words[place] for place in column.indices.to_pylist()]
    except (ValueError, TypeError, ArithmeticError, RuntimeError, LookupError) as error:
        raise DataError(  # without the error's own words, which show a value
            f"{path}: column {name!r:.60} is of {_kind(column):.60}, and a value of it is "
            "neither number nor text: save it as one of these"
        ) from error


def _kind(column: Any) -> str:
    return str(getattr(column.type, "value_type", column.type))


def _word(value: object) -> str:
    """Return a value as a CSV file would have it: whole numbers without a point."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # as columns of integers are stored where some are missing
    return str(value)


def _columns(path: Path, header: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
    """Return the place of each column; raises DataError where one is missing or there twice."""
    count: Callable[[str], int] = list(header).count
    if missing := [name for name in wanted if count(name) == 0]:
        # A first line without any of the names may be a patient's.
        known = "; it has no other line of names"
        if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
            known = "; its fields are not separated by commas: save it with commas"
        if len(missing) < len(wanted):
            known = f"; it has {', '.join(header):.300}"
        raise DataError(
            f"{path}: has no column {', '.join(missing):.300}{known}: have its first line name the "
            "columns as samples.columns and samples.target do"
        )
    if twice := [name for name in wanted if count(name) > 1]:
        raise DataError(f"{path}: has the column {twice[0]!r:.60} twice: rename one")
    return {name: header.index(name) for name in wanted}

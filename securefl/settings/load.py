"""Read a run's settings from a TOML file, `table.key=value` settings, or a run folder's JSON."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from securefl.errors import ConfigError
from securefl.io.files import read_bounded
from securefl.io.json import require_shallow
from securefl.settings.tables import Config

MAX_BYTES = 2**20  # of settings; a policy, a recipe and the names of thousands of clients fit
MAX_VALUES = 20_000  # commas and lines, over more of which a parser of TOML takes long
MAX_ERRORS = 20  # in a message, since settings may have thousands
MAX_REASON = 1000  # characters of one of them
MAX_SHOWN = 200  # characters of a value in a message

Model = TypeVar("Model", bound=BaseModel)


def load_config(path: Path | str | None = None, settings: Iterable[str] = ()) -> Config:
    """The settings of `path` (defaults where it is None), overridden by `table.key=value` each.

    Raises:
        ConfigError: no such file, no TOML, an unknown key (with a suggestion), a value that does
            not fit, or settings that do not go together.
    """
    tables = read_tables(Path(path)) if path else {}
    for setting in settings:
        _apply(tables, setting)
    return parse_tables(Config, tables, f"{path}: " if path else "")


def parse_tables(model: type[Model], tables: Mapping[str, Any], where: str = "") -> Model:
    """What `tables` say, as a `model`; `where` stands in front of the message.

    Raises:
        ConfigError: an unknown key (with a suggestion), or a value that does not fit.
    """
    try:
        return model.model_validate(tables)
    except ValidationError as error:
        found = error.errors(include_url=False)
        causes = _first_causes(found[:MAX_ERRORS])
        reasons = [_explain(model, cause)[:MAX_REASON] for cause in causes]
        if len(found) > MAX_ERRORS:
            reasons.append(f"and {len(found) - MAX_ERRORS} more")
        raise ConfigError(where + "; ".join(reasons)) from None


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, or of a JSON file where its name says so, unchecked.

    Raises:
        ConfigError: the file cannot be read, is neither, or is larger or deeper than settings are.
    """
    json_file = path.suffix == ".json"
    kind = "JSON" if json_file else "TOML"
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8-sig")
        tables = _parsed(text, json.loads if json_file else tomllib.loads)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read ({reason})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid {kind}: {error!s:.{MAX_REASON}}") from error
    if not isinstance(tables, dict):
        raise ConfigError(f"{path}: must hold tables such as run and train")
    return tables


def _parsed(text: str, parse: Callable[[str], Any]) -> Any:
    require_shallow(text, ConfigError, MAX_VALUES)
    return parse(text.replace("\r\n", "\n"))


def _apply(tables: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    table, dot, name = key.strip().partition(".")
    if not (equals and dot and table and name):
        raise ConfigError(f"{setting!r}: write table.key=value, for example train.lr=0.1")
    try:
        value = _parsed(f"value = {text}", tomllib.loads)["value"]
    except ValueError:
        value = text.strip()  # a bare word is a string: exchange.encrypt=none
    target = tables.setdefault(table, {})
    if not isinstance(target, dict):
        raise ConfigError(f"{table} is a table: write {table}.key=value")
    target[name] = value


def _first_causes(errors: Sequence[Any]) -> list[Any]:
    """Those that do not follow from an error inside: a list of wrong items counts as too short."""
    places = [error["loc"] for error in errors]
    return [
        error
        for error, place in zip(errors, places, strict=True)
        if not any(len(p) > len(place) and p[: len(place)] == place for p in places)
    ]


def _explain(model: type[BaseModel], error: Any) -> str:
    place = _keys_of(model, error["loc"])
    key = ".".join(place) if place else "settings"
    if error["type"] == "extra_forbidden":
        return f"{key}: no such key{_suggestion(model, error['loc'])}"
    if place and place[-1] == "[key]":
        return f"{'.'.join(place[:-1])}: no such key; known here: {error['ctx']['expected']}"
    if error["type"] == "value_error":
        return f"{error['ctx']['error']}"
    if error["type"] == "model_type":
        return f"{key} is a table: write {key}.key = value"
    return _explain_value(key, error, is_one_kind=len(error["loc"]) > len(place))


def _explain_value(key: str, error: Any, *, is_one_kind: bool) -> str:
    """Explain a value that does not fit; `is_one_kind` where the key takes other kinds, too."""
    shown = f"{key} = {_shown(error['input'])}"
    if error["type"] == "missing":  # whose input is the table around it
        return f"{key}: missing, and has no default: give it"
    if error["type"] == "string_type" and isinstance(error["input"], int | float):
        if is_one_kind:
            return f"{shown}: no text in quotes, which would do, too"
        return f"{shown}: must be text, write it in quotes"
    if error["type"] == "string_pattern_mismatch" and error["input"] != error["input"].strip():
        return f"{shown}: begins or ends with a space: leave it out"
    return f"{shown}: {error['msg'].lower()}"


def _keys_of(model: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    """The keys of a place; what pydantic adds for the alternatives of a value is left out."""
    keys: list[str] = []
    table: type[BaseModel] | None = model
    for part in place:
        keys.append(str(part))
        field = table.model_fields.get(str(part)) if table else None
        if field is None:
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        table = next((kind for kind in kinds if _is_table(kind)), None)
        if table is None and len(kinds) > 1 and get_origin(field.annotation) in {Union, UnionType}:
            return keys
    return keys


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no decimals of an integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _suggestion(model: type[BaseModel], place: tuple[str | int, ...]) -> str:
    *tables, unknown = map(str, place)
    for part in place[:-1]:
        if isinstance(part, int):  # one of a list of tables
            continue
        annotation = model.model_fields[part].annotation
        found = [kind for kind in (annotation, *get_args(annotation)) if _is_table(kind)]
        if not found:
            return ""
        (model,) = found
    return suggestion(tables, unknown, model.model_fields)


def suggestion(tables: Iterable[str], unknown: str, known: Iterable[str]) -> str:
    """The known key that is meant, or all known ones, to follow a message about an unknown one."""
    known = list(known)
    close = difflib.get_close_matches(unknown, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {'.'.join([*tables, close[0]])}?"
    return f"; known here: {', '.join(known)}"


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)

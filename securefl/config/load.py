"""Read a run's settings from a TOML file, `table.key=value` settings, or a run folder's JSON."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from securefl.config.schema import Config
from securefl.errors import ConfigError


def load_config(path: Path | None = None, settings: Iterable[str] = ()) -> Config:
    """The settings of `path` (defaults where it is None), overridden by `table.key=value` each.

    Raises:
        ConfigError: no such file, no TOML, an unknown key (with a suggestion), a value that does
            not fit, or settings that do not go together.
    """
    tables = _read(path) if path else {}
    for setting in settings:
        _apply(tables, setting)
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        where = f"{path}: " if path else ""
        raise ConfigError(where + "; ".join(map(_explain, error.errors()))) from None


def _read(path: Path) -> dict[str, Any]:
    json_file = path.suffix == ".json"
    kind = "JSON" if json_file else "TOML"
    try:
        text = path.read_text()
        tables = json.loads(text) if json_file else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ConfigError(f"{path}: cannot be read ({reason})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid {kind}: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path}: not valid {kind}: nested too deeply") from None
    if not isinstance(tables, dict):
        raise ConfigError(f"{path}: must hold tables such as run and train")
    return tables


def _apply(tables: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    table, dot, name = key.strip().partition(".")
    if not (equals and dot and table and name):
        raise ConfigError(f"{setting!r}: write table.key=value, for example train.lr=0.1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # a bare word is a string: exchange.encrypt=none
    target = tables.setdefault(table, {})
    if not isinstance(target, dict):
        raise ConfigError(f"{table} is a table: write {table}.key=value")
    target[name] = value


def _explain(error: Any) -> str:
    place = [str(part) for part in error["loc"]]
    key = ".".join(place) if place else "settings"
    if error["type"] == "extra_forbidden":
        return f"{key}: no such key{_suggestion(place)}"
    if error["type"] == "value_error":
        return f"{error['ctx']['error']}"
    if error["type"] == "model_type":
        return f"{key} is a table: write {key}.key = value"
    return f"{key} = {error['input']!r}: {error['msg'].lower()}"


def _suggestion(place: list[str]) -> str:
    model: type[BaseModel] = Config
    for part in place[:-1]:
        annotation = model.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ""
        model = annotation
    close = difflib.get_close_matches(place[-1], model.model_fields, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {'.'.join([*place[:-1], close[0]])}?"
    return f"; known here: {', '.join(model.model_fields)}"

"""Read a run's settings from a TOML file, `table.key=value` settings, or a run folder's JSON."""

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from securefl.errors import ConfigError
from securefl.io.allowed_code import allow_code
from securefl.io.files import read_bounded
from securefl.io.json import require_shallow
from securefl.settings.reasons import MAX_REASON, reasons_of, shown
from securefl.settings.tables import Config

MAX_BYTES = 2**20  # of settings; a policy, a recipe and the names of thousands of clients fit
MAX_VALUES = 20_000  # commas and lines, over more of which a parser of TOML takes long

Model = TypeVar("Model", bound=BaseModel)


def load_config(path: Path | str | None = None, settings: Iterable[str] = ()) -> Config:
    """Return the settings of `path` (defaults where it is None), overridden by `settings`.

    Args:
        path: a TOML file, or a run folder's JSON file.
        settings: `table.key=value` each, as a line of TOML has it. A choice of your own,
            `solver.name=module:Class`, or metric, `run.metric=module:function`, that stands here
            may be loaded; in a file it needs `allow_code`.

    Raises:
        ConfigError: no such file, no TOML, an unknown key (with a suggestion), a value that does
            not fit, or settings that do not go together.

    Examples:
        >>> config = securefl.load_config(settings=["run.rounds=30", "algorithm.name=fixbn"])
        >>> config.algorithm.name, config.run.rounds
        ('fixbn', 30)
        >>> securefl.load_config("runs/first/config.json").run.rounds  # of an earlier run
        2
    """
    tables = read_tables(Path(path)) if path else {}
    for setting in settings:
        _apply(tables, setting)
        key, _, name = (part.strip().strip("\"'") for part in setting.partition("="))
        if (".name=" in setting.replace(" ", "") or key == "run.metric") and ":" in name:
            allow_code(name)
    return parse_tables(Config, tables, f"{path}: " if path else "")


def flat(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield settings as `table.key` and the value as text."""
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", of) for key, of in flat(value))
        else:
            yield name, str(value)


def parse_tables(model: type[Model], tables: Mapping[str, Any], where: str = "") -> Model:
    """Return `tables` as a `model`; `where` stands in front of the message.

    Raises:
        ConfigError: an unknown key (with a suggestion), or a value that does not fit.
    """
    try:
        return model.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(where + "; ".join(reasons_of(error, model))) from None


def with_changes(config: Config, changes: Mapping[str, Mapping[str, Any]]) -> Config:
    """Return the settings with other values of these keys, by table.

    Raises:
        ConfigError: they do not go together.
    """
    tables = config.model_dump()
    return parse_tables(Config, tables | {t: {**tables[t], **of} for t, of in changes.items()})


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file, or of a JSON file by its name, unchecked.

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
    *places, name = key.strip().split(".")
    if not (equals and places and all(places) and name):
        raise ConfigError(f"{setting!r}: write table.key=value, for example train.lr=0.1")
    try:
        value = _parsed(f"value = {text}", tomllib.loads)["value"]
    except ValueError:
        value = text.strip()  # a bare word is a string: exchange.encrypt=none
    target = tables
    for n, place in enumerate(places, 1):
        target = target.setdefault(place, {})
        if not isinstance(target, dict):
            table = ".".join(places[:n])
            raise ConfigError(f"{table} = {shown(target)} and {key.strip()}: give one of the two")
    target[name] = value

"""Options of `securefl run` that are settings, each written as `table.key=value`."""

import json
from collections.abc import Iterator, Mapping

from securefl.errors import ConfigError
from securefl.settings.axes import SELECTORS

KEYS = {
    "dataset": "data.dataset",
    "data_root": "data.root",
    "partition": "data.partition",
    "clients": "data.clients",
    "quality": "data.quality",
    "feature_noise": "data.feature_noise",
    "corruptions": "data.corruptions",
    "severity": "data.severity",
    "leave_out": "data.leave_out",
    "algorithm": "algorithm.name",
    "solver": "solver.name",
    "server": "server.name",
    "fnr": "fnr.name",
    "model": "model.name",
    "norm": "model.norm",
    "rounds": "run.rounds",
    "engine": "run.engine",
    "encrypt": "exchange.encrypt",
    "officers": "exchange.officers",
    "blind": "exchange.blind",
    "devices": "devices.preset",
    "seed": "run.seed",
    "name": "run.name",
}
"""Keys of all options but those of `TABLES`, which write several."""
TABLES = {
    "select": ("selection", "name", "fedprof:alpha=10,fraction=0.1"),
    "privacy": ("privacy", "level", "record:sigma=1.2,records=250"),
}
"""Table, the key that comes first, and an example, for each option that writes several keys."""
LISTS = {"corruptions"}
TEXTS = {"layer"}
"""Keys of `--select` whose value may look like a number."""


def settings_of(options: Mapping[str, str | float | None]) -> list[str]:
    """Return the settings that the given options stand for; an option that is None was not given.

    Raises:
        ConfigError: `--select`, `--privacy` or `--quality` is not written as its help says.
    """
    return [
        setting
        for option, value in options.items()
        if value is not None
        for setting in (
            _named(option, str(value))
            if option in TABLES
            else [f"{KEYS[option]}={_written(option, value)}"]
        )
    ]


def _written(option: str, value: str | float) -> str:
    if isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, str):
        return str(value)
    if option in LISTS:
        return json.dumps([part.strip() for part in value.split(",")])
    return _shares(value) if option == "quality" else json.dumps(value)


def _named(option: str, value: str) -> Iterator[str]:
    """Yield `fedprof:alpha=10,fraction=0.1` as selection.name, .alpha and .fraction."""
    table, first, example = TABLES[option]
    name, colon, keys = value.partition(":")
    if option == "select" and name and name not in SELECTORS.names() and keys[:1].isupper():
        own, colon, keys = keys.partition(":")  # a class of the user's own module
        name = f"{name}:{own}"
    yield f"{table}.{first}={json.dumps(name.strip())}"
    for part in keys.split(",") if colon else ():
        key, equals, given = part.partition("=")
        if not (key.strip() and equals and given.strip()):
            raise ConfigError(
                f"--{option} {value}: write {first.upper()}:KEY=VALUE,KEY=VALUE, for example "
                f"{example}"
            )
        yield f"{table}.{key.strip()}={json.dumps(given) if key.strip() in TEXTS else given}"


def _shares(value: str) -> str:
    """Return `irrelevant:0.15,blurred:0.2` as a TOML table."""
    shares: dict[str, float] = {}
    for part in value.split(","):
        name, _, share = (piece.strip() for piece in part.partition(":"))
        try:
            number = float(share)
        except ValueError:
            raise ConfigError(
                f"--quality {value}: write NAME:SHARE,NAME:SHARE, for example "
                "irrelevant:0.15,blurred:0.2"
            ) from None
        if name in shares:
            raise ConfigError(f"--quality {value}: {name} more than once; give its share once")
        shares[name] = number
    return f"{{{', '.join(f'{json.dumps(name)} = {share}' for name, share in shares.items())}}}"

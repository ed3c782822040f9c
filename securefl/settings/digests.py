"""Digests of settings, by which parties know that theirs are alike, or where they differ."""

import hashlib
import json
from collections.abc import Mapping
from typing import TypeAlias

from pydantic.main import IncEx

from securefl.settings.tables import Config

Digests: TypeAlias = Mapping[str, Mapping[str, str]]
"""Short digest of each setting, by table and key."""
OWN: IncEx = {"data": {"root"}, "run": {"name"}}
"""Settings that are each process's own affair: the place of the data, and names."""
_MEMBERS: IncEx = {"data": {"root", "names"}, "run": {"name"}}
_SITES: IncEx = {"data": {"root", "names", "clients"}, "run": {"name"}}
"""The same where sites bring their own data: the number of names deals nothing out."""


def settings_digest(config: Config) -> str:
    """Return the name of the settings that all processes share."""
    return _digest(config.model_dump(mode="json", exclude=OWN))


def study_digest(config: Config) -> str:
    """Return the name of the settings whoever takes part: the same once sites have joined."""
    who = _SITES if config.samples else _MEMBERS
    return _digest(config.model_dump(mode="json", exclude=who))


def digests_by_setting(config: Config, exclude: IncEx | None = OWN) -> dict[str, dict[str, str]]:
    """Return a short digest of each setting, by its table and key; none of a table that is none."""
    return {
        table: {key: _digest(value)[:16] for key, value in (settings or {}).items()}
        for table, settings in config.model_dump(mode="json", exclude=exclude).items()
    }


def _digest(value: object) -> str:
    """Return the SHA-256, in hex, of a value of JSON; keys of a table are in no order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def differing(one: Digests, other: Digests) -> str:
    """Return in which settings two parties differ, as a message has it.

    Of a table that one of them has alone, its name.
    """
    names = list[str]()
    for table in sorted({*one, *other}):
        own, theirs = one.get(table, {}), other.get(table, {})
        if own and theirs:
            keys = sorted({*own, *theirs})
            names += [f"{table}.{key}" for key in keys if own.get(key) != theirs.get(key)]
        elif own or theirs:
            names.append(table)
    return ", ".join(names) or "what nobody knows"

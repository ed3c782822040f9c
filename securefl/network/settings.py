"""Settings that separate processes run, and the digest by which all know that theirs are alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from securefl.build.exchange import quorum_of
from securefl.errors import ConfigError
from securefl.exchange.card_keys import Quorum
from securefl.settings.devices import DevicesTable
from securefl.settings.tables import Config

OWN = {"data": {"root"}, "run": {"name"}}
"""Settings that are each process's own affair: the place of the data, and names."""


_MEMBERS = {"data": {"root", "names"}, "run": {"name"}}
_SITES = {"data": {"root", "names", "clients"}, "run": {"name"}}
"""The same where sites bring their own data: the number of names deals nothing out."""


def settings_digest(config: Config) -> str:
    """Return the name of the settings that all processes share."""
    return hashlib.sha256(config.model_dump_json(exclude=OWN).encode()).hexdigest()


def study_digest(config: Config) -> str:
    """Return the name of the settings whoever takes part: the same once sites have joined."""
    who = _SITES if config.samples else _MEMBERS
    return hashlib.sha256(config.model_dump_json(exclude=who).encode()).hexdigest()


def table_digests(config: Config) -> dict[str, str]:
    """Return a short name of each table, so that two processes find out where theirs differ."""
    tables = json.loads(config.model_dump_json(exclude=OWN))
    return {
        name: hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]
        for name, table in tables.items()
    }


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return in which tables two parties' settings differ, as a message has it."""
    names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    return ", ".join(f"[{name}]" for name in names)


def check_scope(config: Config) -> None:
    """Raise ConfigError where processes do not run these settings: one table alone."""
    if config.devices != DevicesTable():
        raise ConfigError(
            "[devices]: separate processes are as fast as they are and simulate none; leave the "
            "table out, or run in one process with: securefl run"
        )


def check_officers(config: Config, quorum: Quorum) -> None:
    """Raise ConfigError where the consortium's officers are not those of the settings."""
    asked = quorum_of(config)
    if config.needs_cards and asked != quorum:
        raise ConfigError(
            f"exchange.officers = {asked.officers}, of whom {asked.needed} open sums, and the "
            f"consortium's keys are of {quorum.officers}, of whom {quorum.needed} do: set "
            f"exchange.officers = {quorum.officers} and exchange.threshold = {quorum.needed}, or "
            "have the consortium name other officers (securefl keys officers set)"
        )

"""Settings that separate processes run, and the digest by which all know that theirs are alike."""

from __future__ import annotations

import hashlib

from securefl.config.devices import DevicesTable
from securefl.config.schema import Config
from securefl.errors import ConfigError


def settings_digest(config: Config) -> str:
    """Name the settings; where the data lie is each process's own affair."""
    own = {"data": {"root"}, "run": {"name"}}
    return hashlib.sha256(config.model_dump_json(exclude=own).encode()).hexdigest()


def check_scope(config: Config) -> None:
    """Raise ConfigError where processes do not run these settings: two tables alone."""
    if config.exchange.committee:
        raise ConfigError(
            f"exchange.committee = {config.exchange.committee}: separate processes have one "
            "authority; leave it out, or run in one process with: securefl run"
        )
    if config.devices != DevicesTable():
        raise ConfigError(
            "[devices]: separate processes are as fast as they are and simulate none; leave the "
            "table out, or run in one process with: securefl run"
        )


def check_authority(config: Config, has_authority: bool) -> None:
    """Raise ConfigError where there is an authority and nothing for it to open, or the reverse."""
    seals = config.exchange.seals_sums or config.exchange.seals_profiles
    if has_authority != seals:
        raise ConfigError(
            f"exchange.encrypt = {[str(part) for part in config.exchange.encrypt]}: encrypted "
            "messages need --authority, and messages in the clear do not"
        )

"""Settings that separate processes run."""

from securefl.build.exchange import quorum_of
from securefl.errors import ConfigError
from securefl.exchange.card_keys import Quorum
from securefl.settings.devices import DevicesTable
from securefl.settings.tables import Config


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

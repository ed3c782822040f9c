"""Tracker: an object that writes a run's rounds into somebody else's service."""

from importlib.util import find_spec
from typing import Protocol

from securefl.errors import ConfigError
from securefl.runs.loop import Result
from securefl.runs.round_metrics import RoundMetrics


class Tracker(Protocol):
    """Writer of rounds; `on_round` and `on_end` are what `securefl.run` takes by these names."""

    def on_round(self, metrics: RoundMetrics) -> None:
        """Write down a round."""

    def on_end(self, result: Result) -> None:
        """Write down that the run is complete, or has stopped by its own rule."""

    def end(self, *, failed: bool) -> None:
        """Write down that the run has ended, where no result tells it."""


def require_package(module: str, extra: str) -> None:
    """Raise ConfigError where a tracker's package is not installed."""
    if find_spec(module) is None:
        raise ConfigError(f"{extra} is not installed here: pip install 'securefl[{extra}]'")

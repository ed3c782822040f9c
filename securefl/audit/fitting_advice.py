"""Advice as a run's other settings take it: none that clashes with them stands as it is."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping

from securefl.audit.rules import MORE_NOISE
from securefl.build.job import job_of
from securefl.errors import ConfigError, DataError
from securefl.settings.load import with_changes
from securefl.settings.tables import Config
from securefl.task import Task

_SETTING = re.compile(r'(\w+)\.(\w+) = "(\w+)"')
_SENTENCES = re.compile(r"(?<=\.) ")


def fitting(do: str, config: Config, task: Task, noise: Callable[[], str]) -> str:
    """Return an advice to a run, with the reason in the place of what its settings do not take.

    Each sentence that names settings with their values is tried: the run's job is built with them.

    Args:
        do: advice of a rule.
        config: the run's settings.
        task: its model and data.
        noise: function that returns the advice to add noise to this run, for `MORE_NOISE`.
    """
    before, more_noise, after = do.partition(MORE_NOISE)
    tried = " ".join(_tried(said, config, task) for said in _SENTENCES.split(before))
    return tried + (noise() if more_noise else "") + after


def _tried(said: str, config: Config, task: Task) -> str:
    """Return a sentence, or the reason why its settings are not to be had."""
    changes: Mapping[str, dict[str, str]] = defaultdict(dict)
    for table, key, value in _SETTING.findall(said):
        changes[table][key] = value
    try:
        if changes:
            job_of(with_changes(config, changes), task)
    except (ConfigError, DataError) as error:
        advised = [found.group() for found in _SETTING.finditer(said)]
        why = str(error)
        for key in {setting.partition(" = ")[0] for setting in advised}:
            # A way out that leaves it as it is in the run is none here.
            why = re.sub(rf',? or (set )?{re.escape(key)} = "\w+"', "", why)
        return f"{' and '.join(advised)} does not go with this run's other settings: {why}."
    return said

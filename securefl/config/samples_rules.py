"""Settings that do not go with samples that sites bring themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from securefl.config.data import DataTable

if TYPE_CHECKING:
    from securefl.config.schema import Config


def reasons_against_samples(config: Config) -> Iterator[str]:
    """Yield why `[samples]` does not go with other settings."""
    others = config.data.model_fields_set - {"names"}
    if others and config.data != DataTable(names=config.data.names):
        yield (
            f"data.{min(others)} with [samples]: sites bring their own data; leave everything but "
            "data.names out of [data]"
        )
    if not config.data.names:
        yield "[samples] without data.names: name the sites as their certificates do"
    if config.algorithm.name == "centralised":
        yield (
            'algorithm.name = "centralised" with [samples]: nobody has the data of all sites; take '
            "another algorithm"
        )
    readers = {
        f'selection.name = "{config.selection.name}"': config.selection.name == "fedprof",
        f'fnr.name = "{config.fnr.name}"': config.fnr.name != "none",
        f"privacy.warm_up = {config.privacy.warm_up}": config.privacy.warm_up > 0,
    }
    for reader, reads in readers.items():
        if reads:
            yield f"{reader} with [samples]: reads public samples, of which the server has none"

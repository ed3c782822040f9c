"""Settings that do not go with samples that sites bring themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from securefl.config.table import Table

if TYPE_CHECKING:
    from securefl.config.schema import Config


def reasons_against_samples(config: Config) -> Iterator[str]:
    """Yield why `[samples]` does not go with other settings."""
    for key in _said(config.data, but={"names"}):
        yield (
            f"data.{key} with [samples]: sites bring their own data; leave everything but "
            "data.names out of [data]"
        )
    if not config.data.names:
        yield "[samples] without data.names: name the sites as their certificates do"
    if config.algorithm.name == "centralised":
        yield (
            'algorithm.name = "centralised" with [samples]: nobody has the data of all sites; take '
            "another algorithm"
        )
    for key in _said(config.model, but={"name", "dtype"}) if ":" in config.model.name else ():
        yield (
            f'model.{key} with model.name = "{config.model.name}": it is of our own models; leave '
            "it out"
        )
    readers = {
        f'selection.name = "{config.selection.name}"': config.selection.name == "fedprof",
        f'fnr.name = "{config.fnr.name}"': config.fnr.name != "none",
        f"privacy.warm_up = {config.privacy.warm_up}": config.privacy.warm_up > 0,
    }
    for reader, reads in readers.items():
        if reads:
            yield f"{reader} with [samples]: reads public samples, of which the server has none"
    if config.selection.name in {"data-share", "afl"}:
        yield (
            f'selection.name = "{config.selection.name}" with [samples]: asks sites for their '
            'sizes, which they do not tell; take "all" or "random"'
        )


def _said(table: Table, but: Collection[str]) -> list[str]:
    """Return the keys of a table that are not as they are by default."""
    fields = type(table).model_fields
    return [
        key
        for key, value in table
        if key not in but and value != fields[key].get_default(call_default_factory=True)
    ]

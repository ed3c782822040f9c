"""Settings that do not go with samples that sites bring themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from securefl.settings.reasons import shown
from securefl.settings.table import Table

if TYPE_CHECKING:
    from securefl.settings.tables import Config


def reasons_against_samples(config: Config) -> Iterator[str]:
    """Yield why `[samples]` does not go with other settings."""
    for key in _said(config.data, but={"names", "clients"}):
        yield (
            f"data.{key} = {shown(getattr(config.data, key))} with [samples]: sites bring their "
            "own data; leave everything but data.names out of [data]"
        )
    if not config.data.names:
        yield "[samples] without data.names: name the sites as their certificates do"
    if config.algorithm.joins_data:
        yield (
            f'algorithm.name = "{config.algorithm.name}" with [samples]: nobody has the data of '
            "all sites; take another algorithm"
        )
    for key in _said(config.model, but={"name", "dtype"}) if ":" in config.model.name else ():
        yield (
            f"model.{key} = {shown(getattr(config.model, key))} with model.name = "
            f'"{config.model.name}": it is of our own models; leave it out'
        )
    if config.model.gives_masks:
        yield (
            f'model.name = "{config.model.name}" with [samples]: it gives a class for each voxel, '
            "and sites have one target a sample; take another model"
        )
    form, fnr = config.samples, config.fnr
    if form and form.standardise and config.privacy.private:
        yield (
            f'samples.standardise = true with privacy.level = "{config.privacy.level}": means and '
            "deviations of columns are exact sums over records, of which ε would not count "
            "anything; set samples.standardise = false, and give columns of the size of one "
            "(samples.units)"
        )
    if form and form.public and not public_reader(config):
        yield (
            f'samples.public = "{form.public:.8}…": nothing in this run reads public samples, as '
            "FedProf, FNR-FL and privacy.warm_up do; leave it out"
        )
    if form and not form.classes and fnr.trains:
        yield (
            f'fnr.name = "{fnr.name}" without samples.classes: FNR-FL compares feature norms '
            f'class by class, and the targets are {form.targets.in_words}; set fnr.name = "none"'
        )


def public_reader(config: Config) -> str:
    """Return the setting that has public samples read; empty where nothing reads any."""
    if config.fnr.trains:
        return f'fnr.name = "{config.fnr.name}"'
    if config.selection.asks_for_profiles:
        return f'selection.name = "{config.selection.name}"'
    return f"privacy.warm_up = {config.privacy.warm_up}" if config.privacy.warm_up else ""


def sites_read_public(config: Config) -> bool:
    """Return True where each site trains on public samples; else the server alone reads them."""
    return config.fnr.refines


def _said(table: Table, but: Collection[str]) -> list[str]:
    """Return the keys of a table that are not as they are by default."""
    fields = type(table).model_fields
    return [
        key
        for key, value in table
        if key not in but and value != fields[key].get_default(call_default_factory=True)
    ]

"""Advice to add noise, with the algorithms that a run's own settings could take at each level."""

from collections.abc import Iterator

from securefl.audit.rules import MORE_NOISE
from securefl.errors import ConfigError
from securefl.settings.axes import (
    NORMALISATIONS,
    PRIVACY,
    Normalisation,
    PrivacyChoice,
    Weights,
)
from securefl.settings.load import parse_tables
from securefl.settings.tables import Config


def noise_advice(config: Config, *, has_bn: bool, fewest_records: int) -> str:
    """Return the advice to add noise to a run of these settings.

    It names an algorithm only where the rules between settings let the run have it, all else
    unchanged; none that joins the clients' data, or leaves no model that an audit could judge.

    Args:
        config: the run's settings.
        has_bn: True where its model has batch normalisation.
        fewest_records: number of records of the client with the fewest.
    """
    ways, refusals = list[str](), list[str]()
    for level in (kind for kind in PRIVACY.own().values() if kind.of_records or kind.of_clients):
        fitting = list[str]()
        for name, kind in _algorithms(config, level, has_bn=has_bn):
            try:
                _with_noise(config, kind, level, fewest_records)
            except ConfigError as error:
                refusals.append(str(error))
            else:
                own = " (as in this run)" if kind is type(config.algorithm) else ""
                fitting.append(f'"{name}"{own}')
        if fitting:
            at = level.model_fields[level.key].default
            ways.append(f'privacy.level = "{at}" with algorithm.name = {" or ".join(fitting)}')
    if not ways:
        return f"{MORE_NOISE} This run's other settings allow no noise: {min(refusals, key=len)}."
    weights = ""
    if config.algorithm.weights is not Weights.UNIFORM:
        weights = ', each with algorithm.weights = "uniform"'
    return f"{MORE_NOISE} This run's other settings allow {'; or '.join(ways)}{weights}."


def _algorithms(
    config: Config, level: type[PrivacyChoice], *, has_bn: bool
) -> Iterator[tuple[str, type[Normalisation]]]:
    """Yield the algorithms that this model may have with such noise, the run's own first."""
    own = {config.algorithm.name: type(config.algorithm)}
    for name, kind in {**own, **NORMALISATIONS.own()}.items():
        audited = kind.global_model and kind.serves_others and not kind.joins_data
        # BN mixes records in a batch, so that records are hidden in what freezes it alone.
        mixing = level.of_records and has_bn and not kind.releases_statistics
        if audited and not mixing and (has_bn or not kind.needs_bn):
            yield name, kind


def _with_noise(
    config: Config, kind: type[Normalisation], level: type[PrivacyChoice], records: int
) -> None:
    """Raise ConfigError where the run's other settings do not go with this noise."""
    tables = config.model_dump()
    if kind is not type(config.algorithm):
        common = Normalisation.model_fields.keys()
        tables["algorithm"] = {key: tables["algorithm"][key] for key in common}
        tables["algorithm"]["name"] = kind.model_fields["name"].default
    tables["algorithm"]["weights"] = Weights.UNIFORM
    if level is not type(config.privacy):
        tables["privacy"] = {level.key: level.model_fields[level.key].default}
        if level.of_records:
            tables["privacy"]["records"] = records
    parse_tables(Config, tables)

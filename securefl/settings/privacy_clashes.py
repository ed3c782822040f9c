"""Settings that have no sound meaning together with differential privacy, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from securefl.settings.axes import NORMALISATIONS

if TYPE_CHECKING:
    from securefl.settings.tables import Config


def reasons_against_privacy(config: Config) -> Iterator[str]:
    """Yield reasons, each with the way out; nothing where the settings go together."""
    yield from _unread(config)
    if config.privacy.level == "none":
        return
    if config.algorithm.weights != "uniform":
        yield (
            f'privacy.level with algorithm.weights = "{config.algorithm.weights}": weights tell '
            "how many records a client has, and let one client count more than another; set "
            'algorithm.weights = "uniform"'
        )
    if config.selection.repeats:
        yield (
            f'privacy.level = "{config.privacy.level}" with selection.replacement = "with": a '
            "client could count twice in a sum, and a round have fewer shares of the noise; set "
            'selection.replacement = "without"'
        )
    yield from _record(config) if config.privacy.level == "record" else _client(config)


def _unread(config: Config) -> Iterator[str]:
    """Settings that nothing reads."""
    table, released = config.privacy, config.algorithm.releases_statistics
    profiled = config.selection.profiles
    record, client = table.level == "record", table.level == "client"
    shared = client or (record and released)
    reads = {
        "sigma": record or client,
        "clip": record or client,
        "clipping": record or client,
        "quantile": table.clipping == "adaptive",
        "delta": record or client,
        "budget": record or client,
        "records": record,
        "dropouts": shared,
        "colluders": shared,
        "releases": record and released and not table.warm_up,
        "warm_up": record and released,
        "statistics_sigma": (record and released) or (profiled and (record or client)),
        "statistics_clip": (record and (released or profiled)) or (client and config.fnr.refines),
        "score_clip": client and profiled,
        "noise": record or client,
    }
    for key, read in reads.items():
        default = type(table).model_fields[key].get_default()
        if not read and getattr(table, key) != default:
            yield (
                f"privacy.{key} = {getattr(table, key)!r} is read by nothing in this run, of "
                f'privacy.level = "{table.level}" and algorithm.name = "{config.algorithm.name}": '
                "leave it out"
            )


def _record(config: Config) -> Iterator[str]:
    algorithm, solver = config.algorithm, config.solver
    if algorithm.mixes_records:
        yield (
            f'privacy.level = "record" with algorithm.name = "{algorithm.name}": '
            f"{algorithm.mixes_records}, so that no clip bounds what one record does; "
            f"algorithm.name = {_releasing()} freezes BN and releases its statistics with noise"
        )
    yield from algorithm.clashes_with_records(config)
    if algorithm.local_epochs is not None:
        yield (
            f'privacy.level = "record" with algorithm.local_epochs = {algorithm.local_epochs}: '
            "how many steps a client takes would tell how many records it has; give "
            "algorithm.local_steps"
        )
    if solver.second_gradient:
        yield (
            f'privacy.level = "record" with solver.name = "{solver.name}": '
            f"{solver.second_gradient}, which DP-SGD does not clip; take another solver"
        )
    if solver.follows_refinement and config.fnr.refines:
        yield (
            f'privacy.level = "record" with solver.name = "{solver.name}" and fnr.name = '
            f'"{config.fnr.name}": the solver follows the refinement, and not through DP-SGD; take '
            "another solver"
        )
    if config.train.precision == "bfloat16":
        yield (
            'privacy.level = "record" with train.precision = "bfloat16": norms of gradients would '
            "be off by 0.4 %, and a clipped one longer than the noise is for; leave "
            "train.precision out"
        )
    yield from _public_numbers(config)


def _public_numbers(config: Config) -> Iterator[str]:
    table, batch = config.privacy, config.train.batch_size
    if table.records is None:
        yield (
            'privacy.level = "record" needs privacy.records: how many records the smallest client '
            "has, a public number, of which train.batch_size are sampled in a step"
        )
        return
    if batch >= table.records:
        yield (
            f"train.batch_size = {batch} with privacy.records = {table.records}: must be below it, "
            "so that a sample leaves records out; have a smaller batch"
        )


def _client(config: Config) -> Iterator[str]:
    algorithm, name, table = config.algorithm, config.algorithm.name, config.privacy
    if algorithm.pools:
        yield (
            f'privacy.level = "client" with algorithm.name = "{name}": clients send sums in the '
            "middle of a step, each of which would be a noisy release, and variances that noise "
            f'makes negative; take {_releasing()} or "fedavg"'
        )
    if algorithm.alone:
        yield (
            f'privacy.level = "client" with algorithm.name = "{name}": nothing is added up in '
            'which a client could hide; take privacy.level = "record"'
        )
    if table.clipping == "ghost":
        yield (
            'privacy.clipping = "ghost" is of records\' gradients: with privacy.level = "client" '
            'take "flat"'
        )
    if config.server.counts_steps:
        yield (
            f'privacy.level = "client" with server.name = "{config.server.name}": the server '
            "divides by the clients' steps, which would have noise; take server.name = "
            '"average"'
        )


def _releasing() -> str:
    return NORMALISATIONS.those(lambda kind: kind.releases_statistics)

"""Which settings have no sound meaning together with differential privacy, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from securefl.settings.families import ALONE, POOLED, REFINED

if TYPE_CHECKING:
    from securefl.settings.tables import Config

MIXES = {
    "fedtan": "every record's gradient depends on all records of all clients' batches",
    "fedtan-ii": "every record's gradient depends on all records of all clients' batches",
    "forward-only": "every record's output depends on all records of all clients' batches",
    "static-bn": "statistics are measured on the clients' records without noise",
    "fedbn": "each client normalises a record by the others of its batch",
    "silobn": "each client normalises a record by the others of its batch",
    "local-affine": "each client normalises a record by the others of its batch",
}
"""Algorithms in which records act on each other."""
SECOND_PASS = {"moon": "its contrast is a second term", "per-fedavg": "a step takes two gradients"}
FIXBN = 'algorithm.name = "fixbn" freezes BN and releases its statistics with noise'


def reasons_against_privacy(config: Config) -> Iterator[str]:
    """Each with the way out; nothing where the settings go together."""
    yield from _unread(config)
    if config.privacy.level == "none":
        return
    if config.algorithm.weights != "uniform":
        yield (
            f'privacy.level with algorithm.weights = "{config.algorithm.weights}": weights tell '
            "how many records a client has, and let one client count more than another; set "
            'algorithm.weights = "uniform"'
        )
    if config.selection.replacement == "with":
        yield (
            f'privacy.level = "{config.privacy.level}" with selection.replacement = "with": a '
            "client could count twice in a sum, and a round have fewer shares of the noise; set "
            'selection.replacement = "without"'
        )
    yield from _record(config) if config.privacy.level == "record" else _client(config)


def _unread(config: Config) -> Iterator[str]:
    """Settings that nothing reads."""
    table, fixbn = config.privacy, config.algorithm.name == "fixbn"
    profiled = config.selection.name == "fedprof"
    record, client = table.level == "record", table.level == "client"
    shared = client or (record and fixbn)
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
        "releases": record and fixbn and not table.warm_up,
        "warm_up": record and fixbn,
        "statistics_sigma": (record and fixbn) or (profiled and (record or client)),
        "statistics_clip": (record and (fixbn or profiled))
        or (client and config.fnr.name in REFINED),
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
    algorithm, name = config.algorithm, config.algorithm.name
    if name in MIXES:
        yield (
            f'privacy.level = "record" with algorithm.name = "{name}": {MIXES[name]}, so that no '
            f"clip bounds what one record does; {FIXBN}"
        )
    if name == "fixbn" and algorithm.freeze == "affine":
        yield (
            'privacy.level = "record" with algorithm.freeze = "affine": batches would go on being '
            'normalised by themselves; freeze "statistics" or "both"'
        )
    if name == "fixbn" and algorithm.switch == "window":
        yield (
            'privacy.level = "record" with algorithm.switch = "window": to watch batch statistics '
            "settle would be a release of its own in each round; give a round, or a share"
        )
    devices = config.devices
    if name == "fixbn" and not config.privacy.warm_up and (devices.dropout or devices.deadline_s):
        yield (
            'privacy.level = "record" with algorithm.name = "fixbn" and devices.dropout or '
            "devices.deadline_s: the round that releases BN statistics could pass without clients, "
            "and all others train without them; leave these out, or set privacy.warm_up"
        )
    default = type(algorithm).model_fields["switch"].get_default()
    if name == "fixbn" and config.privacy.releases == 1 and algorithm.switch != default:
        yield (
            f"algorithm.switch = {algorithm.switch} with privacy.releases = 1: the one release is "
            "before the first round, and nothing reads when the last one would be; leave it out"
        )
    if name == "fixbn" and config.selection.aggregation == "full":
        yield (
            'privacy.level = "record" with algorithm.name = "fixbn" and selection.aggregation = '
            '"full": clients that stay away would count with the statistics from before a release, '
            'and mix them into it; set selection.aggregation = "partial"'
        )
    if algorithm.local_epochs is not None:
        yield (
            f'privacy.level = "record" with algorithm.local_epochs = {algorithm.local_epochs}: '
            "how many steps a client takes would tell how many records it has; give "
            "algorithm.local_steps"
        )
    if config.solver.name in SECOND_PASS:
        yield (
            f'privacy.level = "record" with solver.name = "{config.solver.name}": '
            f"{SECOND_PASS[config.solver.name]}, which DP-SGD does not clip; take another solver"
        )
    if config.solver.name == "feddyn" and config.fnr.name in REFINED:
        yield (
            'privacy.level = "record" with solver.name = "feddyn" and fnr.name = '
            f'"{config.fnr.name}": FedDyn follows the refinement, and not through DP-SGD; take '
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
    name, table = config.algorithm.name, config.privacy
    if name in POOLED:
        yield (
            f'privacy.level = "client" with algorithm.name = "{name}": clients send sums in the '
            "middle of a step, each of which would be a noisy release, and variances that noise "
            'makes negative; take "fixbn" or "fedavg"'
        )
    if name in ALONE:
        yield (
            f'privacy.level = "client" with algorithm.name = "{name}": nothing is added up in '
            'which a client could hide; take privacy.level = "record"'
        )
    if name == "fixbn" and config.algorithm.switch == "window":
        yield (
            'privacy.level = "client" with algorithm.switch = "window": the noise on what each '
            "client's window says would hide that it is full; give a round, or a share"
        )
    if table.clipping == "ghost":
        yield (
            'privacy.clipping = "ghost" is of records\' gradients: with privacy.level = "client" '
            'take "flat"'
        )
    if config.server.name == "fednova":
        yield (
            'privacy.level = "client" with server.name = "fednova": the server divides by the '
            'clients\' steps, which would have noise; take server.name = "average"'
        )

"""Settings that do not go together, each with its reason and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from securefl.settings.data import DOMAIN_DATASETS, REGRESSIONS
from securefl.settings.families import (
    ADAPTIVE,
    ALONE,
    CORRECTED,
    DRAWN,
    DRIFTING,
    FREEZE_BN,
    POOLED,
    REFINED,
    SELECTED,
    STATISTICS_STAY,
)
from securefl.settings.privacy_clashes import reasons_against_privacy
from securefl.settings.samples_clashes import reasons_against_samples

if TYPE_CHECKING:
    from securefl.settings.tables import Config

MAX_STEPS = 8000
"""Below the largest value that is sealed, 8192."""
READ_BY = {
    "algorithm": {
        "switch": FREEZE_BN,
        "window": {"fixbn"},
        "threshold": {"fixbn"},
        "freeze": {"fixbn"},
    },
    "solver": {
        "mu": {"fedprox", "moon"},
        "temperature": {"moon"},
        "alpha": DRIFTING,
        "inner_lr": {"per-fedavg"},
    },
    "server": {
        "lr": {"momentum", *ADAPTIVE},
        "momentum": {"momentum"},
        "beta1": ADAPTIVE,
        "beta2": {"fedadam", "fedyogi"},
        "tau": ADAPTIVE,
    },
    "selection": {
        "fraction": SELECTED,
        "aggregation": SELECTED,
        "fairness": SELECTED,
        "replacement": DRAWN,
        "alpha": {"fedprof"},
        "alpha_by_client": {"fedprof"},
        "layer": {"fedprof"},
        "excluded": {"afl"},
        "sharpness": {"afl"},
        "uniform": {"afl"},
    },
    "fnr": {
        "share": REFINED,
        "strength": REFINED,
        "epochs": {*REFINED, "server"},
        "batch_size": {*REFINED, "server"},
    },
}
"""By table, which names read a key."""


def reads_public(config: Config) -> bool:
    """Whether something in this run needs public samples."""
    selection, fnr, warm_up = config.selection.name, config.fnr.name, config.privacy.warm_up
    return selection == "fedprof" or fnr != "none" or warm_up > 0


def reasons_against(config: Config) -> Iterator[str]:
    """Why this combination has no meaning; nothing where it has one."""
    yield from _unread(config)
    yield from _normalisation(config)
    yield from _solver(config)
    yield from _momentum(config)
    yield from _selection(config)
    yield from _public(config)
    if config.data.dataset in REGRESSIONS:
        yield from _regression(config)
    if config.samples is not None:
        yield from reasons_against_samples(config)
    elif ":" in config.model.name:
        yield (
            f'model.name = "{config.model.name}" goes with [samples] alone, where sites bring '
            "their own data; in a simulation of your own, give securefl.Task your model"
        )
    if config.exchange.encrypt:
        yield from _encrypted(config)
    yield from _officers(config)
    if config.exchange.blind:
        yield from _blind(config)
    if config.data.names and (config.sites.quorum or 0) > len(config.data.names):
        yield (
            f"sites.quorum = {config.sites.quorum}: there are {len(config.data.names)} clients "
            "(data.names), so no round would ever begin"
        )
    yield from reasons_against_privacy(config)
    if config.algorithm.name in ALONE:
        yield from _alone(config)


def _unread(config: Config) -> Iterator[str]:
    for table_name, keys in READ_BY.items():
        table = getattr(config, table_name)
        for key, readers in keys.items():
            value = getattr(table, key)
            default = type(table).model_fields[key].get_default(call_default_factory=True)
            if value != default and table.name not in readers:
                names = " or ".join(f'"{name}"' for name in sorted(readers))
                yield (
                    f"{table_name}.{key} = {value!r} is read with {table_name}.name = {names} "
                    f'alone, not with "{table.name}": leave it out'
                )


def _normalisation(config: Config) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.moments == "fused" and algorithm.name not in {"fedtan", "fedtan-ii"}:
        yield (
            'algorithm.moments = "fused" goes with algorithm.name = "fedtan" or "fedtan-ii" alone, '
            f'not with "{algorithm.name}"'
        )
    if algorithm.switch == "window" and algorithm.name == "fedtan-ii":
        yield (
            'algorithm.switch = "window" with algorithm.name = "fedtan-ii": FedTAN-II has a fixed '
            "M; give a round or a share of the rounds"
        )

    if (
        algorithm.name in FREEZE_BN
        and isinstance(algorithm.switch, int)
        and algorithm.switch >= config.run.rounds
    ):
        yield (
            f"algorithm.switch = {algorithm.switch} with run.rounds = {config.run.rounds}: BN "
            "would never be frozen; give an earlier round, or a share of the rounds such as 0.5"
        )
    sealed, refines = config.exchange.encrypt, config.fnr.name in REFINED
    alone = "statistics" in sealed and "model" not in sealed and not refines  # FNR-FL's are sealed
    if algorithm.name in STATISTICS_STAY and alone:
        yield (
            f'algorithm.name = "{algorithm.name}" with exchange.encrypt = "statistics": statistics '
            'stay with the clients, so nothing would be encrypted; set exchange.encrypt = "model", '
            'or "none"'
        )


def _solver(config: Config) -> Iterator[str]:
    solver, server, name = config.solver.name, config.server.name, config.algorithm.name
    if solver in DRIFTING and server != "average":
        yield (
            f'solver.name = "{solver}" with server.name = "{server}": its server takes a step of '
            'its own from the average; set server.name = "average"'
        )
    if solver == "per-fedavg" and name in POOLED:
        yield (
            f'solver.name = "per-fedavg" with algorithm.name = "{name}": a step has two forward '
            "and backward passes, and FedTAN pools one; use another solver, or algorithm.name = "
            '"fedavg"'
        )


def _momentum(config: Config) -> Iterator[str]:
    train = config.train
    if train.momentum_across_rounds == "global" and train.momentum == 0:
        yield (
            'train.momentum_across_rounds = "global" with train.momentum = 0: there is nothing to '
            'average; set train.momentum, 0.9 for example, or "reset"'
        )

    if train.momentum_across_rounds != "reset" and config.server.name == "fednova":
        yield (
            f'train.momentum_across_rounds = "{train.momentum_across_rounds}" with server.name = '
            '"fednova": FedNova counts the steps of momentum that begins each round at zero; set '
            '"reset", or server.name = "average"'
        )


def _selection(config: Config) -> Iterator[str]:
    selection, solver, sealed = config.selection, config.solver.name, config.exchange.encrypt
    if "profiles" in sealed and selection.name != "fedprof":
        yield (
            f'exchange.encrypt = "profiles" with selection.name = "{selection.name}": no profile '
            'is sent; set selection.name = "fedprof", or leave "profiles" out'
        )
    if "profiles" in sealed and selection.alpha == "theorem1":
        yield (
            'exchange.encrypt = "profiles" with selection.alpha = "theorem1": clients are drawn by '
            'data share and send no profile; give a number, or leave "profiles" out'
        )
    if selection.name == "cfcfm" and config.devices.specification is None:
        yield (
            'selection.name = "cfcfm" takes the first clients to submit, and without devices none '
            "is faster: set devices.preset, or the devices' speeds"
        )
    if selection.aggregation == "full" and solver in DRIFTING:
        yield (
            f'selection.aggregation = "full" with solver.name = "{solver}": its server makes the '
            'next model of the mean of those present; set selection.aggregation = "partial"'
        )
    if selection.replacement == "with" and solver in CORRECTED:
        yield (
            f'selection.replacement = "with" with solver.name = "{solver}": its correction is a '
            "mean over clients, each with what it keeps itself, and one that counts twice in a "
            'round keeps it once; set selection.replacement = "without"'
        )
    if selection.replacement == "with" and config.exchange.seals_sums:
        parts = ", ".join(f'"{part}"' for part in sorted(sealed))
        yield (
            f'selection.replacement = "with" with exchange.encrypt = [{parts}]: the server says '
            "how often each client counts, and one that counts most often is nearly all of a "
            'sealed total; set selection.replacement = "without", or exchange.encrypt = "none"'
        )


def _public(config: Config) -> Iterator[str]:
    data, selection, fnr = config.data, config.selection.name, config.fnr.name
    if data.dataset in DOMAIN_DATASETS and (reads_public(config) or data.public):
        reader = f"data.public = {data.public}"
        if reads_public(config):
            reader = f'fnr.name = "{fnr}"' if fnr != "none" else f'selection.name = "{selection}"'
        if config.privacy.warm_up:
            reader = f"privacy.warm_up = {config.privacy.warm_up}"
        yield (
            f'data.dataset = "{data.dataset}" with {reader}: a public set is set aside of data '
            "that a partition deals, and these come by domain; take another data set, or give one "
            "in Python with Task(public=…)"
        )


def _regression(config: Config) -> Iterator[str]:
    dataset, model, fnr = config.data.dataset, config.model.name, config.fnr.name
    if model != "mlp":
        yield (
            f'model.name = "{model}" with data.dataset = "{dataset}": readings are no images; set '
            'model.name = "mlp"'
        )
    if fnr != "none":
        yield (
            f'fnr.name = "{fnr}" with data.dataset = "{dataset}": FNR-FL compares feature norms '
            'class by class, and the targets are numbers; set fnr.name = "none"'
        )


def _encrypted(config: Config) -> Iterator[str]:
    algorithm, exchange = config.algorithm, config.exchange
    finest = 2.0 ** (4 - exchange.precision_bits)
    if algorithm.switch == "window" and algorithm.threshold < finest:
        yield (
            f"algorithm.threshold = {algorithm.threshold}: the authority releases a variance to "
            f"{exchange.precision_bits} bits after the point, so it must be at least {finest:.3g}"
        )
    most = algorithm.local_steps / (1 - config.train.momentum)
    if config.server.name == "fednova" and "model" in exchange.encrypt and most > MAX_STEPS:
        yield (
            f'server.name = "fednova" with algorithm.local_steps = {algorithm.local_steps}: its '
            f"count of steps, {most:.0f} with this momentum, is sealed as a value of at most "
            f"{MAX_STEPS}; take fewer local steps"
        )


def _officers(config: Config) -> Iterator[str]:
    exchange = config.exchange
    threshold, n_officers = exchange.threshold, exchange.officers
    if threshold and not n_officers / 2 < threshold <= n_officers:
        yield (
            f"exchange.threshold = {threshold} of exchange.officers = {n_officers}: must be more "
            "than half of them, or two halves could be shown two lists of clients; and at most all"
        )
    if n_officers > 1 and config.privacy.level == "client" and config.seals_scores:
        yield (
            f'exchange.officers = {n_officers} with privacy.level = "client" and sealed profiles: '
            "the server adds up officers' answers, so nobody could add noise to a score before it "
            "is read; have one authority, or select by something else than profiles"
        )
    if n_officers > 1 and not config.needs_cards:
        yield (
            f"exchange.officers = {n_officers} open what is encrypted, and exchange.encrypt leaves "
            'all in the clear: set exchange.encrypt = "statistics" or "model", or leave them out'
        )


def _blind(config: Config) -> Iterator[str]:
    exchange, name, fnr = config.exchange, config.algorithm.name, config.fnr.name
    if exchange.officers > 1:
        yield (
            f"exchange.blind with exchange.officers = {exchange.officers}: the server adds up the "
            "officers' answers, and so reads all totals; leave one of the two out"
        )
    if not exchange.seals_sums:
        yield (
            "exchange.blind, and exchange.encrypt leaves all sums in the clear, which the server "
            'reads: set exchange.encrypt = "statistics" or "model", or leave exchange.blind out'
        )
    releases = name == "fixbn" and config.privacy.level == "record"  # DP-FixBN's moments
    if not (name in POOLED or fnr in REFINED or releases):
        yield (
            f'exchange.blind with algorithm.name = "{name}" and fnr.name = "{fnr}": the server '
            'applies all totals of these and so reads them; take algorithm.name = "fedtan", whose '
            "statistics are clients' alone, or leave exchange.blind out"
        )


def _alone(config: Config) -> Iterator[str]:
    name = config.algorithm.name
    if config.exchange.encrypt:
        yield (
            f'algorithm.name = "{name}" sends nothing that could be encrypted: set '
            'exchange.encrypt = "none"'
        )
    if config.server.name != "average":
        yield (
            f'algorithm.name = "{name}" with server.name = "{config.server.name}": no models are '
            'averaged, so the server has no step to take; set server.name = "average"'
        )
    if config.selection.name != "all":
        yield (
            f'algorithm.name = "{name}" with selection.name = "{config.selection.name}": no round '
            'joins clients of whom some could stay away; set selection.name = "all"'
        )
    if config.fnr.name != "none":
        yield (
            f'algorithm.name = "{name}" with fnr.name = "{config.fnr.name}": FNR-FL compares the '
            'clients of a round; set fnr.name = "none"'
        )
    if config.solver.name != "sgd":
        yield (
            f'algorithm.name = "{name}" with solver.name = "{config.solver.name}": there is no '
            'global model for a federated solver to hold on to; set solver.name = "sgd"'
        )
    if config.train.momentum_across_rounds == "global":
        yield (
            f'algorithm.name = "{name}" with train.momentum_across_rounds = "global": nothing is '
            'averaged; set "local"'
        )

"""Settings that do not go together, each with its reason and the way out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from securefl.data.catalogue import Targets
from securefl.errors import ConfigError
from securefl.settings.axes import NORMALISATIONS, SELECTORS
from securefl.settings.choice import OpenChoice
from securefl.settings.reasons import shown
from securefl.settings.table import Table
from securefl.types import LOSS, PROFILE, SIZE

if TYPE_CHECKING:
    from securefl.settings.tables import Config

MAX_STEPS = 8000
"""Below the largest value that is sealed, 8192."""
ANSWERS = {SIZE: "n_samples", LOSS: "loss", PROFILE: "divergence"}
"""Quantities that a selector reads (`Standing`), by the answers of clients that it may ask for."""


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


def reasons_against(config: Config) -> Iterator[str]:
    """Yield reasons why this combination has no meaning; nothing where it has one."""
    for choice in config.choices:
        yield from _traits(choice)
        yield from choice.clashes(config)
    yield from _normalisation(config)
    yield from _solver(config)
    yield from _momentum(config)
    yield from _selection(config)
    yield from _public(config)
    yield from _data_set(config)
    yield from config.run.clashes(config)
    if config.samples is not None:
        yield from _samples_of_sites(config)
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
    names = config.data.names
    if names and (too_many := above(config.sites.quorum, len(names), " (data.names)")):
        yield too_many
    yield from config.privacy.clashes(config)
    if config.algorithm.alone:
        yield from _alone(config)
    if config.algorithm.needs_bn and not config.model.has_bn:
        linear, norm = config.model.width == 0, f'model.norm = "{config.model.norm}"'
        yield (
            f"{'model.width = 0' if linear else norm} with algorithm.name = "
            f'"{config.algorithm.name}": it needs batch normalisation, and the model has none; set '
            'model.norm = "batch" and no width of 0, or algorithm.name = "fedavg" with '
            'exchange.encrypt = "model" or "none"'
        )


def above(quorum: int | None, n_clients: int, of: str = "") -> str:
    """Return the reason against a quorum of more clients than there are; empty for none.

    Args:
        quorum: `sites.quorum`.
        n_clients: that train.
        of: the setting that says how many these are, in brackets.
    """
    if quorum is None or quorum <= n_clients:
        return ""
    return (
        f"sites.quorum = {quorum}: there are {n_clients} clients{of}, so no round would ever "
        "begin; have a smaller one, or leave it out"
    )


def require_global_model(config: Config) -> None:
    """Raise ConfigError for a run whose clients share nothing, or no whole model."""
    algorithm = config.algorithm
    if not algorithm.serves_others:
        raise ConfigError(
            f'algorithm.name = "{algorithm.name}" keeps {algorithm.kept} at its clients, and those '
            "of the global model are from before training, so there is none to score on other "
            'data; use "fedavg" or another that averages all'
        )
    if not algorithm.global_model:
        raise ConfigError(
            f'algorithm.name = "{algorithm.name}" trains no global model, so there is none '
            "to score on "
            'other data; use "fedavg" or another that averages'
        )


def _normalisation(config: Config) -> Iterator[str]:
    sealed, algorithm = config.exchange.encrypt, config.algorithm
    alone = "statistics" in sealed and "model" not in sealed
    if algorithm.statistics_stay and alone and not config.fnr.refines:  # FNR-FL's are sealed
        yield (
            f'algorithm.name = "{algorithm.name}" with exchange.encrypt = "statistics": statistics '
            'stay with the clients, so nothing would be encrypted; set exchange.encrypt = "model", '
            'or "none"'
        )


def _solver(config: Config) -> Iterator[str]:
    solver, server, algorithm = config.solver, config.server, config.algorithm
    if solver.follows_refinement and server.counts_steps and config.fnr.refines:
        yield (
            f'solver.name = "{solver.name}" with server.name = "{server.name}" and fnr.name = '
            f'"{config.fnr.name}": what the solver keeps follows the refinement, and not through '
            'a division by steps; set server.name = "average"'
        )
    if solver.server_half and server.takes_step:
        yield (
            f'solver.name = "{solver.name}" with server.name = "{server.name}": its server takes a '
            'step of its own from the average; set server.name = "average"'
        )
    if solver.passes > 1 and algorithm.pools:
        yield (
            f'solver.name = "{solver.name}" with algorithm.name = "{algorithm.name}": a step has '
            "two forward and backward passes, and FedTAN pools one; use another solver, or "
            'algorithm.name = "fedavg"'
        )


def _momentum(config: Config) -> Iterator[str]:
    train = config.train
    if train.momentum_across_rounds == "global" and train.momentum == 0:
        yield (
            'train.momentum_across_rounds = "global" with train.momentum = 0: there is nothing to '
            'average; set train.momentum, 0.9 for example, or "reset"'
        )

    if train.momentum_across_rounds != "reset" and config.server.counts_steps:
        yield (
            f'train.momentum_across_rounds = "{train.momentum_across_rounds}" with server.name = '
            f'"{config.server.name}": the steps are counted of momentum that begins each round at '
            'zero; set "reset", or server.name = "average"'
        )


def _traits(choice: OpenChoice) -> Iterator[str]:
    traits = (vars(base).items() for base in type(choice).__mro__)
    for name in {name for name, due in chain(*traits) if isinstance(due, bool) and name[0] != "_"}:
        if not isinstance(found := getattr(choice, name), bool):
            has = f"{choice.name}: its class has {name} = {shown(found)}"
            yield f"{has}, which must be True or False"


def _selection(config: Config) -> Iterator[str]:
    selection, solver = config.selection, config.solver
    if not isinstance(selection.asked, tuple):
        yield (
            f'selection.name = "{selection.name}": its class has asks = {shown(selection.asked)}, '
            f"which must be a tuple of names, as in asks = ({SIZE!r},)"
        )
        return
    for name in selection.asked:
        if name not in ANSWERS:
            yield (
                f'selection.name = "{selection.name}" asks clients for {shown(name)}: its `asks` '
                f"names no other answers than {', '.join(map(repr, ANSWERS))}"
            )
    if selection.needs_devices and config.devices.specification is None:
        yield (
            f'selection.name = "{selection.name}" goes by the time that each client takes, and '
            "without devices none is faster: set devices.preset, or the devices' speeds"
        )
    asks = {*selection.asks, *selection.asked}  # of which its keys may leave some out: its own rule
    if "profiles" in config.exchange.encrypt and PROFILE not in asks:
        yield (
            f'exchange.encrypt = "profiles" with selection.name = "{selection.name}": no profile '
            f"is sent; set selection.name = {SELECTORS.those(lambda kind: PROFILE in kind.asks)}, "
            'or leave "profiles" out'
        )
    if selection.counts_all and solver.server_half:
        yield (
            f'selection.aggregation = "full" with solver.name = "{solver.name}": its server makes '
            'the next model of the mean of those present; set selection.aggregation = "partial"'
        )
    for key, choice in (("solver", solver), ("algorithm", config.algorithm)):
        if selection.repeats and choice.corrected:
            yield (
                f'selection.replacement = "with" with {key}.name = "{choice.name}": its correction '
                "is a mean over clients, each with what it keeps itself, and one that counts twice "
                'in a round keeps it once; set selection.replacement = "without"'
            )
    if selection.repeats and config.exchange.seals_sums:
        parts = ", ".join(f'"{part}"' for part in sorted(config.exchange.encrypt))
        yield (
            f'selection.replacement = "with" with exchange.encrypt = [{parts}]: the server says '
            "how often each client counts, and one that counts most often is nearly all of a "
            'sealed total; set selection.replacement = "without", or exchange.encrypt = "none"'
        )


def _public(config: Config) -> Iterator[str]:
    data = config.data
    reader = public_reader(config) or (f"data.public = {data.public}" if data.public else "")
    if data.traits.by_domain and reader:
        yield (
            f'data.dataset = "{data.dataset}" with {reader}: a public set is set aside of data '
            "that a partition deals, and these come by domain; take another data set, or give one "
            "in Python with Task(public=…)"
        )


def _data_set(config: Config) -> Iterator[str]:
    dataset, model, fnr = config.data.dataset, config.model.name, config.fnr
    inputs, targets = config.data.traits.inputs, config.data.traits.targets
    takes = config.model.takes
    if inputs not in takes and config.samples is None:
        yield (
            f'model.name = "{model}" with data.dataset = "{dataset}": {inputs} are no '
            f"{' or '.join(sorted(takes))}; set model.name = {config.model.those_for(inputs)}"
        )
    if targets is not Targets.CLASSES and fnr.trains:
        yield (
            f'fnr.name = "{fnr.name}" with data.dataset = "{dataset}": FNR-FL compares feature '
            f"norms class by class, and the targets are {targets.in_words}; set fnr.name = "
            '"none"'
        )


def _encrypted(config: Config) -> Iterator[str]:
    steps = config.algorithm.local_steps
    most = steps / (1 - config.train.momentum)
    sealed = "model" in config.exchange.encrypt
    if config.server.counts_steps and sealed and most > MAX_STEPS:
        yield (
            f'server.name = "{config.server.name}" with algorithm.local_steps = {steps}: its count '
            f"of steps, {most:.0f} with this momentum, is sealed as a value of at most "
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
    if n_officers > 1 and config.privacy.of_clients and config.seals_scores:
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
    exchange, algorithm, fnr = config.exchange, config.algorithm, config.fnr
    if exchange.officers > 1:
        yield (
            f"exchange.blind with exchange.officers = {exchange.officers}: the server adds up the "
            "officers' answers, and so reads all totals; leave one of the two out"
        )
    if not exchange.seals_sums:
        yield (
            "exchange.blind = true, and exchange.encrypt leaves all sums in the clear, which the "
            'server reads: set exchange.encrypt = "statistics" or "model", or leave exchange.blind '
            "out"
        )
    released = algorithm.releases_statistics and config.privacy.of_records
    if not (algorithm.pools or algorithm.measures or fnr.refines or released):
        yield (
            f'exchange.blind with algorithm.name = "{algorithm.name}" and fnr.name = "{fnr.name}": '
            "the server applies all totals of these and so reads them; take algorithm.name = "
            f"{NORMALISATIONS.those(lambda kind: kind.pools or kind.measures)}, whose statistics "
            "are clients' alone, or leave exchange.blind out"
        )


def _alone(config: Config) -> Iterator[str]:
    name = config.algorithm.name
    if config.exchange.encrypt:
        yield (
            f'algorithm.name = "{name}" sends nothing that could be encrypted: set '
            'exchange.encrypt = "none"'
        )
    if config.server.takes_step:
        yield (
            f'algorithm.name = "{name}" with server.name = "{config.server.name}": no models are '
            'averaged, so the server has no step to take; set server.name = "average"'
        )
    if config.selection.selects:
        yield (
            f'algorithm.name = "{name}" with selection.name = "{config.selection.name}": no round '
            'joins clients of whom some could stay away; set selection.name = "all"'
        )
    if config.fnr.trains:
        yield (
            f'algorithm.name = "{name}" with fnr.name = "{config.fnr.name}": FNR-FL compares the '
            'clients of a round; set fnr.name = "none"'
        )
    if config.solver.holds_to_global:
        yield (
            f'algorithm.name = "{name}" with solver.name = "{config.solver.name}": there is no '
            'global model for a federated solver to hold on to; set solver.name = "sgd"'
        )
    if config.train.momentum_across_rounds == "global":
        yield (
            f'algorithm.name = "{name}" with train.momentum_across_rounds = "global": nothing is '
            'averaged; set "local"'
        )


def _samples_of_sites(config: Config) -> Iterator[str]:
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


def _said(table: Table, but: Collection[str]) -> list[str]:
    """Return the keys of a table that are not as they are by default."""
    fields = type(table).model_fields
    return [
        key
        for key, value in table
        if key not in but and value != fields[key].get_default(call_default_factory=True)
    ]

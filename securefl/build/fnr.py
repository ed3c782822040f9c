"""The check that public samples are no client's, and that FNR-FL has clients enough.

It compares contents, on every run with a public set, also for a task of the user's own,
before anything is written; each sample of the task is hashed once for it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch

from securefl.algorithms.algorithm import Algorithm
from securefl.algorithms.fnr import FNR
from securefl.algorithms.public_training import ServerTuned
from securefl.build.exchange import least_clients
from securefl.data.public import check_disjoint, record_digests
from securefl.data.samples import Samples, samples
from securefl.errors import DataError
from securefl.settings.axes import REFINEMENTS
from securefl.settings.tables import Config
from securefl.task import Task

_SITES_WAY_OUT = (
    "leave these out of the public file, which changes samples.public for all parties; or the site "
    "leaves such samples out of its own file, which tells nobody that it had them"
)


def config_at(config: Config, task: Task, here: Collection[str] | None) -> Config:
    """Return the settings without the server's training on public samples, at a party without.

    Args:
        config: the settings of all parties.
        task: the party's own.
        here: clients whose samples the party has; None for all, as in a simulation.
    """
    if here is None or task.public is not None or not config.fnr.trains or config.fnr.refines:
        return config
    return config.model_copy(update={"fnr": REFINEMENTS.by_default()})


def check_refinement(
    config: Config,
    task: Task,
    algorithm: Algorithm,
    clients: Mapping[str, Samples],
    here: Collection[str],
) -> None:
    """Check that public samples are no client's, and that a round has clients enough for FNR-FL.

    Args:
        config: the settings.
        task: the run's.
        algorithm: the run's.
        clients: each client's samples.
        here: clients whose samples these are; for the others' something of the same form stands.

    Raises:
        ConfigError: too few clients.
        DataError: a client holds a public sample, or is tested on one.
    """
    if isinstance(algorithm, FNR):
        algorithm.n_refined(config.selection.n_selected(len(clients)))
    others = {name: clients[name] for name in here}
    others |= dict(_tested(task) if config.samples is None else _tested_at(task, clients, here))
    for public in _public_sets(task, algorithm):
        _check_alike(public, *next(iter(clients.items())))
        if config.samples is None:
            check_disjoint(public, others)
        else:
            # Lines of a table may have equal inputs by chance; pictures and arrays do not.
            digests = record_digests if config.samples.columns else None
            check_disjoint(public, others, digests, _SITES_WAY_OUT)


def _check_alike(public: Samples, client: str, data: Samples) -> None:
    first = torch.arange(1)
    (x, _), (theirs, _) = public.take(first), data.take(first)
    if x.shape != theirs.shape or x.dtype != theirs.dtype:
        raise DataError(
            f"a public sample is {tuple(x.shape[1:])} of {x.dtype}, and one of {client} "
            f"{tuple(theirs.shape[1:])} of {theirs.dtype}: must be alike"
        )


def fewest_clients(config: Config, algorithm: Algorithm) -> int:
    """Return the least clients of a round: with fewer no total is opened, or none is refined."""
    return max(
        least_clients(config), algorithm.fewest_clients() if isinstance(algorithm, FNR) else 1
    )


def expected_public(algorithm: Algorithm) -> float:
    """Return the expected number of public samples that a client trains on in a round."""
    if not isinstance(algorithm, FNR):
        return 0.0
    return algorithm.share * algorithm.public.epochs * len(algorithm.public.samples)


def _public_sets(task: Task, algorithm: Algorithm) -> Iterator[Samples]:
    if task.public is not None:
        yield samples(task.public, "the public set")
    if task.algorithm is not None and isinstance(algorithm, FNR | ServerTuned):
        yield algorithm.public.samples


def _tested_at(
    task: Task, clients: Iterable[str], here: Collection[str]
) -> Iterator[tuple[str, Samples]]:
    """Yield the test samples of sites with their own data; there are no common ones."""
    for name, data in zip(clients, task.client_tests, strict=False):  # an audit's shadows have none
        if name in here:
            owner = f"the test data of {name}"
            yield owner, samples(data, owner)


def _tested(task: Task) -> Iterator[tuple[str, Samples]]:
    tests = {"the test data": task.test}
    tests |= {f"the test data of client-{i}": data for i, data in enumerate(task.client_tests, 1)}
    tests |= {f"the external client {name}": data for name, data in task.external.items()}
    for owner, data in tests.items():
        yield owner, samples(data, owner)

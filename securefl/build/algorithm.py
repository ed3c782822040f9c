"""The algorithm of a run: a choice on each axis, with privacy and refinement around it."""

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from securefl.algorithms.algorithm import Algorithm, Sgd
from securefl.algorithms.federated import Federated, Momentum
from securefl.algorithms.refinements import RefinementContext
from securefl.algorithms.servers.drift import DriftServer
from securefl.algorithms.servers.fednova import effective_steps
from securefl.build.exchange import sealed_kinds
from securefl.build.own_choices import OwnPolicy, OwnServer, OwnSolver, require_refined
from securefl.data.resident import near
from securefl.data.samples import samples
from securefl.errors import ConfigError
from securefl.federation.training import Training
from securefl.settings.axes import NORMALISATIONS, SERVERS, SOLVERS
from securefl.settings.tables import Config
from securefl.task import Task
from securefl.types import Kind, Plan, State


def algorithm_of(config: Config, task: Task, training: Training, n_clients: int) -> Algorithm:
    """Build the algorithm of the task or, where it has none, of the settings.

    Raises:
        ConfigError: the task's is none, or nobody knows whether it is private.
    """
    algorithm = task.algorithm
    if algorithm is None:
        chosen = chosen_algorithm(config, sealed_kinds(config))
        private = config.privacy.around_training(config, chosen, n_clients, training.batch_size)
        return _refined(config, task, private, training.sgd)
    if config.privacy.private:
        raise ConfigError(
            f'privacy.level = "{config.privacy.level}" with an algorithm of your own: nobody knows '
            "what it sends of a record; name one of the settings' algorithms, or leave privacy out"
        )
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"{algorithm!r:.80} is no algorithm: it needs the methods init, plan, client "
            "and update of securefl.algorithms.algorithm.Algorithm"
        )
    state = algorithm.init(task.model)
    _require("init", state, State)
    _require("plan", algorithm.plan(state, task.model), Plan)
    return algorithm


def _require(method: str, found: object, kind: type) -> None:
    if not isinstance(found, kind):
        raise ConfigError(
            f"the algorithm's {method}() gave a {type(found).__name__}: it must return a "
            f"securefl.types.{kind.__name__}"
        )


def chosen_algorithm(config: Config, sealed: frozenset[Kind] = frozenset()) -> Federated:
    """Build normalisation, solver, server optimiser and momentum; `sealed` kinds are encrypted."""
    steps = effective_steps(config.algorithm.local_steps, config.train.momentum)
    solver, server = config.solver.build(), config.server.build(steps)
    if SOLVERS.is_own(type(config.solver)):
        solver = OwnSolver(config.solver, solver)
    if SERVERS.is_own(type(config.server)):
        server = OwnServer(config.server, server)
    chosen = Federated(
        config.algorithm.build(config.run.rounds),
        config.server.around(solver, steps),
        DriftServer() if config.solver.server_half else server,
        Momentum(config.train.momentum_across_rounds),
        sealed,
        config.exchange.min_clients,
    )
    if not NORMALISATIONS.is_own(type(config.algorithm)):
        return chosen
    return replace(chosen, normalisation=OwnPolicy(config.algorithm, chosen.normalisation))


def _refined(config: Config, task: Task, inner: Federated, sgd: Callable[[int], Sgd]) -> Algorithm:
    """Wrap `inner` in the refinement that the settings name.

    Raises:
        ConfigError: it needs public samples, and the task has none.
    """
    if not config.fnr.trains:
        return inner
    if task.public is None:
        raise ConfigError(
            f'fnr.name = "{config.fnr.name}" trains on public samples, and the task has none: give '
            'it some that no client holds, Task(public=(x, y)); or set fnr.name = "none"'
        )
    found = {"the public set": samples(task.public, "the public set")}
    (held,) = near(found, task.model).values()
    noisy = config.privacy.of_clients
    seed = config.run.seed
    context = RefinementContext(held, task.model, task.loss, sgd, seed, noisy=noisy)
    refined: Algorithm = config.fnr.around(inner, context)
    require_refined(config.fnr, refined)
    return refined


def plans(algorithm: Algorithm, model: nn.Module) -> Callable[[int], Plan]:
    """Return the plan of a round's messages as a function of the number of rounds before it."""
    first = algorithm.init(model)
    return lambda done: algorithm.plan(replace(first, round=done), model)

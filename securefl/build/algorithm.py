"""The algorithm that the settings name: one choice on each axis."""

from __future__ import annotations

from securefl.algorithms.federated import Federated, Momentum
from securefl.algorithms.normalisation.client_bn import ClientBN, Keep
from securefl.algorithms.normalisation.fedtan import FedTAN
from securefl.algorithms.normalisation.fixbn import FixBN
from securefl.algorithms.normalisation.policy import Normalisation, aggregated
from securefl.algorithms.normalisation.static_bn import static_bn
from securefl.algorithms.normalisation.window import Window
from securefl.algorithms.servers.adaptive import Adaptive, Rule
from securefl.algorithms.servers.average import Average
from securefl.algorithms.servers.drift import DriftServer
from securefl.algorithms.servers.fednova import FedNova, Normalised, effective_steps
from securefl.algorithms.servers.momentum import ServerMomentum
from securefl.algorithms.servers.server_optimiser import ServerOptimiser
from securefl.algorithms.solvers.feddc import FedDC
from securefl.algorithms.solvers.feddyn import FedDyn
from securefl.algorithms.solvers.fedprox import FedProx
from securefl.algorithms.solvers.moon import Moon
from securefl.algorithms.solvers.per_fedavg import PerFedAvg
from securefl.algorithms.solvers.scaffold import Scaffold
from securefl.algorithms.solvers.sgd import SGD
from securefl.algorithms.solvers.solver import Solver
from securefl.exchange.moments import Gradients, Moments
from securefl.norms.frozen import Freeze
from securefl.privacy.clipping import Clipping
from securefl.privacy.randomness import RandomnessOf, Seeded, secret
from securefl.selection.selector import clients_per_round
from securefl.settings.families import DRIFTING, FREEZE_BN
from securefl.settings.tables import Config
from securefl.types import Kind


def chosen_algorithm(config: Config, sealed: frozenset[Kind] = frozenset()) -> Federated:
    """Build normalisation, solver, server optimiser and momentum; `sealed` kinds are encrypted."""
    return Federated(
        _normalisation(config),
        _solver(config),
        _server(config),
        Momentum(config.train.momentum_across_rounds),
        sealed,
    )


def n_selected(config: Config, n_clients: int) -> int:
    """Return K, the number of clients of a round."""
    if config.selection.name == "all":
        return n_clients
    return clients_per_round(config.selection.fraction, n_clients)


def switch_round(config: Config) -> int | None:
    """Return the rounds before BN is frozen; None where it never is, or where a window decides."""
    switch = config.algorithm.switch
    if config.algorithm.name not in FREEZE_BN or isinstance(switch, str):
        return None
    return config.rounds_in(switch) if isinstance(switch, float) else switch


def clipping_of(config: Config) -> Clipping:
    """Return the rule that bounds norms; an adaptive C clips flat."""
    adaptive = config.privacy.clipping == "adaptive"
    return Clipping.FLAT if adaptive else Clipping(config.privacy.clipping)


def randomness_of(config: Config) -> RandomnessOf:
    """Return the source of all of a client's noise."""
    return Seeded if config.privacy.noise == "seeded" else secret


def clients_keep_layers(config: Config) -> bool:
    """Return whether a part of the model is each client's own (client-specific BN)."""
    return isinstance(_normalisation(config), ClientBN)


def divergence_advice(config: Config, rounds_done: int) -> str:
    """Return why these settings may have diverged after so many rounds, and a remedy."""
    if config.algorithm.name not in FREEZE_BN:
        return ""
    switch = switch_round(config)
    if switch is not None and rounds_done < switch:
        return ""
    return (
        f". {config.algorithm.name} has frozen BN: nothing rescales activations any more, so a "
        f"learning rate that BN bore is too large now. Let it drop when BN is frozen, for example "
        "train.lr_drops = [0.5, 0.75] with algorithm.switch = 0.5"
    )


def _normalisation(config: Config) -> Normalisation:
    table, moments = config.algorithm, Moments(config.algorithm.moments)
    switch = switch_round(config)
    match table.name:
        case "fedtan" | "fedtan-ii":
            return FedTAN(moments, pooled_rounds=switch)
        case "forward-only":
            return FedTAN(gradients=Gradients.OWN)
        case "fixbn":
            found = Window(table.window, table.threshold) if switch is None else switch
            return FixBN(found, Freeze(table.freeze))
        case "fedbn" | "silobn" | "local-affine" | "singlenet":
            return ClientBN(Keep(table.name))
        case "static-bn":
            return static_bn
        case "fedavg" | "centralised":  # centralised is FedAvg of one client that has everything
            return aggregated


def _solver(config: Config) -> Solver:
    table = config.solver
    solver: Solver
    match table.name:
        case "sgd":
            solver = SGD()
        case "fedprox":
            solver = FedProx(0.01 if table.mu is None else table.mu)
        case "scaffold":
            solver = Scaffold()
        case "moon":
            solver = Moon(1.0 if table.mu is None else table.mu, table.temperature)
        case "feddyn":
            solver = FedDyn(table.alpha)
        case "feddc":
            solver = FedDC(table.alpha)
        case "per-fedavg":
            solver = PerFedAvg(table.inner_lr)
    nova = config.server.name == "fednova"
    return Normalised(solver, _expected_steps(config)) if nova else solver


def _expected_steps(config: Config) -> float:
    return effective_steps(config.algorithm.local_steps, config.train.momentum)


def _server(config: Config) -> ServerOptimiser:
    if config.solver.name in DRIFTING:
        return DriftServer()
    table = config.server
    lr = table.lr or (0.01 if table.name in {"fedadam", "fedyogi"} else 0.1)
    match table.name:
        case "average":
            return Average()
        case "momentum":
            return ServerMomentum(lr, table.momentum)
        case "fednova":
            return FedNova(_expected_steps(config))
        case "fedadam" | "fedadagrad" | "fedyogi":
            return Adaptive(Rule(table.name), lr, table.beta1, table.beta2, table.tau)

"""The algorithm that the settings name: one choice on each axis."""

from __future__ import annotations

from securefl.algorithms.federated import Federated, Momentum
from securefl.algorithms.servers.drift import DriftServer
from securefl.algorithms.servers.fednova import effective_steps
from securefl.settings.tables import Config
from securefl.types import Kind


def chosen_algorithm(config: Config, sealed: frozenset[Kind] = frozenset()) -> Federated:
    """Build normalisation, solver, server optimiser and momentum; `sealed` kinds are encrypted."""
    steps = effective_steps(config.algorithm.local_steps, config.train.momentum)
    server = DriftServer() if config.solver.server_half else config.server.build(steps)
    return Federated(
        config.algorithm.build(config.run.rounds),
        config.server.around(config.solver.build(), steps),
        server,
        Momentum(config.train.momentum_across_rounds),
        sealed,
    )


def divergence_advice(config: Config, rounds_done: int) -> str:
    """Return why these settings may have diverged after so many rounds, and a remedy."""
    if config.algorithm.frozen is None:
        return ""
    switch = config.algorithm.switch_round(config.run.rounds)
    if switch is not None and rounds_done < switch:
        return ""
    return (
        f". {config.algorithm.name} has frozen BN: nothing rescales activations any more, so a "
        f"learning rate that BN bore is too large now. Let it drop when BN is frozen, for example "
        "train.lr_drops = [0.5, 0.75] with algorithm.switch = 0.5"
    )

"""The server's half of FedDyn (Acar et al., ICLR 2021) and of FedDC (Gao et al., CVPR 2022).

    H ← H + P Δ,    w̄ ← Σ_S (p_i / P) w_i + H,    Δ = Σ_S (p_i / P) w_i - w̄

S are the round's clients and P is their weight as a share of all clients'. A client's drift h_i
moves by w_i - w̄, so H stays Σ p_i h_i over *all* clients, and no message carries it. FedDyn's own
h is -α H: its Algorithm 1 divides by the α that it has multiplied with.
"""

from dataclasses import dataclass

from securefl.algorithms.servers.server_optimiser import Averaged, Stepped
from securefl.types import NamedTensors

DRIFT = "drift"


@dataclass(frozen=True, slots=True)
class DriftServer:
    """The average and the mean drift of all clients, those that stay away included."""

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """Return H = 0."""
        return {f"{DRIFT}/{name}": w.new_zeros(w.shape) for name, w in parameters.items()}

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """Return the average, moved on by H."""
        moves, share = averaged.moves(), averaged.share
        drift = {f"{DRIFT}/{name}": kept[f"{DRIFT}/{name}"] + share * moves[name] for name in moves}
        model = {name: w + drift[f"{DRIFT}/{name}"] for name, w in averaged.mean.items()}
        return model, {**kept, **drift}

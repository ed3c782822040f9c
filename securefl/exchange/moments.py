"""Mean and variance of one layer's input over the batches of all clients.

Axes: B batch, C channels; the axes in between (H, W) count with B.
FedTAN Eqs. (39)-(41), in the paper's two messages forward or in one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from securefl.exchange.collective import client_sum, with_gradient_sum
from securefl.exchange.sums import Exchange
from securefl.types import Gradients, Kind, MessageSpec, Moments, Total

Channels = Float[Tensor, " C"]
Batch = Float[Tensor, "B C ..."]


@dataclass(frozen=True, slots=True)
class Pooled:
    """Moments of the union of the clients' batches."""

    mu_C: Channels
    var_C: Channels
    """Biased variance: divided by the number of values, as in the papers."""
    share: float | Channels
    """Share p_i of this client in the union; of clients side by side, by channel."""


def channel_mean(y: Batch) -> Channels:
    """Return the mean over all axes but the channel axis."""
    return y.mean(dim=[axis for axis in range(y.dim()) if axis != 1])


def along_channels(x_C: Channels, like: Batch) -> Tensor:
    """Return `x_C` shaped so that it broadcasts over `like`."""
    return x_C.view(1, -1, *(1,) * (like.dim() - 2))


def two_pass(
    exchange: Exchange, layer: str, own: Sequence[Channels], gradients: Gradients
) -> Pooled:
    """Return (μ, σ²) by Algorithms 2 and 3: messages `layer`/mean, /variance and /gradient.

    `own` are the mean and the biased variance of this client's batch.
    """
    mu_i_C, own_var_C = own
    mu_C = exchange.sum(f"{layer}/mean", {"mean": mu_i_C.detach()}).values["mean"]  # Eq. (39)
    # μ is a constant here: that σ² depends on it adds nothing to Σ p_i ∂F_i (App. A).
    var_i_C = own_var_C + (mu_i_C - mu_C).square()
    total = exchange.sum(f"{layer}/variance", {"variance": var_i_C.detach()})
    var_C = total.values["variance"]  # Eq. (40)
    share = _share(exchange, total, mu_i_C)
    if gradients is Gradients.OWN:
        return Pooled(
            mu_i_C + (mu_C - mu_i_C).detach(), var_i_C + (var_C - var_i_C).detach(), share
        )
    values = {"mean": mu_i_C, "variance": var_i_C}
    totals = {"mean": mu_C, "variance": var_C}
    out = with_gradient_sum(exchange, f"{layer}/gradient", values, totals)  # Eq. (41)
    return Pooled(out["mean"], out["variance"], share)


def fused(exchange: Exchange, layer: str, own: Sequence[Channels], reference_C: Channels) -> Pooled:
    """Return (μ, σ²) by one message forward (`layer`/sum) and one backward (`layer`/gradient).

    `own` as for `two_pass`. `reference_C` is the same at every client, and near μ (the last pooled
    mean): of σ² the difference of the two means squared is taken away, and as many digits with it.
    """
    mu_i_C, var_i_C = own
    shift_i_C = mu_i_C - reference_C
    values = {"mean": shift_i_C, "square": var_i_C + shift_i_C.square()}
    total = client_sum(exchange, layer, values)
    shift_C, square_C = total.values["mean"], total.values["square"]
    var_C = (square_C - shift_C.square()).clamp_min(0.0)
    return Pooled(reference_C + shift_C, var_C, _share(exchange, total, reference_C))


def _share(exchange: Exchange, total: Total, like_C: Channels) -> float | Channels:
    weight: float | Tensor = exchange.weight
    if isinstance(weight, Tensor):
        return weight.repeat_interleave(len(like_C) // len(weight)).to(like_C) / total.weight
    return weight / total.weight


def moment_messages(
    layer: str, n_channels: int, moments: Moments, gradients: Gradients
) -> list[MessageSpec]:
    """Return the messages that one layer's moments take, in order."""
    if moments is Moments.FUSED:
        forward = [MessageSpec(f"{layer}/sum", Kind.STATISTICS, 2 * n_channels)]
    else:
        forward = [
            MessageSpec(f"{layer}/mean", Kind.STATISTICS, n_channels),
            MessageSpec(f"{layer}/variance", Kind.STATISTICS, n_channels),
        ]
    if gradients is Gradients.OWN:
        return forward
    return [*forward, MessageSpec(f"{layer}/gradient", Kind.GRADIENTS, 2 * n_channels)]

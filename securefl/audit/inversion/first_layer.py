"""Inputs that the gradient of a first linear layer gives away.

The gradient is dW = δᵀ X with δ of shape (B, M) and X of shape (B, D), and that of the bias is the
sum of δ over the batch. So is a sum of updates, with all samples of all clients in one X.

Axes: B samples, M units of the layer, D features of an input.
"""

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

N_DRAWS = 20_000
"""Sets of B - 1 units that are tried; of 2^(B-1) / B about one gives an input's direction."""
MAX_BATCH = 12
"""Largest mini-batch for which N_DRAWS are enough."""
RANK = 1e-2
"""Smallest singular value of unit vectors that is not zero; 1/q is as long at most."""
TOLERANCE = 1e-4
"""Share of the unit's largest possible value below which a number is a rounded zero."""


def first_linear(model: nn.Module, x: Tensor) -> str | None:
    """Return the name of the linear layer with a bias that gets the inputs, flat, if any."""
    found: list[str] = []

    def hook(name: str) -> Any:
        def note(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen = inputs[0]
            flat = seen.dim() == 2 and seen.numel() == x.numel()
            if flat and seen.data_ptr() == x.data_ptr():  # x itself, or a view of it, such as flat
                found.append(name)

        return note

    watched = copy.deepcopy(model).eval()
    for name, layer in watched.named_modules():
        if type(layer) is nn.Linear and layer.bias is not None:
            layer.register_forward_pre_hook(hook(name))
    with torch.no_grad():
        watched(x)
    return found[0] if len(found) == 1 else None


def inputs_of(
    weight_MD: Float[Tensor, "M D"],
    bias_M: Float[Tensor, " M"],
    batch: int,
    rng: torch.Generator,
) -> Float[Tensor, "B D"] | None:
    """Return the batch's inputs in some order; None where the gradient does not give them away.

    One input is dW / db. Several are found as in Dimitrov et al., SPEAR (NeurIPS 2024): of the ways
    to write dW as a product of rank B, the true δ has a zero wherever a ReLU was off. It needs δ to
    be zero there: statistics of BN that are constants, whatever they are. Where one input's ReLUs
    are off wherever another's are, their mixture can have as many zeros, and is then found instead.
    """
    weight_MD, bias_M = weight_MD.double(), bias_M.double()
    if batch == 1:
        square = bias_M.square().sum()
        return (bias_M @ weight_MD / square)[None] if square > 0 else None
    u_MK, s_K, v_KD = torch.linalg.svd(weight_MD, full_matrices=False)
    if not 1 < batch <= min(MAX_BATCH, len(s_K)) or s_K[batch - 1] <= 1e-6 * s_K[0]:
        return None
    left_MB, right_BD = u_MK[:, :batch] * s_K[:batch], v_KD[:batch]
    directions_BB = _sparse_directions(left_MB, rng)
    if directions_BB is None:
        return None
    length_B = torch.linalg.lstsq(left_MB @ directions_BB, bias_M[:, None]).solution[:, 0]
    found: Tensor = torch.linalg.solve(directions_BB * length_B, right_BD)
    return found


def _sparse_directions(
    left_MB: Float[Tensor, "M B"], rng: torch.Generator
) -> Float[Tensor, "B B"] | None:
    """Return columns q for which `left` q has the most zeros, as many as the batch has inputs."""
    norm_M = left_MB.norm(dim=1)
    alive_MB = left_MB[norm_M > 1e-4 * norm_M.max()]
    alive_MB = alive_MB / alive_MB.norm(dim=1, keepdim=True)
    m, batch = alive_MB.shape
    if m <= batch:
        return None
    drawn_NM = torch.rand(N_DRAWS, m, generator=rng, dtype=torch.float64).argsort(1)
    # q is orthogonal to B - 1 units, and has 1 along a direction of chance: a square system, whose
    # solution is long where the units are dependent, so that there is no single q.
    chance_1B = torch.randn(1, batch, generator=rng, dtype=torch.float64).expand(N_DRAWS, 1, -1)
    square_NBB = torch.cat([alive_MB[drawn_NM[:, : batch - 1]], chance_1B], dim=1)
    last_B1 = torch.eye(batch, dtype=torch.float64)[:, -1:]
    null_NB = torch.linalg.solve_ex(square_NBB, last_B1.expand(N_DRAWS, -1, 1))[0][..., 0]
    length_N = null_NB.norm(dim=1)
    null_NB = (null_NB / length_N[:, None])[length_N < 1 / RANK]
    zeros_N = ((null_NB @ alive_MB.T).abs() < TOLERANCE).sum(1)
    found: list[Tensor] = []
    for i in zeros_N.argsort(descending=True, stable=True).tolist():
        if zeros_N[i] <= batch or len(found) == batch:
            break
        if torch.linalg.svdvals(torch.stack([*found, null_NB[i]]))[-1] > RANK:
            found.append(null_NB[i])
    return torch.stack(found, dim=1) if len(found) == batch else None

"""Images that each attacker rebuilds, with and without the statistics of BN.

Some inputs can be read off the first linear layer: its gradient is dW = δᵀ X with δ of shape (B, M)
and X of shape (B, D), and that of its bias is the sum of δ over the batch.

Axes: N mini-batches, B images of each, K classes, M units of the layer, D features of an input.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.audit.inversion.assumptions import (
    derived,
    fixed,
    freed,
    fresh,
    measured,
)
from securefl.audit.inversion.gradient_matching import Prior, Search, SeenGradient, match
from securefl.audit.inversion.hidden_statistics import (
    Attacker,
    HiddenStatistics,
    Images,
    compared,
    matched,
    psnr,
    ssim,
)
from securefl.audit.inversion.target import (
    Beliefs,
    MiniBatches,
    NormalisedBatch,
    Statistics,
    Target,
    mini_batches,
    running,
)

N_DRAWS = 20_000
"""Sets of B - 1 units that are tried; of 2^(B-1) / B about one gives an input's direction."""
MAX_BATCH = 12
"""Largest mini-batch for which N_DRAWS are enough."""
RANK = 1e-2
"""Smallest singular value of unit vectors that is not zero; 1/q is as long at most."""
TOLERANCE = 1e-4
"""Share of the unit's largest possible value below which a number is a rounded zero."""


def first_linear(model: nn.Module, x: Tensor) -> str | None:
    """Return the name of the linear layer with a bias that gets the inputs themselves, if any."""
    found: list[str] = []

    def hook(name: str) -> Any:
        def note(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if inputs[0] is x:
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


OUTSIDE = 0.1
"""Excess of a pixel over 0..1 from which a rebuilt image is taken for a failure."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """Images that one attacker made of N mini-batches, each beside its original."""

    images: Images
    """Images of shape (N B, height, width) or (N B, channels, height, width)."""
    psnr_NB: NDArray[np.float64]
    ssim_NB: NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Attacked:
    """Attacks on one target at one size of mini-batches."""

    target: Target
    batch: int
    originals: Images
    baseline: Rebuilt
    """Attack of nobody: the mean public image of the label's class."""
    by: Mapping[Attacker, Rebuilt]


def attacked(target: Target, n: int, batch: int, search: Search, seed: int) -> Attacked:
    """Make all attacks on n mini-batches; the same seed gives the same images.

    All have the same model, gradients, labels, public images, starts and steps.
    """
    resting = copy.deepcopy(target.model).cpu().eval()  # dropout is nobody's to know
    target = replace(target, model=resting)
    rng = torch.Generator().manual_seed(seed)
    batches = mini_batches(target, n, batch, rng)
    seen = _seen(target, batches)
    shape = (len(batches.x_NB) * batch, *target.picture_shape())
    originals = _array(batches.x_NB, shape)

    def scored(x_NB: Tensor) -> Rebuilt:
        return _scored(originals, _array(x_NB, shape), len(batches.x_NB))

    found = {}
    for attacker in attackers(target, batches):
        start = torch.Generator().manual_seed(seed + 1)
        found[attacker] = scored(_rebuilt(attacker, target, batches, seen, search, start))
    mean_NBD = seen.prior.mean_KD[batches.y_NB]
    return Attacked(target, batch, originals, scored(mean_NBD), found)


def protection(attacked: Attacked) -> HiddenStatistics:
    """Compare who knows the statistics with all who do not; intervals as in `units`."""
    return compared(
        attacked.baseline.psnr_NB, {name: one.psnr_NB for name, one in attacked.by.items()}
    )


def attackers(target: Target, batches: MiniBatches) -> list[Attacker]:
    """Return the attackers that there are: some need a bias, a linear layer, or constants.

    The running statistics are no case of their own where they are the exact ones, or fresh.
    """
    found = [Attacker.EXACT, Attacker.NONE, Attacker.PUBLIC, Attacker.JOINT]
    batch = batches.y_NB.shape[1]
    known, others = running(target.model), (batches.exact, fresh(target.model))
    if known and not any(_same(known, other) for other in others):
        found.insert(1, Attacker.POPULATION)
    if target.normalised is NormalisedBatch.GIVEN:
        found.append(Attacker.DERIVED)
    rank_one = batch == 1 and target.normalised is not NormalisedBatch.BATCH
    if (rank_one or target.normalised is NormalisedBatch.GIVEN) and first_linear(
        target.model, batches.x_NB[0]
    ):
        found.append(Attacker.FIRST_LAYER)
    return found


def _same(known: Statistics, other: Statistics) -> bool:
    return all(
        torch.allclose(mine.expand_as(theirs), theirs)
        for name in known
        for mine, theirs in zip(known[name], other[name], strict=True)
    )


def _seen(target: Target, batches: MiniBatches) -> SeenGradient:
    x, y = target.public
    n_classes = int(max(y.max(), target.client[1].max())) + 1
    prior = Prior.of(x, y, n_classes)
    shape = target.client[0].shape[1:]
    return SeenGradient(target.model, batches.gradients, batches.y_NB, shape, prior, batches.totals)


def _rebuilt(
    attacker: Attacker,
    target: Target,
    batches: MiniBatches,
    seen: SeenGradient,
    search: Search,
    rng: torch.Generator,
) -> Tensor:
    if attacker is Attacker.FIRST_LAYER:
        return _read_off(target, batches, seen, rng)
    beliefs = _beliefs(attacker, target, batches)
    by_batch = target.normalised is NormalisedBatch.BATCH
    known = batches.exact if by_batch and attacker is Attacker.EXACT else None
    return match(seen, beliefs, search, rng, known)


def _beliefs(attacker: Attacker, target: Target, batches: MiniBatches) -> Beliefs:
    model, n = target.model, len(batches.y_NB)
    own = target.normalised is NormalisedBatch.BATCH
    if own and attacker in (Attacker.EXACT, Attacker.JOINT):
        return {}
    if attacker is Attacker.EXACT:
        return fixed(model, batches.exact, n)
    if attacker in (Attacker.POPULATION, Attacker.NONE):
        return fixed(model, (running if attacker is Attacker.POPULATION else fresh)(model), n)
    public = fixed(model, measured(model, target.public[0]), n)
    if attacker is Attacker.DERIVED:
        return derived(model, batches.gradients, target.public[0][:2], public)
    return freed(public) if attacker is Attacker.JOINT else public


def _read_off(
    target: Target, batches: MiniBatches, seen: SeenGradient, rng: torch.Generator
) -> Tensor:
    """Return inputs read off the first layer; where that fails, the mean public image."""
    name = first_linear(target.model, batches.x_NB[0])
    n, batch = batches.y_NB.shape
    mean_D = seen.prior.mean_KD.mean(0)
    found = mean_D.expand(n, batch, -1).clone()
    for i in range(n):
        weight_MD = batches.gradients[f"{name}.weight"][i]
        read_BD = inputs_of(weight_MD, batches.gradients[f"{name}.bias"][i], batch, rng)
        if read_BD is not None:
            inside_B = ((read_BD - 0.5).abs() < 0.5 + OUTSIDE).all(1)
            found[i, inside_B] = read_BD[inside_B].to(found.dtype)
    return found


def _array(x: Tensor, shape: tuple[int, ...]) -> Images:
    array: Images = x.detach().reshape(shape).clamp(0, 1).double().numpy()
    return array


def _scored(originals: Images, rebuilt: Images, n: int) -> Rebuilt:
    """Score images, each batch's in the order that fits best; the baseline's is by the labels."""
    parts = zip(np.split(originals, n), np.split(rebuilt, n), strict=True)
    images = np.concatenate([matched(a, b) for a, b in parts])
    return Rebuilt(
        images, psnr(originals, images).reshape(n, -1), ssim(originals, images).reshape(n, -1)
    )

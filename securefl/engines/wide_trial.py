"""Tries a model with two clients side by side: whether it computes what each computes alone."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from securefl.engines.wide_model import parts, side_by_side, wide
from securefl.errors import DataError
from securefl.norms.padded import Present, padded_batch_norm

_EXACT, _TOLERANCE = torch.float64, 1e-9
_SCALES = (1, 64)
"""Of the samples that a model is tried with: it may do to large ones what it does not to small."""


def require_separate(model: nn.Module, x: Tensor) -> None:
    """Raise DataError unless two clients side by side compute what each computes alone.

    Args:
        model: not changed.
        x: a few samples.
    """
    for scale in _SCALES:
        _require_separate(model, scale * x.to("cpu", _EXACT), 0)


def require_padded(model: nn.Module, x: Tensor) -> None:
    """As `require_separate`, where the second client's batch is shorter and padded."""
    for scale in _SCALES:
        _require_separate(model, scale * torch.cat([x, x]).to("cpu", _EXACT), 1)


def _require_separate(model: nn.Module, x: Tensor, n_missing: int) -> None:
    rng = torch.Generator().manual_seed(0)
    both, alone = two_clients(model, rng)
    try:
        with torch.random.fork_rng([]):
            together, apart = _both_ways(both, alone, x, n_missing, rng)
    except DataError:
        raise
    except Exception as error:  # a user's forward may raise anything
        raise DataError(
            f"its forward does not run side by side in double precision ({error})"
        ) from error
    if not all(torch.isfinite(value).all() for value in apart):
        raise DataError("of the first client's samples it makes values that are not finite")
    for one, other in zip(together, apart, strict=True):
        if one.shape != other.shape or not torch.allclose(
            one, other, rtol=_TOLERANCE, atol=_TOLERANCE
        ):
            raise DataError("it mixes channels beyond its layers")


def two_clients(model: nn.Module, rng: torch.Generator) -> tuple[nn.Module, list[nn.Module]]:
    """Two clients of other parameters, side by side and each alone, on the CPU.

    In double precision, so that what is left of a difference is none of rounding.

    Raises:
        DataError: as `wide`.
    """
    both = wide(model, 2).to("cpu", _EXACT)
    alone = [copy.deepcopy(model).to("cpu", _EXACT) for _ in range(2)]
    with torch.no_grad():
        for name, parameter in both.named_parameters():
            parameter.add_(torch.rand(parameter.shape, generator=rng, dtype=_EXACT), alpha=0.1)
            for one, value in zip(alone, parts(parameter, 2), strict=True):
                one.get_parameter(name).copy_(value)
    return both, alone


def _both_ways(
    both: nn.Module, alone: list[nn.Module], x: Tensor, n_missing: int, rng: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, gradients and buffers of two clients side by side, and of each alone."""
    for one in (both, *alone):
        one.train()
    # Apart by noise, since samples that are alike would hide what looks at several.
    padded = [of + torch.rand(of.shape, generator=rng, dtype=_EXACT) for of in (x, x.flip(0) + 1)]
    sizes = [len(x), len(x) - n_missing]
    drawn = torch.get_rng_state()
    with padded_batch_norm(both, Present.of(sizes, x)):
        outputs = both(side_by_side(padded)).unflatten(1, (2, -1))
    together = [outputs[:n, i] for i, n in enumerate(sizes)]
    apart = [one(of[:n]) for one, of, n in zip(alone, padded, sizes, strict=True)]
    if not torch.equal(drawn, torch.get_rng_state()):
        raise DataError("its forward draws at random")
    if [of.shape for of in together] != [of.shape for of in apart]:
        raise DataError("it mixes channels beyond its layers")
    towards = [torch.rand(of.shape, generator=rng, dtype=_EXACT) for of in apart]
    trained = [name for name, p in both.named_parameters() if p.requires_grad]
    of_both = torch.autograd.grad(
        _along(together, towards), [both.get_parameter(n) for n in trained], allow_unused=True
    )
    of_each = [
        torch.autograd.grad(
            _along(apart, towards),
            [one.get_parameter(n) for n in trained],
            allow_unused=True,
            retain_graph=True,
        )
        for one in alone
    ]
    of_alone = [
        None if first is None else torch.cat([first, second])
        for first, second in zip(*of_each, strict=True)
    ]
    if [g is None for g in of_both] != [g is None for g in of_alone]:
        raise DataError("its parameters have no gradients of their own")
    kept = [(value, [one.get_buffer(n) for one in alone]) for n, value in both.named_buffers()]
    return (
        [*together, *(g for g in of_both if g is not None), *(parts(v, 2) for v, _ in kept)],
        [*apart, *(g for g in of_alone if g is not None), *(torch.stack(own) for _, own in kept)],
    )


def _along(outputs: list[Tensor], towards: list[Tensor]) -> Tensor:
    return torch.stack([(o * t).sum() for o, t in zip(outputs, towards, strict=True)]).sum()

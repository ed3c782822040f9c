"""Trial of a model with two clients side by side, against each of them alone."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from securefl.errors import DataError
from securefl.norms.padded import Present, padded_batch_norm
from securefl.simulation.stacked.model import parts, side_by_side, stacked

_EXACT, _TOLERANCE = torch.float64, 1e-9
_LEAST_BYTES = 4
_PASSES = 3
"""Number of passes one after the other, since a model may count them."""
_SCALES = (1, 64)
"""Scales of the samples, since a model may treat large ones in another way."""


def require_separate(model: nn.Module, x: Tensor) -> None:
    """Raise DataError unless two clients side by side compute what each computes alone.

    Args:
        model: not changed.
        x: a few samples.
    """
    for scale in _SCALES:
        _require_separate(model, scale * x.to("cpu", _EXACT), len(x))


def require_padded(model: nn.Module, x: Tensor, sizes: Sequence[int]) -> None:
    """Raise DataError as `require_separate` does, with the second client's batch padded.

    Args:
        model: not changed.
        x: a few samples.
        sizes: of batches, in increasing order; all but the largest are padded to it. Tried are the
            smallest, one in the middle and the next to largest.
    """
    values = (*model.parameters(), *model.buffers())
    if any(value.is_floating_point() and value.element_size() < _LEAST_BYTES for value in values):
        raise DataError("moments of short floats would be too coarse")
    *shorter, longest = sizes
    x = x[torch.arange(longest) % len(x)].to("cpu", _EXACT)
    for n in sorted({shorter[0], shorter[len(shorter) // 2], shorter[-1]}):
        _require_separate(model, x, n)
    _require_separate(model, _SCALES[-1] * x, shorter[0])


def _require_separate(model: nn.Module, x: Tensor, n_second: int) -> None:
    """Compare both ways; the second client has `n_second` samples, and the rest is padding."""
    rng = torch.Generator().manual_seed(0)
    both, alone = two_clients(model, rng)
    try:
        with torch.random.fork_rng([]):
            for _ in range(_PASSES):
                together, apart = _both_ways(both, alone, x, n_second, rng)
                _require_alike(together, apart)
    except DataError:
        raise
    except Exception as error:  # a user's forward may raise anything
        raise DataError(
            f"its forward does not run side by side in double precision ({error})"
        ) from error


def _require_alike(together: list[Tensor], apart: list[Tensor]) -> None:
    if not all(torch.isfinite(value).all() for value in apart):
        raise DataError("of the first client's samples it makes values that are not finite")
    for one, other in zip(together, apart, strict=True):
        if one.shape != other.shape or not torch.allclose(
            one, other, rtol=_TOLERANCE, atol=_TOLERANCE
        ):
            raise DataError("it mixes channels beyond its layers")


def two_clients(model: nn.Module, rng: torch.Generator) -> tuple[nn.Module, list[nn.Module]]:
    """Build two clients of unlike parameters, side by side and each alone, on the CPU.

    In double precision, so that a difference is not one of rounding.

    Raises:
        DataError: as `stacked`.
    """
    both = stacked(model, 2).to("cpu", _EXACT)
    alone = [copy.deepcopy(model).to("cpu", _EXACT) for _ in range(2)]
    with torch.no_grad():
        for name, parameter in both.named_parameters():
            parameter.add_(torch.rand(parameter.shape, generator=rng, dtype=_EXACT), alpha=0.1)
            for one, value in zip(alone, parts(parameter, 2), strict=True):
                one.get_parameter(name).copy_(value)
    return both, alone


def _both_ways(
    both: nn.Module, alone: list[nn.Module], x: Tensor, n_second: int, rng: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs, gradients and buffers of two clients side by side, and of each alone."""
    for one in (both, *alone):
        one.train()
        one.zero_grad()
    # Apart by noise, since samples that are alike would hide what looks at several.
    padded = [of + torch.rand(of.shape, generator=rng, dtype=_EXACT) for of in (x, x.flip(0) + 1)]
    sizes = [len(x), n_second]
    drawn = torch.get_rng_state()
    with padded_batch_norm(both, Present.of(sizes, x.device)):
        outputs = both(side_by_side(padded)).unflatten(1, (2, -1))
    together = [outputs[:n, i] for i, n in enumerate(sizes)]
    apart = [one(of[:n]) for one, of, n in zip(alone, padded, sizes, strict=True)]
    if not torch.equal(drawn, torch.get_rng_state()):
        raise DataError("its forward draws at random")
    if [of.shape for of in together] != [of.shape for of in apart]:
        raise DataError("it mixes channels beyond its layers")
    # Along random directions: a plain sum would hide gradients that cancel.
    towards = [torch.rand(of.shape, generator=rng, dtype=_EXACT) for of in apart]
    for outputs in (together, apart):
        along = [(o * t).sum() for o, t in zip(outputs, towards, strict=True)]
        torch.stack(along).sum().backward()
    gradients = [
        (p.grad, [one.get_parameter(name).grad for one in alone])
        for name, p in both.named_parameters()
    ]
    if any((g is None) is not all(own is None for own in each) for g, each in gradients):
        raise DataError("its parameters have no gradients of their own")
    kept = [(value, [one.get_buffer(n) for one in alone]) for n, value in both.named_buffers()]
    known = [(g, [own for own in each if own is not None]) for g, each in gradients]
    pairs = [*((g, each) for g, each in known if g is not None), *kept]
    return (
        [*together, *(parts(of_both, 2) for of_both, _ in pairs)],
        [*apart, *(torch.stack(each) for _, each in pairs)],
    )

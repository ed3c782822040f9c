"""Batch normalisation outside of layers: a call of `torch.nn.functional.batch_norm`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from securefl.errors import DataError
from securefl.norms.find import BatchNorm

_CALLS = (functional.batch_norm, torch.batch_norm, torch.native_batch_norm)
_TRAINING = 5
"""Place of the argument `training` in all of them."""


def in_layers_alone(model: nn.Module) -> AbstractContextManager[object]:
    """Require, within the block, that BN layers normalise batches, and nothing else does.

    Raises:
        DataError: within, by a functional call in training that no BN layer makes, with the module
            that makes it.
    """
    return _Watch(model)


@final
class _Watch(TorchFunctionMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CALLS and (args[_TRAINING:] or [kwargs.get("training")])[0]:
            self._check(_caller())
        return func(*args, **kwargs)

    def _check(self, caller: nn.Module | None) -> None:
        if isinstance(caller, BatchNorm):
            return
        names = {id(module): name or "model" for name, module in self._model.named_modules()}
        raise DataError(
            f"module {names.get(id(caller), 'model')!r} normalises its batch by "
            "torch.nn.functional.batch_norm, and no BN layer, which alone can be pooled, frozen, "
            "measured or kept: use nn.BatchNorm1d, 2d or 3d in its place, or algorithm.name = "
            '"fedavg"'
        )


def _caller() -> nn.Module | None:
    """Return the module whose forward is at work, as the call itself does not say it."""
    # The innermost frame with a module as its `self` is that module's forward.
    frame = sys._getframe()  # noqa: SLF001
    while frame := frame.f_back:  # type: ignore[assignment]
        if isinstance(found := frame.f_locals.get("self"), nn.Module):
            return found
    return None

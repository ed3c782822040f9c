"""One pass of a model over a batch: outputs, gradients by record, buffers, submodules.

Axis B is the batch, the first axis of every tensor that has one.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from securefl.algorithms.algorithm import Loss, trained_parameters
from securefl.algorithms.rng_isolation import seeded_layers
from securefl.errors import DataError


@final
@dataclass(frozen=True, slots=True)
class Records:
    """A batch; both tensors have one entry a record along their first axis."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def only(self, records: Tensor) -> "Records":
        """Return the records of these indices."""
        return Records(self.x[records], self.y[records])


@final
@dataclass(frozen=True, slots=True)
class Call:
    """One call of a submodule."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@final
@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass, of which gradients can still be asked."""

    model: nn.Module
    batch: Records
    output: Tensor
    """Output of the pass, with its graph."""
    loss: Loss
    calls: tuple[Call, ...]
    """Calls in the order of completion: a submodule stands before the module that it is in."""

    def term(self, record: int) -> Tensor:
        """Return the loss of one record alone."""
        here = slice(record, record + 1)
        return self.loss(self.output[here], self.batch.y[here])

    def gradient(self, record: int) -> dict[str, Tensor]:
        """Return the gradient of that record's term; zero for a parameter without part in it."""
        parameters = trained_parameters(self.model)
        found = torch.autograd.grad(
            self.term(record), list(parameters.values()), retain_graph=True, allow_unused=True
        )
        pairs = zip(parameters.items(), found, strict=True)
        return {
            name: torch.zeros_like(p) if gradient is None else gradient
            for (name, p), gradient in pairs
        }

    def left(self) -> dict[str, Tensor]:
        """Return buffers, also those in no state dict, and parameters, as the pass left them."""
        return {**dict(self.model.named_buffers()), **dict(self.model.named_parameters())}


def observed(model: nn.Module, batch: Records, loss: Loss, seed: int) -> Pass:
    """Run one pass of this very model, whose buffers may move; random layers draw by `seed`.

    Raises:
        DataError: the output is no finite tensor with an entry for each record.
    """
    calls: list[Call] = []
    with seeded_layers(batch.x.device, seed), _recording(model, calls):
        output = model(batch.x)
    if not isinstance(output, Tensor) or output.shape[:1] != batch.x.shape[:1]:
        raise DataError(
            "the model's output must be one tensor with an entry for each record along its first "
            f"axis; for {len(batch)} records it is {_described(output)}"
        )
    if not output.isfinite().all():
        raise DataError("the model's output on the probe's records is not finite")
    return Pass(model, batch, output, loss, tuple(calls))


def twin(model: nn.Module) -> nn.Module:
    """Return a copy in the same state, to be observed in its place.

    Raises:
        DataError: the model cannot be copied.
    """
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever a layer of the user's raises
        raise DataError(f"the model cannot be copied to be probed: {error}") from error


def described_layer(model: nn.Module, name: str) -> str:
    """Return a submodule's name and class."""
    kind = type(model.get_submodule(name)).__name__
    return f"layer {name!r} ({kind})" if name else f"the model's own forward ({kind})"


@contextmanager
def _recording(model: nn.Module, calls: list[Call]) -> Iterator[None]:
    """Add each call of a submodule within to `calls`, with copies of what it got and gave."""
    handles: list[RemovableHandle] = []
    pending: list[tuple[Tensor, ...]] = []

    try:
        for name, module in model.named_modules():
            handles += [
                module.register_forward_pre_hook(_kept(pending), with_kwargs=True),
                module.register_forward_hook(_noted(name, pending, calls)),
            ]
        yield
    finally:
        for handle in handles:
            handle.remove()


def _kept(pending: list[tuple[Tensor, ...]]) -> Callable[..., None]:
    """Return a hook that copies what a call gets before the call: a layer may work in place."""
    return lambda _module, args, kwargs: pending.append(_copies((args, kwargs)))


def _noted(name: str, pending: list[tuple[Tensor, ...]], calls: list[Call]) -> Callable[..., None]:
    """Return a hook that notes a call once it is done."""
    # A lambda: a named function in here the tests' shape checks would compile anew for each layer
    # of each pass, which took most of the check's time there.
    return lambda _module, _args, output: calls.append(Call(name, pending.pop(), _copies(output)))


def _copies(value: Any) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().clone() for tensor in _tensors(value))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _described(output: object) -> str:
    if isinstance(output, Tensor):
        return f"of shape {tuple(output.shape)}"
    return f"a {type(output).__name__}"

"""Forward and backward pass of a model as a CUDA graph: one launch in place of hundreds.

On a GPU a local step of a small model takes as long as the processor needs to launch its kernels.
A graph is captured once for each form of batch and model, and replayed for every client and every
round: the model is the same object, into whose tensors each client's are loaded. What a graph
cannot see is kept out: layers and losses of a user's own, which may do something else in each pass,
layers that were changed for a while or are watched, and whatever draws at random.
"""

from collections.abc import Iterator
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from securefl.algorithms.algorithm import Loss

MOST_GRAPHS = 4
"""Number of graphs of a model."""
_KNOWN = ("torch.nn.", "securefl.")
"""Beginnings of the modules whose layers and losses run the same kernels in each pass."""
_RANDOM = (_DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_PLAIN = (bool, int, float, str, tuple, type(None))
"""Types of a layer's attributes that a graph has as constants."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_WARM_UP = 3
"""Number of passes before the capture, in which libraries choose kernels and find memory."""
_CAPTURING = Lock()
"""Lock of the process, in which one capture may be under way."""
_Form = tuple[object, ...]


class GraphedPasses:
    """Passes of one model with one loss."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        """Take a model that stays where it is: its tensors are only written into."""
        self._model = model
        self._loss = loss
        self._layers = [vars(layer) for layer in model.modules()]
        self._parameters = list(model.parameters())
        self._may = not reason_against_graphs(model)
        self._seen: set[_Form] = set()
        """Forms that have come; a graph is captured when one comes again."""
        self._graphs: dict[_Form, _Graph | None] = {}
        """Graph by form; None where it could not be captured."""

    def replay(self, model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> bool:
        """Leave the gradients of the loss on a batch in the parameters, where a graph can.

        Returns:
            False where nothing was done: of another model or loss, of a model that was changed for
            a while, at a form that is new, or one that cannot be captured.
        """
        if not self._may or model is not self._model or loss != self._loss or self._changed():
            return False
        form = x.shape, x.dtype, y.shape, y.dtype, *self._constants()
        if form not in self._seen:
            self._seen.add(form)
            return False
        if form not in self._graphs:
            if sum(graph is not None for graph in self._graphs.values()) == MOST_GRAPHS:
                return False
            self._graphs[form] = self._captured(x, y)
        graph = self._graphs[form]
        if graph is None:
            return False
        for parameter, gradient in zip(self._parameters, graph.gradients(x, y), strict=True):
            parameter.grad = gradient
        return True

    def _captured(self, x: Tensor, y: Tensor) -> "_Graph | None":
        try:
            return _Graph(self._model, self._loss, x, y)
        except RuntimeError:  # of a layer that waits for a value, or of too little memory
            return None

    def _changed(self) -> bool:
        """Return whether a layer has another forward, or somebody watches the layers."""
        if torch_module._has_any_global_hook():  # noqa: SLF001
            return True
        return any("forward" in of or any(of[hooks] for hooks in _HOOKS) for of in self._layers)

    def _constants(self) -> Iterator[object]:
        """Yield what a graph cannot read again: modes, momenta, which parameters are trained."""
        for of in self._layers:
            yield from (value for value in of.values() if type(value) in _PLAIN)
        yield from (parameter.requires_grad for parameter in self._parameters)


class _Graph:
    """Graph of one pass, with the memory that it reads batches from and leaves gradients in."""

    def __init__(self, model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> None:
        """Capture the pass. Raises RuntimeError where it cannot be; nothing is left of it then."""
        self._x, self._y = x.clone(), y.clone()
        parameters = list(model.parameters())
        kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
        drawn = torch.cuda.get_rng_state(x.device)

        def one_pass() -> None:
            for parameter in parameters:
                parameter.grad = None
            with torch.autograd.set_multithreading_enabled(False):
                loss(model(self._x), self._y).backward()

        here, aside = torch.cuda.current_stream(x.device), torch.cuda.Stream(x.device)
        # Of this device and stream, and back to both even where a capture fails.
        with _CAPTURING, torch.cuda.device(x.device), torch.cuda.stream(here):
            try:
                aside.wait_stream(here)
                with torch.cuda.stream(aside):
                    for _ in range(_WARM_UP):
                        one_pass()
                here.wait_stream(aside)
                if not torch.equal(drawn, torch.cuda.get_rng_state(x.device)):
                    raise RuntimeError("the pass draws at random")
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, stream=aside, capture_error_mode="thread_local"):
                    one_pass()
                self._gradients = [parameter.grad for parameter in parameters]
            finally:
                for parameter in parameters:
                    parameter.grad = None
                # The passes before moved running statistics.
                with torch.no_grad():
                    for buffer, before in kept:
                        buffer.copy_(before)
                torch.cuda.set_rng_state(drawn, x.device)

    def gradients(self, x: Tensor, y: Tensor) -> list[Tensor | None]:
        """Return the gradients on a batch, each in memory of its own: a solver may keep them."""
        with torch.cuda.device(x.device):
            self._x.copy_(x)
            self._y.copy_(y)
            self._graph.replay()
            held = [gradient for gradient in self._gradients if gradient is not None]
            own = [torch.empty_like(gradient) for gradient in held]
            torch._foreach_copy_(own, held)
        left = iter(own)
        return [None if gradient is None else next(left) for gradient in self._gradients]


def may_be_captured(loss: Loss) -> bool:
    """Return whether a loss is torch's or ours, which do the same in each pass."""
    of: Any = loss
    while isinstance(of, partial):
        of = of.func
    kind = type(of) if isinstance(of, nn.Module) else of
    return str(getattr(kind, "__module__", "")).startswith(_KNOWN)


def reason_against_graphs(model: nn.Module) -> str:
    """Return why no pass of this model is captured; empty where one may be."""
    for name, layer in model.named_modules():
        kind, what = type(layer), f"layer {name!r}" if name else "the model"
        if not kind.__module__.startswith(_KNOWN):
            return f"{what} is a {kind.__name__}, which may do something else in each pass"
        if isinstance(layer, _RANDOM):
            return f"{what} draws at random"
        if isinstance(layer, _NormBase) and layer.track_running_stats and layer.momentum is None:
            return f"{what} counts its batches on the processor"
    return ""

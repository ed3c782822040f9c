"""Forward and backward pass of a model as a CUDA graph: one launch in place of hundreds.

On a GPU a local step of a small model takes as long as the processor needs to launch its kernels.
A graph is captured once for each shape of batches, and replayed for every client and every round:
the model is the same object, into whose tensors each client's are loaded.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from securefl.algorithms.algorithm import Loss

MOST_GRAPHS = 4
"""Number of shapes that are captured; each graph has memory of its own."""
_KNOWN = ("torch.nn.", "securefl.")
"""Beginnings of the modules whose layers and losses run the same kernels in each pass."""
_WARM_UP = 3
"""Number of passes before the capture, in which libraries choose kernels and find memory."""
_Form = tuple[object, ...]


class GraphedPasses:
    """Passes of one model with one loss."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        """Take a model that stays where it is: its tensors are only written into."""
        self._model = model
        self._loss = loss
        self._modules = list(model.modules())
        self._parameters = list(model.parameters())
        self._may = not reason_against_graphs(model)
        self._graphs: dict[_Form, _Graph | None] = {}
        """Graph by form; None where the form was seen once."""
        self._refused: set[_Form] = set()

    def replay(self, model: nn.Module, x: Tensor, y: Tensor) -> bool:
        """Leave the gradients of the loss on a batch in the parameters, where a graph can.

        Returns:
            False where nothing was done: of another model, of one whose layers were changed for a
            while, at a form that is new, or one that cannot be captured.
        """
        if not self._may or model is not self._model or self._changed():
            return False
        modes = *(layer.training for layer in self._modules), *self._trained()
        form = x.shape, x.dtype, y.shape, y.dtype, *modes
        if form not in self._graphs:
            if len(self._graphs) < MOST_GRAPHS:
                self._graphs[form] = None  # captured if it comes again
            return False
        if form in self._refused:
            return False
        graph = self._graphs[form]
        if graph is None:
            try:
                graph = self._graphs[form] = _Graph(self._model, self._loss, x, y)
            except RuntimeError:  # of a layer that waits for a value, or of too little memory
                self._refused.add(form)
                return False
        graph.replay(x, y)
        for parameter, gradient in zip(self._parameters, graph.gradients, strict=True):
            parameter.grad = gradient
        return True

    def _trained(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]

    def _changed(self) -> bool:
        """Return whether a layer has another forward, or somebody watches it."""
        return any(
            "forward" in vars(layer)
            or layer._forward_hooks  # noqa: SLF001
            or layer._forward_pre_hooks  # noqa: SLF001
            or layer._backward_hooks  # noqa: SLF001
            for layer in self._modules
        )


class _Graph:
    """Graph of one pass, with the memory that it reads batches from and leaves gradients in."""

    def __init__(self, model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x.clone(), y.clone()
        parameters = list(model.parameters())
        kept = [(buffer, buffer.clone()) for buffer in model.buffers()]

        def one_pass() -> None:
            for parameter in parameters:
                parameter.grad = None
            with torch.autograd.set_multithreading_enabled(False):
                loss(model(self._x), self._y).backward()

        try:
            here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UP):
                    one_pass()
            here.wait_stream(aside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                one_pass()
            self.gradients = [parameter.grad for parameter in parameters]
        finally:
            for parameter in parameters:
                parameter.grad = None
            # The passes before moved running statistics.
            with torch.no_grad():
                for buffer, before in kept:
                    buffer.copy_(before)

    def replay(self, x: Tensor, y: Tensor) -> None:
        """Take the pass on a batch."""
        self._x.copy_(x)
        self._y.copy_(y)
        self._graph.replay()


def may_be_captured(loss: Loss) -> bool:
    """Return whether a loss is torch's or ours, which do the same in each pass."""
    of = type(loss) if isinstance(loss, nn.Module) else loss
    return str(getattr(of, "__module__", "")).startswith(_KNOWN)


def reason_against_graphs(model: nn.Module) -> str:
    """Return why no pass of this model is captured; empty where one may be."""
    for name, layer in model.named_modules():
        kind = type(layer)
        if not kind.__module__.startswith(_KNOWN):
            return f"layer {name!r} is a {kind.__name__}, which may do something else in each pass"
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            return f"layer {name!r} draws at random"
        if isinstance(layer, _NormBase) and layer.track_running_stats and layer.momentum is None:
            return f"layer {name!r} counts its batches on the processor"
    return ""

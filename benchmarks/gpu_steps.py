"""Local steps of all clients on a GPU, one step of each at a time, by ways that torch has.

Only forward pass, backward pass and step count: no federation is around them. A way is a function
that takes one local step of every client. Ways that cannot run a model say why.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from engine_jobs import LR, Job, model_of
from engine_page import Grid, Part
from engine_ways import Settings
from measure import ms_text, timed
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

from securefl.simulation.stacked.batches import BlockLoss
from securefl.simulation.stacked.model import side_by_side, stacked

Way = Callable[[], None]
N_STREAMS = 4
MOST_S = 3.0
"""Seconds after which a way is measured no more often."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds of a local step of all clients of one job."""

    job: str
    samples: int
    seconds: Mapping[str, list[float]]
    refused: Mapping[str, str]
    first_s: Mapping[str, float]
    """Seconds of the first step, in which kernels are chosen and compiled, by way."""

    def grid(self) -> Grid:
        """Return a row for each way, the fastest first."""
        rows = []
        first = median(self.seconds["one by one"])
        for way, found in sorted(self.seconds.items(), key=lambda of: median(of[1])):
            typical = median(found)
            rate = f"{self.samples / typical:,.0f}"
            begun = f"{self.first_s[way]:.1f} s"
            rows.append([way, ms_text(typical), rate, f"{first / typical:.1f}", begun])
        return Grid(("way", "a step of all", "samples/s", "× one by one", "first step"), rows)


@dataclass(frozen=True, slots=True)
class Local:
    """Clients' models and batches, in the GPU's memory."""

    job: Job
    x_KB: list[Tensor]
    y_KB: Tensor
    kept: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, job: Job) -> Local:
        """Draw a batch for each client of a round."""
        k, b = job.n_selected, job.batch_size
        with torch.device(job.device):
            x_KB = [torch.randn(b, *job.shape) for _ in range(k)]
            return cls(job, x_KB, torch.randint(10, (k, b)))

    def model(self) -> nn.Module:
        """Return a client's model."""
        return model_of(self.job).to(self.job.device).train()

    def step(self, model: nn.Module, sgd: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        """Take a step of one client."""
        for parameter in model.parameters():
            parameter.grad = None
        with self.job.casting():
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        sgd.step()

    def one_by_one(self) -> Way:
        """Return the way without anything special: what others are compared with."""
        models = [self.model() for _ in self.x_KB]
        sgds = [_sgd(model) for model in models]

        def way() -> None:
            for of in zip(models, sgds, self.x_KB, self.y_KB, strict=True):
                self.step(*of)

        return way

    def streams(self) -> Way:
        """Return the way of clients on several CUDA streams."""
        models = [self.model() for _ in self.x_KB]
        sgds = [_sgd(model) for model in models]
        streams = [torch.cuda.Stream() for _ in range(N_STREAMS)]

        def way() -> None:
            for i, of in enumerate(zip(models, sgds, self.x_KB, self.y_KB, strict=True)):
                with torch.cuda.stream(streams[i % N_STREAMS]):
                    self.step(*of)
            _join(streams)

        return way

    def graphs(self, n_streams: int) -> Way:
        """Return the way of a CUDA graph of one client's step, replayed for each."""
        streams = [torch.cuda.Stream() for _ in range(n_streams)]
        captured = [self._captured(stream) for stream in streams]

        def way() -> None:
            for i, (x, y) in enumerate(zip(self.x_KB, self.y_KB, strict=True)):
                graph, x_here, y_here = captured[i % n_streams]
                with torch.cuda.stream(streams[i % n_streams]):
                    x_here.copy_(x)
                    y_here.copy_(y)
                    graph.replay()
            _join(streams)

        return way

    def _captured(self, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        model = self.model()
        sgd, x, y = _sgd(model), self.x_KB[0].clone(), self.y_KB[0].clone()
        self.kept.append((model, sgd))  # a graph does not hold the tensors that it works on
        return graph_of(lambda: self.step(model, sgd, x, y), stream), x, y

    def vmapped(self) -> Way:
        """Return the way of `torch.func.vmap` over stacked parameters."""
        model = self.model()
        parameters, buffers = stack_module_state([self.model() for _ in self.x_KB])
        x_KB, job = torch.stack(self.x_KB), self.job

        def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(functional_call(model, (p, b), (x,)), y)

        def way() -> None:
            with job.casting():
                gradients = vmap(grad(loss))(parameters, buffers, x_KB, self.y_KB)
            with torch.no_grad():
                torch._foreach_add_(
                    list(parameters.values()), [gradients[n] for n in parameters], alpha=-LR
                )

        return way

    def stacked(self, change: Callable[[nn.Module], nn.Module], *, last: bool = False) -> Way:
        """Return the way of all clients in one wide model."""
        k = len(self.x_KB)
        model = change(stacked(self.model(), k)).train()
        x = side_by_side(self.x_KB)
        if last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        loss, sgd = BlockLoss(functional.cross_entropy, k), _sgd(model)

        def way() -> None:
            for parameter in model.parameters():
                parameter.grad = None
            with self.job.casting():
                total = loss(model(x), self.y_KB)
            total.backward()
            sgd.step()

        return way

    def stacked_graph(self, change: Callable[[nn.Module], nn.Module], *, last: bool = False) -> Way:
        """Return the way of a CUDA graph of the wide model's step."""
        step = self.stacked(change, last=last)
        self.kept.append(step)
        return graph_of(step, torch.cuda.Stream()).replay

    def compiled(self) -> Way:
        """Return the way of `torch.compile`, one by one."""
        model = self.model()
        fast: Any = torch.compile(model)
        sgd = _sgd(model)

        def way() -> None:
            for x, y in zip(self.x_KB, self.y_KB, strict=True):
                self.step(fast, sgd, x, y)

        return way


def graph_of(step: Way, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Capture a step, after three on a stream of their own."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph


class Unfolded(nn.Module):
    """Convolution in groups as one matrix product for each group and sample."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias, self.groups = layer.weight, layer.bias, layer.groups
        self.how = int(layer.kernel_size[0]), 1, int(layer.padding[0]), int(layer.stride[0])

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, K Cin, H, W) to (B, K Cout, H', W')."""
        kernel, _, padding, stride = self.how
        height = (x.shape[2] + 2 * padding - kernel) // stride + 1
        x_BKNL = functional.unfold(x, *self.how).unflatten(1, (self.groups, -1))
        weight_KCN = self.weight.view(self.groups, -1, x_BKNL.shape[2]).to(x_BKNL.dtype)
        y: Tensor = torch.matmul(weight_KCN, x_BKNL).flatten(1, 2).unflatten(2, (height, -1))
        return y if self.bias is None else y + self.bias.view(1, -1, 1, 1).to(y.dtype)


def unfolded(model: nn.Module) -> nn.Module:
    """Replace a wide model's convolutions."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Conv2d):
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], Unfolded(layer))
    return model


def _same(model: nn.Module) -> nn.Module:
    return model


def _compiled(model: nn.Module) -> nn.Module:
    fast: nn.Module = torch.compile(model)  # type: ignore[assignment]  # a module as it was
    return fast


def ways(local: Local) -> dict[str, Callable[[], Way]]:
    """Return makers of all ways of a job."""
    images = len(local.job.shape) == 3
    found: dict[str, Callable[[], Way]] = {
        "one by one": local.one_by_one,
        f"one by one, {N_STREAMS} streams": local.streams,
        "graph of a client's step": lambda: local.graphs(1),
        f"graphs, {N_STREAMS} streams": lambda: local.graphs(N_STREAMS),
        "vmap": local.vmapped,
        "stacked": lambda: local.stacked(_same),
        "stacked, graph": lambda: local.stacked_graph(_same),
    }
    if images:
        found |= {
            "stacked, channels_last": lambda: local.stacked(_same, last=True),
            "stacked, unfold and bmm": lambda: local.stacked(unfolded),
            "stacked, channels_last, graph": lambda: local.stacked_graph(_same, last=True),
        }
    if local.job.precision == "model" and local.job.device != "cpu":
        found |= {
            "torch.compile, one by one": local.compiled,
            "torch.compile, stacked": lambda: local.stacked(_compiled),
        }
    return found


def measured(job: Job, settings: Settings) -> Steps:
    """Measure a local step of all clients by each way."""
    if job.device != "cpu":
        torch.cuda.set_device(job.device)  # where streams are made
    local, found, refused = Local.of(job), dict[str, list[float]](), dict[str, str]()
    first = dict[str, float]()
    for name, make in ways(local).items():
        local.kept.clear()
        gc.collect()
        torch.compiler.reset()  # else a later job is compiled for any shape
        if job.device != "cpu":
            torch.cuda.empty_cache()
        try:
            way = make()
            _, first[name] = timed(_awaited, way, job)
            found[name] = [timed(_awaited, way, job)[1]]
            while len(found[name]) < settings.repeats and sum(found[name]) < MOST_S:
                found[name].append(timed(_awaited, way, job)[1])
        except Exception as error:  # of whatever library
            refused[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
        else:
            settings.note(f"{job}: {name}: {ms_text(median(found[name]))}")
    return Steps(str(job), job.n_selected * job.batch_size, found, refused, first)


def steps_part(job: Job, settings: Settings) -> Part:
    """Measure the job's tables, in float32 and in bfloat16."""
    job, grids, found, notes = settings.sized(job), dict[str, Grid](), list[Steps](), []
    for precision in ("model", "bfloat16"):
        same = replace(job, precision=precision)
        result = measured(same, settings)
        grids[f"One local step, {'float32' if precision == 'model' else precision}"] = result.grid()
        notes += [f"{way} is left out: {why}" for way, why in result.refused.items()]
        found.append(result)
    return Part(f"Local steps on a GPU: {job}", grids, found, notes)


def _sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=LR, fused=True)


def _join(streams: list[torch.cuda.Stream]) -> None:
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)


def _awaited(way: Way, job: Job) -> None:
    way()
    job.wait()

"""A client's local steps: mini-batch SGD by torch.optim, with momentum that may be kept."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from securefl.algorithms.base import Work, averaged_tensors, snapshot
from securefl.types import Contribution


def train(work: Work, first_step: AbstractContextManager[None] | None = None) -> Contribution:
    """Take one step a batch; the first forward and backward pass run within `first_step`."""
    model = work.model.train()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    solver = work.solver
    optimiser = torch.optim.SGD(
        parameters.values(),
        lr=solver.lr,
        momentum=solver.momentum,
        weight_decay=solver.weight_decay,
    )
    for name, buffer in work.memory.items():
        optimiser.state[parameters[name]]["momentum_buffer"] = buffer.to(
            parameters[name].device, copy=True
        )
    context = first_step or nullcontext()
    for x, y in work.batches:
        optimiser.zero_grad()
        # Backward runs in this thread: a client that waits there for a sum must not keep the
        # autograd engine's own threads from serving the client that it waits for.
        with context, torch.autograd.set_multithreading_enabled(False):
            work.loss(model(x), y).backward()
        context = nullcontext()
        optimiser.step()
    memory = {}
    if solver.keep_momentum:
        memory = {
            name: optimiser.state[p]["momentum_buffer"]
            for name, p in parameters.items()
            if p in optimiser.state  # a parameter that the loss does not reach has none
        }
    return Contribution(snapshot(averaged_tensors(model)), memory)

"""BN statistics of a model that does not move, over all of a client's batches."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import count

import torch
from torch import Tensor, nn

from securefl.errors import DataError
from securefl.norms.find import batch_normalising


def measure_statistics(model: nn.Module, inputs: Iterable[Tensor]) -> None:
    """Set the running statistics to the mean over `inputs` of the batches' own.

    Each batch is normalised by itself meanwhile. A layer that the model's own `train()` keeps in
    evaluation mode keeps its statistics. HeteroFL's static BN (Diao, Ding, Tarokh, ICLR
    2021, section 3.2), on the one client's side.

    Raises:
        DataError: the model's forward puts a layer into evaluation mode.
    """
    named = batch_normalising(model)
    layers = named.values()
    momenta = [layer.momentum for layer in layers]
    was_training = model.training
    model.train()
    try:
        with torch.no_grad(), ExitStack() as hooks:
            for name, layer in named.items():
                layer.reset_running_stats()
                hooks.callback(layer.register_forward_pre_hook(_plain_mean(name)).remove)
            for x in inputs:
                model(x)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(was_training)


def _plain_mean(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """Return a hook for PyTorch's momentum of None, which would wait for a GPU to count batches."""
    n_batches = count(1)

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        del inputs
        if not layer.training:  # its statistics would stay as they were reset
            raise DataError(
                f"BN layer {name!r} is put into evaluation mode by forward, so that its "
                "statistics cannot be measured: do that in the model's train() in its place"
            )
        # Momentum 1/n at the n-th batch makes running statistics the plain mean.
        layer.momentum = 1 / next(n_batches)  # type: ignore[assignment]  # of a BN layer, a number

    return hook

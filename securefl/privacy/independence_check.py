"""A check of every private run that DP-SGD may train its model, before it begins."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss
from securefl.algorithms.rng_isolation import seeded_layers
from securefl.data.samples import Samples
from securefl.errors import ConfigError
from securefl.losses.kinds import compares_samples, loss_name
from securefl.norms.frozen import at_rest_twin
from securefl.privacy.clipping import ClippedGradients, Clipping
from securefl.privacy.coupling import require_uncoupled

PROBED = 16
"""Number of records that the check tries."""


def require_independent(
    model: nn.Module,
    loss: Loss,
    data: Mapping[str, Samples],
    clipping: Clipping,
    *,
    frozen: bool,
) -> None:
    """Check that the model, as DP-SGD will train it, keeps records independent of each other.

    Args:
        model: the one to train.
        loss: its loss.
        data: each client's samples, of which some are tried.
        clipping: the rule that bounds records' gradients.
        frozen: True where BN is at rest in training.

    Raises:
        CouplingFound: names the layer that mixes records, and the remedy.
        ConfigError: the loss compares records, or Opacus cannot give single records' gradients of
            this model.
    """
    if compares_samples(loss):
        raise ConfigError(
            f'privacy.level = "record" with the loss {loss_name(loss)}: it compares the records of '
            "a batch, so that no gradient is of one alone and no clip bounds what it does; set "
            'privacy.level = "client", or give a loss that is a mean over samples'
        )
    trained = at_rest_twin(model) if frozen else copy.deepcopy(model)
    first = next(iter(data.values()))
    x, y = first.take(torch.arange(PROBED) % len(first))
    device = next(model.parameters()).device
    was_training = model.training
    try:
        with seeded_layers(device, 0):
            x, y = (values.to(device) for values in _made_up(trained.train(), x, y))
            require_uncoupled(trained, x, y, loss)
            _require_gradients(trained, x, y, loss, clipping)
    finally:
        model.train(was_training)


def _require_gradients(
    model: nn.Module, x: Tensor, y: Tensor, loss: Loss, clipping: Clipping
) -> None:
    """Raise ConfigError where Opacus cannot give single records' gradients of this model."""
    try:
        ClippedGradients(model, loss, clipping).sum_of(x, y, 1.0)
    except (TypeError, AttributeError, NotImplementedError) as error:
        raise ConfigError(
            f"Opacus has no gradients of single records of this model ({error}): put layers in it "
            "that Opacus knows (opacus.layers has an LSTM and an attention), or take "
            'privacy.level = "client"'
        ) from error


def _made_up(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return records of the same shape with other values, so that the check's answer reveals none.

    Other than floating-point values stay, except labels of classes that the model has.
    """
    rng = torch.Generator().manual_seed(0)
    if x.is_floating_point():
        x = torch.randn(x.shape, generator=rng, dtype=x.dtype)
    if y.is_floating_point():
        return x, torch.randn(y.shape, generator=rng, dtype=y.dtype)
    device = next(model.parameters()).device
    with torch.no_grad():
        output = copy.deepcopy(model)(x.to(device))
    if y.dim() == 1 and isinstance(output, Tensor) and output.dim() == 2:
        y = torch.arange(len(y)) % output.shape[1]
    return x, y

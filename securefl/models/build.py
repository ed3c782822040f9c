"""Models by the names that a configuration uses."""

import torch
from torch import nn

from securefl.models.alexnet import alexnet
from securefl.models.cnn import cnn
from securefl.models.fixup import fixup_resnet20
from securefl.models.layers import (
    Norm,
    batch_norm_1d,
    batch_norm_2d,
    batch_norm_3d,
    group_norm,
    instance_norm,
    layer_norm,
    no_norm,
)
from securefl.models.mlp import mlp
from securefl.models.resnet import resnet20
from securefl.models.unet import unet
from securefl.norms.weight_standardization import Convolution, scaled, standardise_weights
from securefl.settings.models import width_of


def build_model(  # noqa: PLR0913 -- every keyword is a fact about the data or a configuration key
    name: str,
    norm: str,
    *,
    in_channels: int,
    n_features: int,
    n_classes: int,
    groups: int = 2,
    width: int | None = None,
    seed: int = 0,
) -> nn.Sequential:
    """Build the initialised model, on the CPU; the same arguments give the same values.

    The last layer is the linear classifier, so `model[:-1]` gives the features before it; of the
    unet it is one of voxels, a convolution of side 1.

    Args:
        name: "mlp", "cnn", "resnet20", "alexnet" or "unet".
        norm: "batch", "group", "layer", "instance", "group-ws" (group normalisation, with weight
            standardisation before the classifier), "scaled-ws" (none, with scaled weight
            standardisation before the classifier: FedWon) or "fixup" (none; resnet20 alone).
        in_channels: of the images or volumes; the mlp does not look at it.
        n_features: of a flat sample; only the mlp looks at it.
        n_classes: how many scores the model gives, or numbers of a regression.
        groups: of channels; only "group" and "group-ws" look at it.
        width: the mlp's hidden size (default 30; 0 has no hidden layer and no norm: it is linear),
            or the first stage's channels (default 16; 64 of the alexnet, 8 of the unet).
        seed: of the initial values.

    Raises:
        ConfigError: a name is unknown, or the width or the model does not go with the norm.
        DataError: an mlp with "group-ws" or "scaled-ws" for samples of one feature.
    """
    width = width_of(name, norm, groups, width)
    # Layers draw their initial values from torch's global generator and take no other: this is
    # the single place where it is forked, so that the caller's random numbers stay as they were.
    # `torch.manual_seed` would also reseed the accelerators, which the fork does not put back.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        if norm == "fixup":
            return fixup_resnet20(in_channels, n_classes, width)
        if name == "mlp":
            hidden_sizes = (width,) if width else ()
            norm_1d = _norm(norm, groups, batch_norm_1d)
            model = mlp(norm_1d, (n_features, *hidden_sizes, n_classes))
        elif name == "alexnet":
            norms = (_norm(norm, groups, batch_norm_2d), _norm(norm, groups, batch_norm_1d))
            model = alexnet(*norms, in_channels, n_classes, width)
        elif name == "unet":
            model = unet(_norm(norm, groups, batch_norm_3d), in_channels, n_classes, width)
        else:
            make = cnn if name == "cnn" else resnet20
            model = make(_norm(norm, groups, batch_norm_2d), in_channels, n_classes, width)
    kinds = Convolution, nn.Linear
    hidden = [x for x in model[:-1].named_modules() if isinstance(x[1], kinds)]
    if norm == "group-ws":
        standardise_weights(hidden)
    if norm == "scaled-ws":
        standardise_weights(hidden, scaled)
        for _, layer in hidden:
            if layer.bias is None:  # left to a norm, which is not there
                layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
    return model


def _norm(norm: str, groups: int, batch_norm: Norm) -> Norm:
    norms = {
        "batch": batch_norm,
        "layer": layer_norm,
        "instance": instance_norm,
        "scaled-ws": no_norm,
    }
    return norms.get(norm) or group_norm(groups)

"""Models by the names that a configuration uses."""

import torch
from torch import nn

from securefl.errors import ConfigError
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
from securefl.norms.grouped import PER_SAMPLE_NORMS, group_count
from securefl.norms.weight_standardization import Convolution, scaled, standardise_weights

DEFAULT_WIDTHS = {"mlp": 30, "cnn": 16, "resnet20": 16, "alexnet": 64, "unet": 8}
NORMS = ("batch", *PER_SAMPLE_NORMS, "scaled-ws", "fixup")


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
    width = _checked_width(name, norm, groups, width)
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


def _checked_width(name: str, norm: str, groups: int, width: int | None) -> int:
    if name not in DEFAULT_WIDTHS:
        raise ConfigError(f'model = "{name}": must be one of {", ".join(DEFAULT_WIDTHS)}')
    if norm not in NORMS:
        raise ConfigError(f'norm = "{norm}": must be one of {", ".join(NORMS)}')
    if norm == "fixup" and name != "resnet20":
        raise ConfigError(
            f'norm = "fixup": Fixup scales the residual branches of a model, and {name} has none; '
            'choose model "resnet20", or another norm'
        )
    width = DEFAULT_WIDTHS[name] if width is None else width
    if width < (least := 0 if name == "mlp" else 1):
        raise ConfigError(
            f"width = {width}: must be at least {least}; {DEFAULT_WIDTHS[name]} is usual"
        )
    if norm in PER_SAMPLE_NORMS:
        _check_groups(name, norm, group_count(norm, groups, width), width)
    return width


def _check_groups(name: str, norm: str, groups: int, width: int) -> None:
    if groups < 1:
        raise ConfigError(f"groups = {groups}: must be at least 1; 2 is usual")
    if width % groups:
        raise ConfigError(
            f'width = {width}: norm = "{norm}" cuts the channels into {groups} groups; have a '
            f"multiple of {groups}, such as {width + groups - width % groups}"
        )
    # The alexnet's linear layers have 64 units for each of its width.
    if (name == "mlp" and width == groups) or (name == "alexnet" and norm == "instance"):
        raise ConfigError(
            f'norm = "{norm}" would make a group of each hidden unit of the {name}: '
            "one value alone normalises to zero, whatever the sample; have at least two units a "
            'group, or norm = "batch"'
        )


def _norm(norm: str, groups: int, batch_norm: Norm) -> Norm:
    norms = {
        "batch": batch_norm,
        "layer": layer_norm,
        "instance": instance_norm,
        "scaled-ws": no_norm,
    }
    return norms.get(norm) or group_norm(groups)

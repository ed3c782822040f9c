"""Conversion of batch normalisation to another norm, in a model that is not ours."""

import copy

from torch import nn

from securefl.errors import ConfigError, DataError
from securefl.norms.find import TORCH_FORWARDS, BatchNorm
from securefl.norms.grouped import grouped_norm
from securefl.norms.weight_standardization import Convolution, standardise_weights
from securefl.settings.models import PER_SAMPLE_NORMS, group_count


def convert_norm(model: nn.Module, to: str, groups: int = 2) -> nn.Module:
    """Return a copy of the model with another norm in place of each batch normalisation layer.

    BN is found by type, wherever it stands: also in residual shortcuts. The new layers keep ε, γ
    and β with their precision, device and `requires_grad`; a layer that stands in several places
    is again one layer. Running statistics have no place in the new layers. Instance normalisation
    is for feature maps: on flat samples its forward raises DataError.

    Args:
        model: any model; it is not changed.
        to: "group", "layer", "instance", or "group-ws": group normalisation with weight
            standardisation of every convolution.
        groups: of channels; only "group" and "group-ws" look at it.

    Raises:
        ConfigError: no such norm, or none that a finished model can be converted to.
        DataError: the model has no BN layer, or a layer cannot be converted; the message names it.

    Examples:
        >>> grouped = securefl.convert_norm(model, "group", groups=4)
        >>> grouped[1]
        GroupNorm(4, 8, ...)
        >>> config = securefl.load_config(settings=["algorithm.name=fedavg", "run.rounds=2"])
        >>> result = securefl.run(config, securefl.Task(grouped, clients, test))
    """
    _check_target(to, groups)
    _check_layers(_places(model), model)
    model = copy.deepcopy(model)
    places = _places(model)
    converted = {
        layer: _converted(name or "model", layer, to, groups) for name, layer in places.items()
    }
    if to == "group-ws":
        _standardise_convolutions(model)
    for name, layer in places.items():
        if not name:
            return converted[layer]
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, converted[layer])
    return model


def _places(model: nn.Module) -> dict[str, BatchNorm]:
    """Return every name under which a BN layer stands, also the second one of the same layer."""
    named = model.named_modules(remove_duplicate=False)
    return {name: layer for name, layer in named if isinstance(layer, BatchNorm)}


def _check_target(to: str, groups: int) -> None:
    if to == "fixup":
        raise ConfigError(
            'to = "fixup": Fixup needs scalar biases and multipliers around each convolution of a '
            "residual branch, where a model's own forward has no place for them; the built-in "
            'resnet20 has them (model.norm = "fixup")'
        )
    if to not in PER_SAMPLE_NORMS:
        raise ConfigError(f'to = "{to}": must be one of {", ".join(PER_SAMPLE_NORMS)}')
    if groups < 1:
        raise ConfigError(f"groups = {groups}: must be at least 1; 2 is usual")


def _check_layers(places: dict[str, BatchNorm], model: nn.Module) -> None:
    if not places:
        found = ", ".join(sorted({type(layer).__name__ for layer in model.modules()}))
        raise DataError(
            f"the model has no batch normalisation layer to convert, only {found}: it can be "
            "trained as it is"
        )
    for place, layer in places.items():
        name = place or "model"
        if layer.num_features == 0:
            raise DataError(f"BN layer {name!r} is lazy: run the model once before handing it over")
        if type(layer).forward not in TORCH_FORWARDS:
            raise DataError(
                f"BN layer {name!r} is a {type(layer).__name__} with a forward of its own, which "
                "would be lost: use torch's BatchNorm, with what it adds in a layer behind it"
            )


def _converted(name: str, layer: BatchNorm, to: str, groups: int) -> nn.GroupNorm:
    n_channels = layer.num_features
    count = group_count(to, groups, n_channels)
    if n_channels % count:
        raise DataError(
            f"BN layer {name!r} has {n_channels} channels, which {count} groups do not divide: "
            f"choose groups among the divisors of {n_channels}, or layer or instance"
        )
    norm = grouped_norm(count, n_channels, eps=layer.eps, affine=layer.affine)
    norm.weight, norm.bias = layer.weight, layer.bias
    return norm.train(layer.training)


def _standardise_convolutions(model: nn.Module) -> None:
    convolutions = [x for x in model.named_modules() if isinstance(x[1], Convolution)]
    if not convolutions:
        raise DataError(
            'the model has no convolution whose weights "group-ws" could standardise: use group'
        )
    standardise_weights(convolutions)

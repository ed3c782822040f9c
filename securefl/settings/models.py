"""Built-in models by the names of settings: the samples that they take, and their sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from securefl.data.catalogue import Inputs
from securefl.errors import ConfigError

NormName = Literal["batch", "group", "layer", "instance", "group-ws", "scaled-ws", "fixup"]
NORMS: tuple[NormName, ...] = get_args(NormName)
PER_SAMPLE_NORMS = ("group", "layer", "instance", "group-ws")


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A built-in model."""

    takes: frozenset[Inputs]
    """Forms of its samples."""
    width: int
    """Width where none is given: hidden units of the mlp, channels of others' first stage."""


MODELS: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "mlp": BuiltIn(frozenset({Inputs.IMAGES, Inputs.READINGS}), 30),
        "cnn": BuiltIn(frozenset({Inputs.IMAGES}), 16),
        "resnet20": BuiltIn(frozenset({Inputs.IMAGES}), 16),
        "alexnet": BuiltIn(frozenset({Inputs.IMAGES}), 64),
        "unet": BuiltIn(frozenset({Inputs.VOLUMES}), 8),
    }
)


def group_count(norm: str, groups: int, n_channels: int) -> int:
    """Return the number of groups that a norm of PER_SAMPLE_NORMS makes of so many channels."""
    return {"layer": 1, "instance": n_channels}.get(norm, groups)


def width_of(name: str, norm: str, groups: int, width: int | None) -> int:
    """Return the width of a built-in model with such a norm.

    Args:
        name: of the model.
        norm: one of NORMS.
        groups: of channels; only "group" and "group-ws" look at it.
        width: the one that is asked for; the model's own where None.

    Raises:
        ConfigError: a name is unknown, or the sizes do not go with the model or the norm.
    """
    if name not in MODELS:
        raise ConfigError(f'model.name = "{name}": must be one of {", ".join(MODELS)}')
    if norm not in NORMS:
        raise ConfigError(f'model.norm = "{norm}": must be one of {", ".join(NORMS)}')
    if norm == "fixup" and name != "resnet20":
        raise ConfigError(
            f'model.norm = "fixup" with model.name = "{name}": Fixup scales residual branches, and '
            'this model has none; set model.name = "resnet20", or another norm'
        )
    width = MODELS[name].width if width is None else width
    if width < 1 and (name != "mlp" or width < 0):
        raise ConfigError(
            f'model.width = {width} with model.name = "{name}": the mlp alone is linear, with 0 '
            f'hidden units; set model.name = "mlp", or a width such as {MODELS[name].width}'
        )
    if norm in PER_SAMPLE_NORMS and width:
        _check_groups(name, norm, group_count(norm, groups, width), width)
    return width


def _check_groups(name: str, norm: str, groups: int, width: int) -> None:
    if groups < 1:
        raise ConfigError(f"model.groups = {groups}: must be at least 1; 2 is usual")
    if width % groups:
        raise ConfigError(
            f'model.groups = {groups} with model.norm = "{norm}": must divide the {width} channels '
            f"of the {name}'s model.width; take a divisor of {width}, or model.width = "
            f"{width + groups - width % groups}"
        )
    # The alexnet's linear layers have 64 units for each of its width.
    if (name == "mlp" and width == groups) or (name == "alexnet" and norm == "instance"):
        raise ConfigError(
            f'model.norm = "{norm}" with model.name = "{name}": would make a group of each hidden '
            "unit, and one value alone normalises to zero, whatever the sample; have at least two "
            'units a group by model.width and model.groups, or set model.norm = "batch"'
        )

"""Built-in models by the name that settings use, and the form of samples that each takes."""

from collections.abc import Mapping
from types import MappingProxyType

from securefl.data.catalogue import Inputs

MODELS: Mapping[str, frozenset[Inputs]] = MappingProxyType(
    {
        "mlp": frozenset({Inputs.IMAGES, Inputs.READINGS}),
        "cnn": frozenset({Inputs.IMAGES}),
        "resnet20": frozenset({Inputs.IMAGES}),
        "alexnet": frozenset({Inputs.IMAGES}),
        "unet": frozenset({Inputs.VOLUMES}),
    }
)

"""Corruptions of images as by a worse camera, in four families of five severities.

After Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations" (ICLR 2019), for images of any size from 8 × 8 on. The names are those of the files
of CIFAR-10-C. Each module says where its levels deviate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from securefl.data.catalogue import CORRUPTION_FAMILIES
from securefl.data.corruptions import blur, digital, noise, weather
from securefl.data.corruptions.images import Distortion, Images, check_images
from securefl.errors import ConfigError

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "corrupt"]

SEVERITIES = range(1, 6)
_BLOCK = 1024  # images at a time: intermediate results are several times as large as these


@dataclass(frozen=True, slots=True)
class Corruption:
    """One way to spoil images; call it through `corrupt`, which checks and clips."""

    family: str
    distort: Distortion


_MODULES = {"noise": noise, "blur": blur, "weather": weather, "digital": digital}

CORRUPTIONS: Mapping[str, Corruption] = MappingProxyType(
    {
        name: Corruption(family, getattr(_MODULES[family], name))
        for name, family in CORRUPTION_FAMILIES.items()
    }
)


def corrupt(images: Images, name: str, severity: int, rng: np.random.Generator) -> Images:
    """Return a corrupted copy of the same shape and type, in [0, 1].

    Every image gets its own random draw. The same images and the same state of `rng` give the
    same result.

    Args:
        images: floats in [0, 1], sides of at least 8.
        name: a key of `CORRUPTIONS`.
        severity: 1 (mild) to 5.
        rng: where noise, angles and clouds are drawn from.

    Raises:
        ConfigError: no such corruption or severity.
        DataError: no such images.
    """
    if name not in CORRUPTIONS:
        raise ConfigError(f'corruption = "{name}": must be one of {", ".join(CORRUPTIONS)}')
    if severity not in SEVERITIES:
        raise ConfigError(
            f"severity = {severity}: must be a whole number from {SEVERITIES[0]} (mild) "
            f"to {SEVERITIES[-1]}"
        )
    check_images(images)
    corrupted = np.empty_like(images)
    for start in range(0, len(images), _BLOCK):
        block = images[start : start + _BLOCK].astype(np.float64)
        distorted = CORRUPTIONS[name].distort(block, severity, rng)
        corrupted[start : start + _BLOCK] = distorted.clip(0, 1)
    return corrupted

"""Quality of clients' data, low at stated shares; each client's quality is a label.

Wu et al., "FedProf", section 5.1. The paper names the kinds and their shares, and of their
strengths the density of salt and pepper alone; the others are ours, and stand beside each kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np

# scipy has no type information of its own.
import scipy  # type: ignore[import-untyped, unused-ignore]
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from securefl.data.corruptions.images import Images, check_images
from securefl.data.split import Labelled
from securefl.errors import ConfigError, DataError

DENSITY = 0.3
"""Density of salt and pepper, the paper's."""
BLUR = 1 / 8
"""Standard deviation of the bell, as a share of an image's shorter side."""
NOISE = 1.0
"""Standard deviation of a noisy sensor's error, in those of each feature over all clients."""
INVALID = 5.0
"""Reading of a polluted sensor, in standard deviations above each feature's mean."""
_PHOTO_SIDE = 128


class Quality(StrEnum):
    """Fault of a client's data."""

    NORMAL = "normal"
    IRRELEVANT = "irrelevant"
    """Images of something else under the client's labels: patches of photographs, where the task is
    digits or objects."""
    BLURRED = "blurred"
    """Images smeared to a bell."""
    SALT_AND_PEPPER = "salt-and-pepper"
    """Images with pixels that are black or white, whatever was there."""
    POLLUTED = "polluted"
    """Readings of which half of the features, the same for all samples, are one invalid value."""
    NOISY = "noisy"
    """Readings with normal noise."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientQualities:
    """Readings of all clients, feature by feature, in which a sensor's errors are measured."""

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]

    @classmethod
    def of(cls, x: Float[Tensor, "n d"]) -> "ClientQualities":
        """Return the mean and deviation of these readings."""
        return cls(x.mean(dim=0), x.std(dim=0))


def assign_qualities(
    n_clients: int, shares: Mapping[Quality, float], rng: np.random.Generator
) -> tuple[Quality, ...]:
    """Draw each client's quality, in random order; what `shares` leaves is normal.

    Counts are the shares of `n_clients`, rounded to less than one client.

    Raises:
        ConfigError: a share below 0, or shares that sum to more than 1.
    """
    total = sum(shares.values())
    if not (all(share >= 0 for share in shares.values()) and total <= 1 + 1e-9):
        listed = ", ".join(f"{quality} {share}" for quality, share in shares.items())
        raise ConfigError(f"shares of clients: {listed}; each from 0 on, together at most 1")
    ends = np.floor(np.cumsum(list(shares.values())) * n_clients + 0.5 + 1e-9).astype(int)
    counts = np.diff(np.minimum(ends, n_clients), prepend=0)
    drawn = [quality for quality, n in zip(shares, counts, strict=True) for _ in range(n)]
    drawn += [Quality.NORMAL] * (n_clients - len(drawn))
    return tuple(drawn[i] for i in rng.permutation(n_clients))


def spoilt_clients(
    clients: Sequence[Labelled], shares: Mapping[Quality, float], rng: np.random.Generator
) -> tuple[Sequence[Labelled], Sequence[Quality]]:
    """Return every client's samples at the quality that is drawn for it, and these qualities.

    An image's pixels are readings where a sensor's quality is asked for.

    Raises:
        ConfigError: shares as `assign_qualities` refuses them, or readings at a quality of images.
        DataError: images outside [0, 1], or readings of one feature.
    """
    qualities = assign_qualities(len(clients), shares, rng)
    population = None
    spoilt: list[Labelled] = []
    for (x, y), quality in zip(clients, qualities, strict=True):
        match quality:
            case Quality.NORMAL:
                spoilt.append((x, y))
            case Quality.POLLUTED | Quality.NOISY:
                population = population or ClientQualities.of(
                    torch.cat([x.flatten(1) for x, _ in clients])
                )
                rows = spoilt_readings(x.flatten(1), quality, population, rng)
                spoilt.append((rows.reshape(x.shape), y))
            case _ if x.dim() == 2:
                raise ConfigError(f'quality "{quality}" is of images, not of readings')
            case _:
                spoilt.append((spoilt_images(x, quality, rng), y))
    return spoilt, qualities


def spoilt_images(
    x: Float[Tensor, "n c h w"], quality: Quality, rng: np.random.Generator
) -> Float[Tensor, "n c h w"]:
    """Spoil one client's images at this quality, in [0, 1]; the labels stay as they are.

    Raises:
        ConfigError: a quality of sensors' readings.
        DataError: no images in [0, 1].
    """
    images = x.numpy(force=True)
    check_images(images)
    match quality:
        case Quality.NORMAL:
            spoilt = images
        case Quality.IRRELEVANT:
            spoilt = _photographs(images.shape, rng)
        case Quality.BLURRED:
            sigma = BLUR * min(images.shape[2:])
            spoilt = scipy.ndimage.gaussian_filter(images, (0, 0, sigma, sigma), mode="nearest")
        case Quality.SALT_AND_PEPPER:
            hit, white = (rng.random((len(images), 1, *images.shape[2:])) for _ in range(2))
            spoilt = np.where(hit < DENSITY, np.round(white), images)
        case _:
            raise ConfigError(f'quality "{quality}" is of readings, not of images')
    return torch.tensor(spoilt).clamp(0, 1).to(x)


def spoilt_readings(
    x: Float[Tensor, "n d"], quality: Quality, population: ClientQualities, rng: np.random.Generator
) -> Float[Tensor, "n d"]:
    """Spoil one sensor's readings at this quality.

    Raises:
        ConfigError: a quality of images.
        DataError: fewer than two features.
    """
    n, d = x.shape
    if d < 2:
        raise DataError(f"readings of {d} feature: half of them are polluted, so have two or more")
    match quality:
        case Quality.NORMAL:
            return x.clone()
        case Quality.POLLUTED:
            broken = torch.from_numpy(rng.permutation(d) < d // 2)
            return torch.where(broken, population.mean + INVALID * population.std, x).to(x)
        case Quality.NOISY:
            drawn = torch.from_numpy(rng.standard_normal((n, d))).to(x)
            return x + NOISE * population.std * drawn
        case _:
            raise ConfigError(f'quality "{quality}" is of images, not of readings')


def _photographs(shape: tuple[int, ...], rng: np.random.Generator) -> Images:
    """Draw random patches of the two photographs that come with scikit-learn."""
    _, channels, height, width = shape
    fold = max(1, _PHOTO_SIDE // max(height, width))  # pixels of the photograph in one, each way
    photos = _photos()
    patches = np.empty(shape)
    for patch in patches:
        photo = photos[rng.integers(len(photos))]
        top = rng.integers(photo.shape[0] - fold * height + 1)
        left = rng.integers(photo.shape[1] - fold * width + 1)
        cut = photo[top : top + fold * height, left : left + fold * width] / 255
        small = cut.reshape(height, fold, width, fold, -1).mean(axis=(1, 3)).transpose(2, 0, 1)
        patch[:] = small if channels == len(small) else small.mean(axis=0)
    return patches


@cache
def _photos() -> tuple[NDArray[np.uint8], ...]:
    from sklearn.datasets import load_sample_images

    return tuple(load_sample_images().images)

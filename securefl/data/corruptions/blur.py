"""Blur: by a soft lens, out of focus, by a moving and by a zooming camera.

Lengths are in pixels at 32 × 32 (see `pixels`). Beyond an image's edge its last pixel goes on.
Gaussian, motion and zoom have CIFAR-10-C's levels (Hendrycks & Dietterich 2019). Its defocus has
not: a disc drawn in whole pixels is a single pixel at three of its five radii.
"""

import math

import numpy as np

# scipy has no type information of its own.
import scipy  # type: ignore[import-untyped, unused-ignore]
from jaxtyping import Float

from securefl.data.corruptions.images import Images, pixels

_GAUSSIAN_SIGMA = (0.4, 0.6, 0.7, 0.8, 1.0)
_DISC_RADIUS = (0.7, 0.9, 1.1, 1.3, 1.6)
_MOTION_SIGMA = (1.0, 1.5, 2.0, 2.25, 2.5)
_ZOOM = (1.05, 1.10, 1.15, 1.20, 1.25)
_N_ZOOM_STEPS = 11
_SUBPIXELS = 9


def gaussian_blur(images: Images, severity: int, _rng: np.random.Generator) -> Images:
    """Smear every pixel to a bell."""
    sigma = pixels(images, _GAUSSIAN_SIGMA[severity - 1])
    blurred: Images = scipy.ndimage.gaussian_filter(images, (0, 0, sigma, sigma), mode="nearest")
    return blurred


def defocus_blur(images: Images, severity: int, _rng: np.random.Generator) -> Images:
    """Smear every pixel to a disc, as by an open lens."""
    kernel = _disc(pixels(images, _DISC_RADIUS[severity - 1]))
    blurred: Images = scipy.ndimage.convolve(images, kernel[None, None], mode="nearest")
    return blurred


def motion_blur(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Drag every image its own way, at most 45° off the horizontal."""
    angles = rng.uniform(-math.pi / 4, math.pi / 4, size=len(images))
    return dragged(images, pixels(images, _MOTION_SIGMA[severity - 1]), angles)


def zoom_blur(images: Images, severity: int, _rng: np.random.Generator) -> Images:
    """Return the mean of an image and of its centre enlarged step by step."""
    height, width = images.shape[2:]
    total: Images = images.copy()
    for factor in np.linspace(1, _ZOOM[severity - 1], _N_ZOOM_STEPS):
        total += _zoom_weights(height, factor) @ images @ _zoom_weights(width, factor).T
    return total / (_N_ZOOM_STEPS + 1)


def dragged(images: Images, sigma: float, angles: Float[np.ndarray, " n"]) -> Images:
    """Blur each image to one side along its own angle (radians, 90° is downwards)."""
    out = np.empty_like(images)
    for image, angle, blurred in zip(images, angles, out, strict=True):
        scipy.ndimage.convolve(image, line(sigma, angle)[None], output=blurred, mode="nearest")
    return out


def line(sigma: float, angle: float) -> Float[np.ndarray, "k k"]:
    """Return half a bell along a line from the kernel's centre, with sum 1."""
    steps = np.arange(math.ceil(3 * sigma) + 1)
    reach = len(steps)
    across = np.arange(-reach, reach + 1)
    # A point between pixels is shared by its four neighbours.
    rows = np.maximum(0, 1 - np.abs(across[:, None] - steps * math.sin(angle)))
    columns = np.maximum(0, 1 - np.abs(across[:, None] - steps * math.cos(angle)))
    kernel: Float[np.ndarray, "k k"] = (rows * np.exp(-(steps**2) / (2 * sigma**2))) @ columns.T
    kernel /= kernel.sum()
    return kernel


def _disc(radius: float) -> Float[np.ndarray, "k k"]:
    """Return the share of each pixel that a disc covers, with sum 1."""
    n_pixels = 2 * math.ceil(radius) + 1
    fine = (np.arange(n_pixels * _SUBPIXELS) + 0.5) / _SUBPIXELS - n_pixels / 2
    inside = fine[:, None] ** 2 + fine**2 <= radius**2
    covered = inside.reshape(n_pixels, _SUBPIXELS, n_pixels, _SUBPIXELS).sum(axis=(1, 3))
    kernel: Float[np.ndarray, "k k"] = covered / covered.sum()
    return kernel


def _zoom_weights(side: int, factor: float) -> Float[np.ndarray, "side side"]:
    """Return linear interpolation's weights for an enlargement by `factor` ≥ 1."""
    centre = (side - 1) / 2
    places = centre + (np.arange(side) - centre) / factor
    weights: Float[np.ndarray, "side side"]
    weights = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(side)))
    return weights

"""Weather in front of the camera: fog, snow, frost.

Fog has CIFAR-10-C's levels (Hendrycks & Dietterich 2019), with clouds made from their spectrum
instead of by midpoints. Their frost is six photographs, which are not in this package: here the
crystals are drawn. Snow is theirs in its parts, at levels whose flakes grow denser step by step.
"""

import math

import numpy as np
from jaxtyping import Float

from securefl.data.corruptions.blur import dragged, line
from securefl.data.corruptions.images import Images, pixels

_FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))  # thickness, decay
_SNOW = (
    (0.01, 1.0, 0.05),
    (0.02, 1.0, 0.1),
    (0.04, 1.25, 0.1),
    (0.06, 1.5, 0.15),
    (0.08, 1.5, 0.2),
)
_FROST_OPACITY = (0.25, 0.4, 0.55, 0.7, 0.85)
_FROST_DECAY = 1.75


def fog(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Lay bright clouds over the image, which loses as much contrast as they add."""
    thickness, decay = _FOG[severity - 1]
    brightest: Images = images.max(axis=(1, 2, 3), keepdims=True)
    clouded = images + thickness * _clouds(images, decay, rng)
    faded: Images = clouded * brightest / (brightest + thickness)
    return faded


def snow(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Lay falling flakes, near and far, over an image that whitens."""
    density, drag, whitening = _SNOW[severity - 1]
    flakes = _flakes(images, density, pixels(images, drag), rng)
    grey = images.mean(axis=1, keepdims=True)
    white = np.maximum(images, 1.5 * grey + 0.5)
    # The same flakes turned by 180° pass for a second layer, as in the original.
    whitened: Images = images + whitening * (white - images)
    whitened += flakes + flakes[:, :, ::-1, ::-1]
    return whitened


def frost(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Hide the image behind bright crystals on the pane, densest at the edges."""
    ridges = 1 - np.abs(2 * _clouds(images, _FROST_DECAY, rng) - 1)
    height, width = images.shape[2:]
    depth = 4 * np.outer(_to_edge(height), _to_edge(width))  # 0 at the edge, 1 in the centre
    hidden = _FROST_OPACITY[severity - 1] * ridges ** (1 + 2 * depth)
    frosted: Images = images + hidden * (0.6 + 0.4 * ridges - images)
    return frosted


def _clouds(images: Images, decay: float, rng: np.random.Generator) -> Float[np.ndarray, "n 1 h w"]:
    """Draw a random field in [0, 1] per image, `decay` times weaker at every doubled frequency."""
    n, _, height, width = images.shape
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf  # no weight for the mean
    # One octave holds 4 times the frequencies of the one below, so white noise doubles in it.
    amplitude = frequency ** -(1 + math.log2(decay))
    white = np.fft.rfft2(rng.standard_normal((n, 1, height, width)))
    field: Float[np.ndarray, "n 1 h w"] = np.fft.irfft2(white * amplitude, s=(height, width))
    field -= field.min(axis=(2, 3), keepdims=True)
    field /= field.max(axis=(2, 3), keepdims=True)
    return field


def _flakes(
    images: Images, density: float, drag: float, rng: np.random.Generator
) -> Float[np.ndarray, "n 1 h w"]:
    """Draw flakes of one pixel at 32 × 32, each dragged downwards and as bright as before."""
    n, _, height, width = images.shape
    size = round(pixels(images, 1.0))
    cells = (n, 1, math.ceil(height / size), math.ceil(width / size))
    bright: Float[np.ndarray, "n 1 rows columns"] = np.where(
        rng.random(cells) < density, rng.uniform(0.5, 1, cells), 0
    )
    layer = bright.repeat(size, axis=2).repeat(size, axis=3)[:, :, :height, :width]
    angles: Float[np.ndarray, " n"] = rng.uniform(math.pi / 4, 3 * math.pi / 4, size=(n,))
    # What a downward drag leaves of the brightest pixel of a flake, which is `size` pixels high.
    peak = float(np.sort(line(drag, math.pi / 2).max(axis=1))[-size:].sum())
    flakes = dragged(layer, drag, angles)
    return np.minimum(1, flakes / peak)


def _to_edge(side: int) -> Float[np.ndarray, " side"]:
    """Return the distance to the nearer end, as a share of the side: 0 to 1/2."""
    places = np.arange(side) / (side - 1)
    return np.minimum(places, 1 - places)

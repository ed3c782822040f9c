"""Noise in single pixels: in the sensor, of few photons, and of dead pixels.

The levels are CIFAR-10-C's (Hendrycks & Dietterich 2019, `make_cifar_c.py`).
"""

import numpy as np

from securefl.data.corruptions.images import Images

_SIGMA = (0.04, 0.06, 0.08, 0.09, 0.10)
_PHOTONS = (500, 250, 100, 75, 50)  # that a white pixel counts
_HIT_SHARE = (0.01, 0.02, 0.03, 0.05, 0.07)


def gaussian_noise(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Move every value by a normal draw, as in poor light."""
    return images + rng.normal(scale=_SIGMA[severity - 1], size=images.shape)


def shot_noise(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Count every value in photons, a Poisson draw; black stays black."""
    photons = _PHOTONS[severity - 1]
    return rng.poisson(images * photons) / photons


def impulse_noise(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Lose a share of all values, half to 0 and half to 1: salt and pepper."""
    draw = rng.random(images.shape)
    share = _HIT_SHARE[severity - 1]
    return np.where(draw < share, (draw < share / 2).astype(images.dtype), images)

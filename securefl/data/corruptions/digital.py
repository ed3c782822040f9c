"""Faults of a camera's electronics and of its files: contrast, brightness, pixels, JPEG.

The levels are CIFAR-10-C's (Hendrycks & Dietterich 2019) but for pixelation, whose steps here are
wide enough to differ on an image of 8 × 8.
"""

from io import BytesIO

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from securefl.data.corruptions.images import Images

_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
_BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)
_KEPT_SIDE = (0.875, 0.75, 0.625, 0.5, 0.375)
_JPEG_QUALITY = (80, 65, 58, 50, 40)


def contrast(images: Images, severity: int, _rng: np.random.Generator) -> Images:
    """Draw every channel towards its mean in its image."""
    mean = images.mean(axis=(2, 3), keepdims=True)
    faded: Images = mean + _CONTRAST[severity - 1] * (images - mean)
    return faded


def brightness(images: Images, severity: int, _rng: np.random.Generator) -> Images:
    """Raise the brightest channel of each pixel, to 1 at most; hue and saturation stay."""
    value: Images = images.max(axis=1, keepdims=True)
    raised = np.minimum(1, value + _BRIGHTNESS[severity - 1])
    # A black pixel has no hue: it turns grey.
    lit: Images = np.where(value > 0, images * (raised / np.where(value > 0, value, 1)), raised)
    return lit


def pixelate(images: Images, severity: int, _rng: np.random.Generator) -> Images:
    """Return fewer and larger pixels, each the mean of what it covers.

    An old pixel that two of these share gets their mean. The nearest one instead would shift the
    image by up to half a pixel, which spoils an 8 × 8 digit more at 6 pixels a side than at 5.
    """
    height, width = images.shape[2:]
    rows, columns = (_pixelated(side, _KEPT_SIDE[severity - 1]) for side in (height, width))
    large: Images = rows @ images @ columns.T
    return large


def jpeg_compression(images: Images, severity: int, _rng: np.random.Generator) -> Images:
    """Return what is left after a JPEG file; but for three channels, each is compressed by itself.

    The same bytes on the same libjpeg; another build of it may round differently.
    """
    pixels_8bit = np.rint(images * 255).astype(np.uint8)
    quality = _JPEG_QUALITY[severity - 1]
    if images.shape[1] == 3:
        decoded = [_through_jpeg(one.transpose(1, 2, 0), quality) for one in pixels_8bit]
        return np.stack(decoded).transpose(0, 3, 1, 2) / 255
    planes = pixels_8bit.reshape(-1, *images.shape[2:])
    return np.stack([_through_jpeg(one, quality) for one in planes]).reshape(images.shape) / 255


def _through_jpeg(image: UInt8[np.ndarray, "h w *c"], quality: int) -> UInt8[np.ndarray, "h w *c"]:
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def _pixelated(side: int, share: float) -> Float[np.ndarray, "side side"]:
    kept = round(share * side)
    weights: Float[np.ndarray, "side side"] = _box_weights(kept, side) @ _box_weights(side, kept)
    return weights


def _box_weights(n_old: int, n_new: int) -> Float[np.ndarray, "new old"]:
    """Return the part of each new pixel that every old one covers, on a line of the same length."""
    starts = np.arange(n_new)[:, None] * n_old / n_new
    old = np.arange(n_old)
    overlap = np.minimum(starts + n_old / n_new, old + 1) - np.maximum(starts, old)
    weights: Float[np.ndarray, "new old"] = np.maximum(0, overlap) * n_new / n_old
    return weights

"""Handwritten digits that come with scikit-learn, so that no example needs a download."""

import torch

from securefl.data.split import Split, stratified
from securefl.settings.data import DataTable


def read_digits(_data: DataTable, seed: int) -> Split:
    """Return the digits as images, a fifth of every class for testing."""
    return load_digits(seed, torch.float64).as_images()


def load_digits(seed: int = 0, dtype: torch.dtype = torch.float32) -> Split:
    """Load 1437 training and 360 test digits of 64 pixels (8 × 8, flat), each in 0..1.

    Args:
        seed: chooses which fifth of every class is held out for testing.
        dtype: the pixels' type; labels are int64.
    """
    # scikit-learn takes a second to import; who brings other data does not wait for it.
    from sklearn.datasets import load_digits as packaged

    pixels, labels = packaged(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=dtype), torch.tensor(labels, dtype=torch.int64)
    return stratified(x, y, seed)

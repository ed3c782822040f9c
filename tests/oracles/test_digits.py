"""The digits arrive as scikit-learn has them, split the same way for the same seed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from sklearn import datasets

from securefl.data.digits import load_digits
from securefl.data.split import Split
from securefl.errors import DataError


def sorted_rows(x: torch.Tensor) -> list[list[float]]:
    return sorted(x.tolist())


def test_the_two_parts_are_scikit_learns_digits_divided_by_16():
    """Training and test digits together are all 1797 digits, each pixel in 0..1."""
    digits = load_digits(dtype=torch.float64)
    pixels, labels = datasets.load_digits(return_X_y=True)
    assert sorted_rows(torch.cat([digits.train_x, digits.test_x])) == sorted_rows(
        torch.tensor(pixels / 16)
    )
    both = torch.cat([digits.train_y, digits.test_y])
    assert torch.equal(both.bincount(), torch.tensor(labels).bincount())
    assert digits.train_x.min() == 0
    assert digits.train_x.max() == 1


def test_a_fifth_of_every_class_is_held_out():
    """1437 digits train and 360 test, and each class has a fifth of its samples among these."""
    digits = load_digits()
    assert digits.train_x.shape == (1437, 64)
    assert digits.test_x.shape == (360, 64)
    assert digits.train_x.dtype == torch.float32
    assert digits.train_y.dtype == torch.int64
    assert digits.n_classes == 10
    held_out = digits.test_y.bincount()
    everyone = held_out + digits.train_y.bincount()
    assert (held_out - everyone / 5).abs().max() <= 1


def test_the_seed_decides_the_split():
    """One seed always holds out the same digits, another seed other ones."""
    first, again, other = load_digits(seed=1), load_digits(seed=1), load_digits(seed=2)
    assert torch.equal(first.train_x, again.train_x)
    assert torch.equal(first.test_y, again.test_y)
    assert not torch.equal(first.test_x, other.test_x)


def test_an_image_has_the_pixels_of_its_flat_sample_row_by_row():
    """As images, digits keep their labels and their pixels."""
    digits = load_digits()
    images = digits.as_images()
    assert images.train_x.shape == (1437, 1, 8, 8)
    assert images.test_x.shape == (360, 1, 8, 8)
    assert torch.equal(images.train_x[5, 0, 2], digits.train_x[5, 16:24])
    assert torch.equal(images.test_y, digits.test_y)
    assert images.n_classes == 10


@pytest.mark.parametrize("shape", [(63,), (1, 8, 8)])
def test_only_flat_square_samples_become_images(shape):
    """Samples that are no flat squares are refused with their shape."""
    y = torch.zeros(2, dtype=torch.int64)
    split = Split(train_x=torch.rand(2, *shape), train_y=y, test_x=torch.rand(2, *shape), test_y=y)
    with pytest.raises(DataError, match="no flat square images"):
        split.as_images()


def test_what_is_slow_to_load_is_loaded_where_it_is_used():
    """Who brings other data does not wait for scikit-learn, nor a server's start for pictures."""
    code = "import securefl.network.server, sys; print({'%s'} & {*sys.modules})"
    code %= "', '".join(("sklearn", "scipy.ndimage", "matplotlib"))
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"

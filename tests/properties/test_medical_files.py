"""Files of medical images that a user brings: what is read of them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from standard_files import write_medmnist

from securefl.data.medmnist import MEDMNIST, MedSet, load_medmnist
from securefl.errors import DataError

pytestmark = pytest.mark.shapes

# MedMNIST


@pytest.mark.parametrize("n_channels", [1, 3])
def test_medmnist_comes_back_as_it_was_written(tmp_path, n_channels):
    """Training and test parts, pixels over 255; the validation part is nobody's."""
    written = write_medmnist(tmp_path, "bloodmnist", n_channels, [2, 0, 1])
    split = load_medmnist(tmp_path, "bloodmnist", MedSet(3, n_channels, ()))
    for part, x, y in (("train", split.train_x, split.train_y), ("test", *_test(split))):
        images = written[f"{part}_images"].reshape(3, 28, 28, n_channels).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(x.numpy(), images / np.float32(255))
        assert y.tolist() == [2, 0, 1]
        assert y.dtype is torch.int64


def _test(split):
    return split.test_x, split.test_y


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"train_images": np.zeros((3, 28, 28), "uint8")}, r"images of shape \(3, 28, 28\)"),
        ({"test_images": np.zeros((3, 28, 28, 3))}, "float64 images"),
        ({"test_labels": np.zeros((3, 14), "uint8")}, r"labels of shape \(3, 14\) for 3"),
        ({"train_labels": np.full((3, 1), 9, "uint8")}, "label 9"),
        ({"train_labels": np.array([[{}]] * 3)}, "is no .npz file that can be used .*pickle"),
    ],
)
def test_another_array_than_medmnist_has_is_refused(tmp_path, changes, rule):
    """By the file's name; objects are pickled, and never opened."""
    write_medmnist(tmp_path, "bloodmnist", 3, [2, 0, 1], **changes)
    with pytest.raises(DataError, match=rf"bloodmnist\.npz: .*{rule}"):
        load_medmnist(tmp_path, "bloodmnist", MedSet(8, 3, ()))


def test_medmnist_is_compared_with_its_checksum_and_needs_all_arrays(tmp_path):
    """OrganAMNIST has one for each of two releases."""
    write_medmnist(tmp_path, "organamnist", 1, [0])
    with pytest.raises(DataError, match=r"MD5 is .*, the official file has 866b832e.* or 68e3f884"):
        load_medmnist(tmp_path, "organamnist", MEDMNIST["organamnist"])
    np.savez(tmp_path / "organamnist.npz", train_images=np.zeros(3))
    with pytest.raises(DataError, match="has no array train_labels, test_images, test_labels"):
        load_medmnist(tmp_path, "organamnist", MedSet(11, 1, ()))

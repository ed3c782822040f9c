"""Files of medical images that a user brings: what is read of them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from standard_files import write_isic2019, write_medmnist

from securefl.data.isic2019 import load_isic2019
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


# Fed-ISIC2019


def test_every_centre_of_isic2019_is_divided_as_its_table_says(tmp_path):
    """Three photographs to train and one to test, of the central square alone."""
    write_isic2019(tmp_path)
    folder = tmp_path / "ISIC_2019_Training_Input_preprocessed"
    pixels = np.zeros((16, 24, 3), np.uint8)
    pixels[:, 4:20] = 255  # the square; JPEG blurs its edges
    Image.fromarray(pixels).save(folder / "ISIC_0002_downsampled.jpg", quality=100)
    domains = load_isic2019(tmp_path, side=8)
    assert list(domains) == ["center-0", "center-5"]
    for i, split in enumerate(domains.values()):
        assert split.train_x.shape == (3, 3, 8, 8)
        assert split.train_y.tolist() == [i, 1 - i, 1 - i]
        assert split.test_y.tolist() == [i]
    assert float(domains["center-0"].test_x.min()) > 0.9
    assert float(domains["center-5"].test_x[:, 1:].max()) < 0.1


HEAD = "image,target,center,fold\n"


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ("", "has no lines"),
        (HEAD + "../x,0,0,train", r'sample 1: image = "\.\./x"'),
        (HEAD + "ISIC_1,8,0,train", r'target = "8": must be one of 0\.\.7'),
        (HEAD + "ISIC_1,0,6,train", 'center = "6"'),
        (HEAD + "ISIC_1,0,0,val", 'fold = "val"'),
        (HEAD + "ISIC_0000_downsampled,0,1,train", 'center-1 has no line with fold = "test"'),
        (HEAD + "ISIC_1,0,0,train\nISIC_2,0,0,test", "ISIC_1.jpg: no such file; put "),
        (b"\xff\xfe", "no table of text"),
    ],
)
def test_a_damaged_table_of_isic2019_is_refused(tmp_path, table, rule):
    """By the table's name, and the line's number."""
    write_isic2019(tmp_path)
    content = table if isinstance(table, bytes) else table.encode()
    (tmp_path / "train_test_split").write_bytes(content)
    with pytest.raises(DataError, match=f"{tmp_path}.*{rule}"):
        load_isic2019(tmp_path, side=8)
    write_isic2019(tmp_path)
    photograph = tmp_path / "ISIC_2019_Training_Input_preprocessed/ISIC_0010_downsampled.jpg"
    photograph.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"ISIC_0010_downsampled\.jpg: is no picture"):
        load_isic2019(tmp_path, side=8)

"""Files of medical images that a user brings: what is read of them, and what is refused."""

from __future__ import annotations

import builtins
import gzip
import logging
import struct
from contextlib import suppress

import nibabel
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from standard_files import write_isic2019, write_ixi_tiny, write_medmnist

import securefl
from securefl.data import isic2019, ixi_tiny, nifti
from securefl.data.isic2019 import load_isic2019
from securefl.data.ixi_tiny import load_ixi_tiny
from securefl.data.medmnist import MEDMNIST, MedSet, load_medmnist
from securefl.data.nifti import read_nifti
from securefl.errors import ConfigError, DataError
from securefl.runs.folder_reader import read_run
from securefl.settings.load import load_config
from securefl_cli.main import main

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
        ({"train_labels": np.array([[{}]] * 3)}, "is no .npz file .*holds object values, and must"),
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


# Fed-IXI


def area_means(voxels, shape):
    """Each new voxel is the mean of those that it touches."""
    return area_sums(voxels, shape) / area_sums(np.ones(voxels.shape), shape)


def area_sums(voxels, shape):
    """Along one axis after the other."""
    for axis, n in enumerate(shape):
        m = voxels.shape[axis]
        parts = [
            voxels.take(range(i * m // n, -(-(i + 1) * m // n)), axis).sum(axis) for i in range(n)
        ]
        voxels = np.stack(parts, axis)
    return voxels


def test_every_hospital_of_ixi_tiny_is_divided_as_its_table_says(tmp_path):
    """Volumes of mean 0 and deviation 1, and a mask of each voxel's majority."""
    written = write_ixi_tiny(tmp_path, sides=(97, 61, 40))
    domains = load_ixi_tiny(tmp_path)
    assert list(domains) == ["Guys", "HH", "IOP"]
    for i, split in enumerate(domains.values()):
        assert split.train_x.shape == split.test_x.shape == (2, 1, 48, 60, 48)
        image, mask = list(written.values())[i + 6]
        small = area_means(image.astype(np.float64), (48, 60, 48))
        expected = (small - small.mean()) / small.std()
        np.testing.assert_allclose(split.test_x[0, 0].numpy(), expected, atol=1e-4)
        brain = area_means(mask.astype(np.float64), (48, 60, 48)) >= 0.5
        np.testing.assert_array_equal(split.test_y[0].numpy(), brain)
        assert split.test_y.unique().tolist() == [0, 1]


FIRST = "IXI_sample/IXI000-Guys-0828/"


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lambda root: (root / FIRST).rename(root / "IXI_sample/IXI000-XX-1"), "XX-1: its hospital"),
        (lambda root: (root / FIRST).rename(root / "IXI_sample/gone"), "IXI000 has no folder"),
        (lambda root: (root / "IXI_sample/IXI099-HH-1").mkdir(), "no line of IXI099-HH-1"),
        (lambda root: (root / "IXI_sample/IXI000-HH-1").mkdir(), "another folder of one person"),
        (lambda root: next((root / FIRST / "T1").iterdir()).unlink(), "T1: 0 NIfTI files"),
        (lambda root: relabel(root, lambda y: 2 * y), "label.nii.gz: has values other than 0"),
        (lambda root: relabel(root, lambda y: y[1:]), r"label.nii.gz: \(7, 6, 5\) voxels"),
        (lambda root: retable(root, "test", "train"), 'nobody of Guys has Split = "test"'),
        (lambda root: retable(root, "train", "fit"), 'sample 1: Split = "fit"'),
        (lambda root: retable(root, "0,0", "../0,0"), r'Patient ID = "\.\./0"'),
        (lambda root: (root / "IXI_sample").rename(root / "x"), "IXI_sample: no such folder; put"),
    ],
)
def test_files_of_ixi_tiny_that_do_not_fit_are_refused(tmp_path, spoil, rule):
    """Each by its name, and no person is left out in silence."""
    write_ixi_tiny(tmp_path)
    spoil(tmp_path)
    with pytest.raises(DataError, match=f"{tmp_path}.*{rule}"):
        load_ixi_tiny(tmp_path)


def relabel(root, change):
    (path,) = (root / FIRST / "label").iterdir()
    mask = np.asarray(nibabel.load(path).dataobj)
    nibabel.save(nibabel.Nifti1Image(change(mask), np.eye(4)), path)


def retable(root, old, new):
    path = root / "metadata_tiny.csv"
    path.write_text(path.read_text().replace(old, new))


# NIfTI


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_nifti_file_comes_back_as_it_was_written(tmp_path, monkeypatch, kind, suffix):
    """With its scale, in either byte order, and a fourth axis of one volume; piece by piece."""
    monkeypatch.setattr(nifti, "_AT_ONCE", 7)
    voxels = np.arange(24, dtype=">i2").reshape(2, 3, 4, 1)
    image = kind(voxels, np.eye(4))
    image.header.set_slope_inter(0.5, 1)
    (tmp_path / "a").write_bytes(image.to_bytes())
    nibabel.save(image, path := tmp_path / f"a{suffix}")
    scaled = np.asarray(nibabel.load(path).dataobj)[..., 0]
    np.testing.assert_allclose(read_nifti(path), scaled, atol=1e-6)
    assert read_nifti(path).dtype == np.float32


def test_a_header_that_is_mended_is_no_news(tmp_path, capfd):
    """The reader has a logger of its own, which writes to stderr; others hear of it afterwards."""
    heard = logging.getLogger("nibabel.global")
    for mended in (changed(252, struct.pack("<2h", 77, 99)), b"no header"):
        (tmp_path / "a.nii").write_bytes(mended)
        with suppress(DataError):
            assert read_nifti(tmp_path / "a.nii").shape == (2, 3, 4)
        assert not heard.disabled
    assert capfd.readouterr().err == ""


def changed(at, new):
    content = bytearray(nibabel.Nifti1Image(np.ones((2, 3, 4), "f4"), np.eye(4)).to_bytes())
    content[at : at + len(new)] = new
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "is no NIfTI volume"),
        (b"no header at all", "does not begin as NIfTI"),
        (changed(344, b"ni1\0"), "not of a single file"),
        (changed(42, struct.pack("<3h", 9000, 9000, 9000)), "more than it holds"),
        (changed(40, struct.pack("<2h", 2, 2)), "expected three axes"),
        (changed(46, struct.pack("<h", -4)), "is no NIfTI volume"),
        (changed(70, struct.pack("<2h", 32, 64)), "must be real numbers"),
        (changed(352, struct.pack("<f", np.nan)), "a voxel is not finite"),
        (changed(0, b"")[:-1], "more than it holds"),
        (gzip.compress(b"\0" * (2**27 + 1), 1), "unpacks to more than"),
        (changed(0, b"")[:347], "is no NIfTI volume"),
        (gzip.compress(changed(0, b""))[:-9], "is no NIfTI volume"),
    ],
)
def test_another_file_than_a_nifti_volume_is_refused(tmp_path, content, rule):
    """Before memory is taken that a header or a gzip file only speaks of."""
    (tmp_path / "a.nii.gz").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.nii\.gz: .*{rule}"):
        read_nifti(tmp_path / "a.nii.gz")


def test_without_nibabel_the_command_that_brings_it_is_named(tmp_path, monkeypatch):
    """It is asked for where a file is read, and nowhere else."""
    write_ixi_tiny(tmp_path)
    known = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "nibabel":
            raise ImportError(name)
        return known(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="pip install nibabel"):
        load_ixi_tiny(tmp_path)


# Settings


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (("data.dataset=ixi-tiny", "data.root=x"), 'volumes are no .*; set model.name = "unet"'),
        (("data.dataset=ixi-tiny", "data.root=x", "model.name=cnn"), "volumes are no images; set"),
        (("model.name=unet",), "images are no volumes; set model.name = .*cnn"),
        (("data.dataset=gas-turbine", "data.root=x", "data.partition=iid", "model.name=unet"),
         'readings are no volumes; set model.name = "mlp"'),
    ],
)  # fmt: skip
def test_a_model_takes_samples_of_its_own_form(settings, rule):
    """Before anything is read."""
    with pytest.raises(ConfigError, match=rule):
        load_config(None, list(settings))


def test_a_run_on_ixi_tiny_is_scored_by_dice_at_each_hospital(tmp_path, monkeypatch):
    """From files to a sealed round, in the smallest U-Net."""
    monkeypatch.setattr(ixi_tiny, "SHAPE", (4, 5, 4))
    monkeypatch.setattr(ixi_tiny, "SIZES", {})
    write_ixi_tiny(tmp_path / "ixi")
    settings = [
        *("data.dataset=ixi-tiny", f"data.root='{tmp_path}/ixi'", "model.name=unet"),
        *("model.width=1", "algorithm.name=fedavg", "algorithm.local_steps=1"),
        *("run.rounds=1", "train.batch_size=2"),
    ]
    result = securefl.run(load_config(None, settings))
    assert result.metric == "dice"
    assert 0 <= result.metrics[-1].score <= 1


def test_a_run_on_isic2019_is_scored_at_each_centre(tmp_path, monkeypatch):
    """By the command of docs/data-sets.md, in one round of FedAvg on small pictures, in clear."""
    monkeypatch.setattr(isic2019, "SIZES", {})
    monkeypatch.chdir(tmp_path)
    write_isic2019(tmp_path / "isic", centers=(0, 3, 5), folds=("train", "test") * 2)
    command = "run --dataset isic2019 --data-root isic --set model.name=resnet20 --out runs/isic"
    short = "--set data.side=8 --rounds 1 --algorithm fedavg --encrypt none"
    done = CliRunner().invoke(main, [*command.split(), *short.split()], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (of,) = read_run(tmp_path / "runs/isic").metrics
    assert [0 <= scored.score <= 1 for scored in of.clients.values()] == [True] * 3

"""Data files are read as they were written; damaged ones are refused, whatever the damage."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct
import zlib
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from standard_files import (
    COLUMNS,
    bytes_of,
    idx,
    write_camelyon,
    write_cifar10,
    write_cifar10_c,
    write_cifar100,
    write_mnist,
    write_picture,
)

from securefl.data import cifar
from securefl.data.cifar import (
    Cifar100Target,
    load_cifar10,
    load_cifar10_c,
    load_cifar100,
    read_cifar10,
    read_cifar10_c,
    read_cifar100,
)
from securefl.data.files import check_file
from securefl.data.folders import load_camelyon17, load_domain_folders
from securefl.data.mnist import (
    FASHION_MNIST_SHA256,
    MNIST_SHA256,
    load_emnist,
    load_mnist,
    read_idx,
)
from securefl.errors import ConfigError, DataError
from securefl.settings.data import DataTable

# MNIST and EMNIST


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_comes_back_as_it_was_written(tmp_path, suffix):
    """Pixels are divided by 255 and have one channel; labels are int64."""
    images = write_mnist(tmp_path, suffix=suffix)
    split = load_mnist(tmp_path, sha256s={})
    assert split.train_x.dtype == torch.float32
    assert split.test_y.tolist() == [3, 1, 2]
    np.testing.assert_allclose(split.train_x[:, 0].numpy(), images["train"] / 255, atol=1e-7)
    np.testing.assert_allclose(split.test_x[:, 0].numpy(), images["t10k"] / 255, atol=1e-7)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_compared_with_the_official_content(tmp_path, suffix):
    """By default the unpacked content must be MNIST's own, packed or not."""
    write_mnist(tmp_path, suffix=suffix)
    with pytest.raises(DataError, match=r"train-images.*its content is not this data set's"):
        load_mnist(str(tmp_path))
    names = {path.name.removesuffix(".gz") for path in tmp_path.iterdir()}
    assert set(MNIST_SHA256) == set(FASHION_MNIST_SHA256) == names


def test_content_counts_and_not_how_it_was_packed(tmp_path):
    """Debian packs Fashion-MNIST anew: other bytes on the disk, the same files in them."""
    write_mnist(tmp_path, suffix=".gz")
    content = {path: gzip.decompress(path.read_bytes()) for path in tmp_path.iterdir()}
    sha256s = {
        path.name.removesuffix(".gz"): hashlib.sha256(unpacked).hexdigest()
        for path, unpacked in content.items()
    }
    for level in (1, 9):
        for path, unpacked in content.items():
            path.write_bytes(gzip.compress(unpacked, level, mtime=level))
        assert load_mnist(tmp_path, sha256s).test_y.tolist() == [3, 1, 2]


def test_a_checksum_is_that_of_the_bytes(tmp_path):
    """MD5 and SHA-1 of nothing at all are numbers everyone knows."""
    (tmp_path / "empty").write_bytes(b"")
    check_file(tmp_path / "empty", "md5", "d41d8cd98f00b204e9800998ecf8427e")
    check_file(tmp_path / "empty", "sha1", "da39a3ee5e6b4b0d3255bfef95601890afd80709")
    with pytest.raises(DataError, match=r"MD5 is d41d.*download it again"):
        check_file(tmp_path / "empty", "md5", "0" * 32)


def test_emnist_stands_upright(tmp_path):
    """EMNIST's files hold images transposed; the loader turns them as MNIST's are."""
    images = write_mnist(
        tmp_path / "gzip", ("emnist-balanced-train", "emnist-balanced-test"), (0, 46, 5), ".gz"
    )
    split = load_emnist(tmp_path, "balanced")
    written = images["emnist-balanced-train"].transpose(0, 2, 1) / 255
    np.testing.assert_allclose(split.train_x[:, 0].numpy(), written, atol=1e-7)
    assert split.train_x.is_contiguous()
    assert split.n_classes == 47


def test_emnist_letters_count_from_zero(tmp_path):
    """The file's labels 1..26 become 0..25, and a 0 in the file is refused."""
    parts = ("emnist-letters-train", "emnist-letters-test")
    write_mnist(tmp_path, parts, (1, 26, 5))
    assert load_emnist(tmp_path, "letters").train_y.tolist() == [0, 25, 4]
    write_mnist(tmp_path, parts, (0, 26, 5))
    with pytest.raises(DataError, match="label 255"):
        load_emnist(tmp_path, "letters")


def test_an_unknown_emnist_split_is_refused_with_those_there_are(tmp_path):
    """The message lists the six splits."""
    with pytest.raises(ConfigError, match="must be one of byclass, bymerge, balanced"):
        load_emnist(tmp_path, "greek")


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "starts with nothing"),
        (b"\x00\x00\x0d\x03" + bytes(40), "starts with 00000d03"),
        (idx(bytes_of(3, 28, 28))[:9], "within its header"),
        (idx(bytes_of(3, 28, 28))[:-1], "more than the file can hold|fewer"),
        (idx(bytes_of(3, 28, 28)) + b"x", "more than the 2352"),
        (idx(bytes_of(3, 20, 28)), r"samples of shape \(20, 28\)"),
        (struct.pack(">4I", 0x803, 2**32 - 1, 28, 28), "speaks of 3367254359280 values"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_damaged_idx_file_is_refused(tmp_path, content, rule, suffix):
    """Wrong magic, truncated, too long, oversized: packed or not, the message says which."""
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(DataError, match=rule):
        read_idx(path, (28, 28))


def test_a_packed_file_that_unpacks_without_end_is_not_unpacked(tmp_path):
    """What comes after the announced values is not read: 100 MB of zeros cost a kilobyte more."""
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(struct.pack(">4I", 0x803, 1, 28, 28) + bytes(100_000_000), 1))
    with pytest.raises(DataError, match="more than the 784 values"):
        read_idx(path, (28, 28))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "not packed"])
def test_a_damaged_packed_file_is_refused(tmp_path, damage):
    """A broken download is a data error, not one of the unpacker's."""
    content = gzip.compress(idx(bytes_of(30, 28, 28)))
    broken = {
        "truncated": content[: len(content) // 2],
        "flipped": content[:-6] + bytes([content[-6] ^ 1]) + content[-5:],
        "not packed": idx(bytes_of(3, 28, 28)),
    }[damage]
    (tmp_path / "images.gz").write_bytes(broken)
    with pytest.raises(DataError, match="get the file again"):
        read_idx(tmp_path / "images.gz", (28, 28))


def test_images_without_their_labels_are_refused(tmp_path):
    """As many labels as images, each of a class there is."""
    write_mnist(tmp_path, labels=(1, 2))
    with pytest.raises(DataError, match="3 images, but 2 labels"):
        load_mnist(tmp_path, sha256s={})
    write_mnist(tmp_path, labels=(1, 2, 10))
    with pytest.raises(DataError, match=r"label 10; labels of this file are 0\.\.9"):
        load_mnist(tmp_path, sha256s={})


# CIFAR


@pytest.mark.parametrize("root", [".", "cifar-10-batches-bin"])
def test_cifar10_comes_back_as_it_was_written(tmp_path, root):
    """Five files train, one tests; the folder or its parent may be named."""
    records = write_cifar10(tmp_path / root)
    split = load_cifar10(tmp_path)
    assert split.train_x.shape == (10, 3, 32, 32)
    assert torch.cat([split.train_y, split.test_y]).tolist() == records[:, 0].tolist()
    pixels = torch.cat([split.train_x, split.test_x]).reshape(12, -1).numpy()
    np.testing.assert_allclose(pixels, records[:, 1:] / 255, atol=1e-7)


def test_cifar100_has_two_labels_to_choose_from(tmp_path):
    """The fine label is the default, the coarse one comes on demand."""
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    record = bytes([19, 99]) + bytes_of(3072).tobytes()
    (folder / "train.bin").write_bytes(record * 3)
    (folder / "test.bin").write_bytes(record)
    assert load_cifar100(tmp_path).train_y.tolist() == [99, 99, 99]
    coarse = load_cifar100(tmp_path, Cifar100Target.COARSE)
    assert coarse.test_y.tolist() == [19]
    assert torch.equal(coarse.test_x, load_cifar100(folder).test_x)


@pytest.mark.parametrize(
    ("load", "pickled"),
    [(load_cifar10, "cifar-10-batches-py"), (load_cifar100, "cifar-100-python")],
)
def test_the_pickled_version_is_never_opened(tmp_path, load, pickled):
    """A folder of pickles leads to a message that asks for the binary version."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    folder = tmp_path / pickled
    folder.mkdir()
    for name in ("data_batch_1", "test_batch", "train", "test"):
        (folder / name).write_bytes(pickle.dumps(Trap()))
    for root in (tmp_path, folder):
        with pytest.raises(DataError, match=r"get the binary version \(cifar-10+-binary.tar.gz\)"):
            load(root)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "no whole number of records"),
        (bytes(3072), "no whole number of records"),
        (bytes(2 * 3073 + 1), "no whole number of records"),
        (b"\x0a" + bytes(3072), "label 10"),
    ],
)
def test_a_damaged_cifar_file_is_refused_by_name(tmp_path, content, rule):
    """Lengths other than whole records, and labels of no class."""
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_3.bin: .*{rule}"):
        load_cifar10(tmp_path)


CIFARS = {
    "cifar10": (write_cifar10, read_cifar10, "CIFAR10_SHA1", "sha1"),
    "cifar100": (write_cifar100, read_cifar100, "CIFAR100_SHA1", "sha1"),
    "cifar10-c": (write_cifar10_c, read_cifar10_c, "CIFAR10_C_MD5", "md5"),
}


@pytest.mark.parametrize("name", CIFARS)
def test_each_file_of_cifar_is_compared_whatever_archive_it_came_in(tmp_path, monkeypatch, name):
    """A changed pixel shows; the known digests are of other files than these."""
    write, read, known, algorithm = CIFARS[name]
    write(tmp_path)
    more = {"corruptions": ["fog"]} if name == "cifar10-c" else {}
    data = DataTable(dataset=name, root=str(tmp_path), **more)
    with pytest.raises(DataError, match=f"{algorithm.upper()} is .*download it again"):
        read(data, 0)
    paths = sorted(tmp_path.iterdir())
    assert {path.name for path in paths} <= set(getattr(cifar, known))
    own = {path.name: hashlib.new(algorithm, path.read_bytes()).hexdigest() for path in paths}
    monkeypatch.setattr(cifar, known, own)
    read(data, 0)
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(DataError, match=rf"{path.name}: {algorithm.upper()} is"):
            read(data, 0)
        path.write_bytes(content)


# CIFAR-10-C


@pytest.mark.parametrize("severity", [1, 2, 5])
def test_cifar10_c_gives_one_severity_of_each_corruption(tmp_path, severity):
    """A fifth of every file, with channels first."""
    images = write_cifar10_c(tmp_path / "CIFAR-10-C")
    x, y = load_cifar10_c(tmp_path, ["fog"], severity)["fog"]
    written = images[2 * severity - 2 : 2 * severity].transpose(0, 3, 1, 2) / 255
    np.testing.assert_allclose(x.numpy(), written, atol=1e-7)
    assert x.dtype == torch.float32
    assert y.tolist() == [4, 7]


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((10, 32, 32), dtype=np.uint8),
        np.zeros((9, 32, 32, 3), dtype=np.uint8),
        np.zeros((0, 32, 32, 3), dtype=np.uint8),
        np.zeros((15, 32, 32, 3), dtype=np.uint8),
        np.zeros((10, 32, 32, 3), dtype=np.float32),
        np.zeros((10, 32, 32, 3), dtype=np.int16),
        np.asfortranarray(np.zeros((10, 32, 32, 3), dtype=np.uint8)),
        np.array([{}] * 10, dtype=object),
    ],
    ids=lambda array: f"{array.shape}{array.dtype}{array.flags.c_contiguous}",
)
def test_another_array_than_cifar10_c_has_is_refused(tmp_path, array):
    """Other shapes and types, and pickled objects, are no such images."""
    write_cifar10_c(tmp_path)
    np.save(tmp_path / "fog.npy", array)
    with pytest.raises(DataError, match=r"fog\.npy"):
        load_cifar10_c(tmp_path, ["fog"], 1)


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: c + b"x", lambda c: c[:7]])
def test_an_npy_file_of_another_length_is_refused(tmp_path, change):
    """Its header and its real length must agree before anything is mapped."""
    write_cifar10_c(tmp_path)
    path = tmp_path / "fog.npy"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=r"fog\.npy"):
        load_cifar10_c(tmp_path, ["fog"], 1)


def test_an_npy_header_is_text_and_no_program(tmp_path):
    """An oversized shape and a description that numpy does not write are refused unread."""
    write_cifar10_c(tmp_path)
    path = tmp_path / "fog.npy"
    for old, new in ((b"(10, 32", b"(99999910, 32"), (b"'|u1'", b"str(1)"), (b"|u1", b"|O8")):
        content = path.read_bytes().replace(old, new)
        (tmp_path / "other.npy").write_bytes(content)
        with pytest.raises(DataError, match=r"other\.npy"):
            load_cifar10_c(tmp_path, ["other"], 1)


@pytest.mark.parametrize(
    ("name", "severity", "rule"),
    [
        ("../fog", 1, "write it as its file"),
        ("Fog", 1, "write it as its file"),
        ("fog", 0, r"must be 1\.\.5"),
        ("fog", 6, r"must be 1\.\.5"),
    ],
)
def test_a_name_that_is_no_file_and_a_wrong_severity_are_refused(tmp_path, name, severity, rule):
    """A corruption's name cannot lead out of the folder."""
    write_cifar10_c(tmp_path)
    with pytest.raises(ConfigError, match=rule):
        load_cifar10_c(tmp_path, [name], severity)


# Folders of pictures


def test_every_domain_folder_is_a_client(tmp_path):
    """A label means the same class in all domains, also where one lacks a class."""
    write_picture(tmp_path / "amazon/mug/1.png", (255, 0, 0))
    write_picture(tmp_path / "amazon/bike/1.JPG", (0, 0, 0), size=(300, 200))
    write_picture(tmp_path / "webcam/mug/1.jpeg", (0, 255, 0))
    (tmp_path / "webcam/mug/notes.txt").write_text("no picture")
    (tmp_path / "webcam/.hidden").mkdir()
    (tmp_path / "readme.txt").write_text("no domain")
    domains = load_domain_folders(tmp_path, side=8)
    assert list(domains) == ["amazon", "webcam"]
    x, y = domains["amazon"]
    assert x.shape == (2, 3, 8, 8)
    assert x.dtype == torch.float32
    assert y.tolist() == [0, 1]
    assert x.amax(dim=(2, 3)).tolist() == [[0, 0, 0], [1, 0, 0]]
    assert domains["webcam"][1].tolist() == [1]


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "I;16", "CMYK"])
def test_a_picture_of_any_mode_has_three_channels(tmp_path, mode):
    """Grey, indexed, transparent and printers' pictures become red, green and blue."""
    folder = tmp_path / "domain/class"
    folder.mkdir(parents=True)
    Image.new(mode, (9, 9)).save(folder / ("a.jpg" if mode == "CMYK" else "a.png"))
    assert load_domain_folders(tmp_path, side=4)["domain"][0].shape == (1, 3, 4, 4)


def test_a_folder_without_pictures_says_where_they_go(tmp_path):
    """No folder, no domain, no picture: each message names the place."""
    for part in ("missing", "."):
        with pytest.raises(DataError, match="put"):
            load_domain_folders(tmp_path / part, side=8)
    (tmp_path / "amazon/mug").mkdir(parents=True)
    with pytest.raises(DataError, match=r"amazon: no pictures; put them under .*amazon/class"):
        load_domain_folders(tmp_path, side=8)


def test_a_picture_too_large_is_refused_before_it_is_decoded(tmp_path):
    """A header of 100 000 × 100 000 pixels allocates nothing."""
    path = tmp_path / "domain/class/a.png"
    for width in (6000, 100_000):
        write_picture(path, (0, 0, 0))
        content = bytearray(path.read_bytes())
        content[16:24] = struct.pack(">2I", width, width)
        content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
        path.write_bytes(bytes(content))
        with pytest.raises(DataError, match="pixels"):
            load_domain_folders(tmp_path, side=8)


@pytest.mark.parametrize("side", [0, -1, 1025, 2.5])
def test_a_side_out_of_range_is_refused(tmp_path, side):
    """Pictures are 1 to 1024 pixels wide."""
    for load in (load_domain_folders, load_camelyon17):
        with pytest.raises(ConfigError, match="must be a whole number of pixels"):
            load(tmp_path, side)


def test_every_hospital_is_a_client(tmp_path):
    """Patches are found by their line's columns and grouped by center."""
    write_camelyon(tmp_path / "camelyon17_v1.0")
    domains = load_camelyon17(tmp_path, side=4)
    assert list(domains) == ["center-0", "center-3"]
    x, y = domains["center-0"]
    assert y.tolist() == [1, 1]
    np.testing.assert_allclose(x[:, 0, 0, 0].numpy(), np.array([50, 150]) / 255, atol=1e-7)
    assert domains["center-3"][1].tolist() == [0, 0]


def test_some_patches_of_each_hospital_are_evenly_spaced(tmp_path):
    """Two of five are the first and the third; a hospital with fewer gives all it has."""
    write_camelyon(tmp_path, centers=(1, 1, 1, 1, 1, 2))
    domains = load_camelyon17(tmp_path, side=1, n_per_center=2)
    red = (domains["center-1"][0][:, 0, 0, 0] * 255).round()
    assert red.tolist() == [0, 100]
    assert len(domains["center-2"][1]) == 1
    with pytest.raises(ConfigError, match="n_per_center = 0"):
        load_camelyon17(tmp_path, n_per_center=0)


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        (b"", "has no lines"),
        (COLUMNS.encode(), "has no lines"),
        (COLUMNS.replace("center", "clinic").encode() + b"\n0,004,2,0,64,0,0,3,0", 'center = ""'),
        (COLUMNS.encode() + b"\n0,004,2,0", 'y_coord = ""'),
        (COLUMNS.encode() + b"\n0,../../..,2,0,64,0,0,3,0", 'sample 1: patient = "../../.."'),
        (COLUMNS.encode() + b"\n0,004,2,0,64,7,0,3,0", "tumor = 7"),
        (COLUMNS.encode() + b"\n0,004,2,0,64,0,0,-3,0", 'center = "-3"'),
        (COLUMNS.encode() + b"\n0,004,2,9,64,0,0,3,0", "_x_9_y_64.png: no such file"),
        (b"\xff\xfe", "no table of text"),
        (b'"' + b"x" * 200_000, "no table of text"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, table, rule):
    """Missing columns and lines, paths in numbers, patches that are not there."""
    write_camelyon(tmp_path)
    (tmp_path / "metadata.csv").write_bytes(table)
    with pytest.raises(DataError, match=rule.replace(".", r"\.")):
        load_camelyon17(tmp_path, side=4)


# Any file, any damage


def test_a_missing_file_says_what_to_put_where(tmp_path):
    """Every loader names the file, its source and the folder."""
    loaders = {
        "MNIST": load_mnist,
        "gzip.zip": lambda root: load_emnist(root, "digits"),
        "cifar-10-binary.tar.gz": load_cifar10,
        "cifar-100-binary.tar.gz": load_cifar100,
        "CIFAR-10-C.tar": lambda root: load_cifar10_c(root, ["fog"], 1),
        "Camelyon17-WILDS": load_camelyon17,
    }
    for source, load in loaders.items():
        with pytest.raises(DataError, match=f"no such file; put .*{source}.* under {tmp_path}"):
            load(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    """Something other than a regular file is refused, not read."""
    folder = tmp_path / "domain/class"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "a.png")
    with pytest.raises(DataError, match="no regular file"):
        load_domain_folders(tmp_path, side=8)


def texture(path):
    """A picture whose file has more than one colour's worth of bytes."""
    path.parent.mkdir(parents=True)
    Image.fromarray(bytes_of(24, 24, 3)).save(path)


LOADERS = {
    "train-images-idx3-ubyte": (write_mnist, partial(load_mnist, sha256s={})),
    "train-labels-idx1-ubyte": (write_mnist, partial(load_mnist, sha256s={})),
    "train-images-idx3-ubyte.gz": (
        lambda root: write_mnist(root, suffix=".gz"),
        lambda root: load_mnist(root, sha256s={}),
    ),
    "data_batch_2.bin": (write_cifar10, load_cifar10),
    "fog.npy": (write_cifar10_c, lambda root: load_cifar10_c(root, ["fog"], 3)),
    "labels.npy": (write_cifar10_c, lambda root: load_cifar10_c(root, ["fog"], 3)),
    "metadata.csv": (write_camelyon, lambda root: load_camelyon17(root, side=4)),
    **{
        f"domain/class/a.{suffix}": (
            lambda root, suffix=suffix: texture(root / f"domain/class/a.{suffix}"),
            lambda root: load_domain_folders(root, side=4),
        )
        for suffix in ("png", "jpg", "bmp")
    },
}


@pytest.mark.parametrize("name", LOADERS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_damage_is_a_data_error_or_gives_pixels_in_range(tmp_path, name, data):
    """Bytes flipped, cut or added never raise anything else, and never leave [0, 1]."""
    write, load = LOADERS[name]
    path = tmp_path / name
    if not path.exists():
        write(tmp_path)
        path.with_suffix(".clean").write_bytes(path.read_bytes())
    content = bytearray(path.with_suffix(".clean").read_bytes())
    # Most damage shows in the header, so half of it goes there.
    place = st.one_of(st.integers(0, min(150, len(content) - 1)), st.integers(0, len(content) - 1))
    for at, value in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), max_size=4)):
        content[at] = value
    end = data.draw(st.one_of(st.just(len(content)), place))
    path.write_bytes(bytes(content[:end]) + data.draw(st.sampled_from([b"", b"", b"\x00" * 9])))
    loaded, message = {}, str(tmp_path)
    try:
        loaded = load(tmp_path)
    except DataError as refused:
        message = str(refused)
    assert str(tmp_path) in message  # names the file
    pixels = [x for x, _ in loaded.values()] if isinstance(loaded, dict) else [loaded.train_x]
    assert all(float(x.min()) >= 0 and float(x.max()) <= 1 for x in pixels)

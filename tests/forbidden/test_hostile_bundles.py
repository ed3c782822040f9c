"""A bundle from a stranger costs no memory and no time that its size does not justify."""

from __future__ import annotations

import shutil
import tracemalloc

import pytest
from consortium_files import make_consortium

from securefl.errors import KeyFileError
from securefl_keys import bundle, sealed_file, verification
from securefl_keys.bundle import Bundle
from securefl_keys.signed_file import now
from securefl_keys.verification import describe, verify


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield make_consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def hostile(made, tmp_path):
    """A copy of a client's bundle, to be spoilt."""
    return shutil.copytree(made.bundle("client"), tmp_path / "bundle")


def test_a_bundle_is_not_read_where_its_files_are_larger_than_any(hostile):
    """A hundred files of megabytes of letters that Python keeps in four bytes each."""
    for number in range(90):
        with (hostile / f"{number}.json").open("wb") as file:
            file.truncate(4 * 2**20)
    (problem,) = verify(hostile).problems
    assert "larger" in problem
    assert "take the whole bundle again" in problem
    with pytest.raises(KeyFileError, match="larger"):
        Bundle.of(bundle_texts(hostile), None, now())


def bundle_texts(folder):
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return dict.fromkeys(names, "𝒳" * 10**6)


def test_the_worst_bundle_that_is_read_takes_little_memory(hostile):
    """As many bytes as a bundle may have, in the form that takes most of it."""
    size = bundle.MAX_BYTES - 500_000
    n_files = -(-size // (4 * 2**20))
    for number in range(n_files):
        (hostile / f"{number}.json").write_text("𝒳" + "x" * (size // n_files - 4))
    tracemalloc.start()
    try:
        problems = verify(hostile).problems
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()
    assert "not in the signed list" in problems[0]


@pytest.mark.parametrize("bound", ["MAX_ENTRIES", "MAX_BYTES"])
def test_a_key_folder_with_more_than_any_has_is_not_looked_through(made, bound, monkeypatch):
    """By the number of its files, and by what is in them."""
    describe(made.keys)
    monkeypatch.setattr(verification, bound, 10)
    with pytest.raises(KeyFileError, match=r"more .* than a key folder"):
        describe(made.keys)

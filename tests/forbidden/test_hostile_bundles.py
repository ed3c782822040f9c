"""A bundle from a stranger costs no memory and no time that its size does not justify."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import tracemalloc

import pytest
import zstandard
from consortium_files import make_consortium
from securefl.crypto.match_public import MatchPublicKey

from securefl.crypto import contexts, sealwire
from securefl.errors import KeyFileError
from securefl_keys import bundle, description, layout, sealed_file
from securefl_keys.bundle import Bundle
from securefl_keys.description import describe
from securefl_keys.signed_file import now
from securefl_keys.verification import verify


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield make_consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def hostile(made, tmp_path):
    """A copy of a client's bundle, to be spoilt."""
    return shutil.copytree(made.bundle("client"), tmp_path / "bundle")


def sealed(content, *, compression=2):
    """Under SEAL's header."""
    return struct.pack("<HBBBBHQ", 0xA15E, 16, 4, 3, compression, 0, 16 + len(content)) + content


def bomb(n_bytes):
    """Zeros, packed to a ten-thousandth."""
    return zstandard.ZstdCompressor().compress(bytes(n_bytes))


def with_key(context, key):
    """TenSEAL's message with another public key."""
    whole = sealwire.fields(context)
    public = sealwire.fields(whole[2])
    flag = bytes([2 << 3]) + public[2]
    scale = bytes([3 << 3 | 1]) + public[3]
    inner = sealwire.field(1, key) + flag + scale
    return sealwire.field(1, whole[1]) + sealwire.field(2, inner)


def nested(packed):
    """A ciphertext whose array is packed anew inside."""
    return struct.pack("<32sBQQQdQ", bytes(32), 1, 2, 4096, 3, 1.0, 1) + packed


@pytest.mark.parametrize(
    "key",
    [
        sealed(bomb(10**8)),
        sealed(bomb(10**5) * 1000),
        sealed(nested(sealed(bomb(10**8))), compression=0),
        sealed(bytes(100), compression=1),
        sealed(bytes(100), compression=0),
        b"",
    ],
    ids=["a bomb", "in many frames", "inside", "in zlib", "too short", "none"],
)
def test_a_key_that_unpacks_to_gigabytes_is_never_unpacked(made, key, monkeypatch):
    """Its length is known by its parameters, so that SEAL does not see another."""
    text = (made.bundle("client") / layout.MATCH_PUBLIC_KEY).read_text()
    public = MatchPublicKey.from_json(text)
    context = base64.b64decode(json.loads(text)["context"])
    assert with_key(context, sealwire.fields(sealwire.fields(context)[2])[1]) == context

    def never(content):
        raise AssertionError("TenSEAL was asked")

    monkeypatch.setattr(contexts.ts, "context_from", never)
    with pytest.raises(KeyFileError, match="damaged key file"):
        contexts.public_context(with_key(context, key), public.parameters)


def test_parameters_are_compared_before_they_are_used(made, monkeypatch):
    """A context of a hundred primes takes a gigabyte only to be made."""
    text = (made.bundle("client") / layout.MATCH_PUBLIC_KEY).read_text()
    public = MatchPublicKey.from_json(text)
    context = base64.b64decode(json.loads(text)["context"])
    whole = sealwire.fields(context)
    huge = bytes([2]) + struct.pack("<QQ", 2**17, 64) + bytes(64 * 24)
    monkeypatch.setattr(contexts.ts, "context_from", lambda _: pytest.fail("TenSEAL was asked"))
    for parameters in (sealed(huge, compression=0), sealed(bomb(10**8))):
        changed = sealwire.field(1, parameters) + sealwire.field(2, whole[2])
        with pytest.raises(KeyFileError, match=r"not of the parameters|damaged key file"):
            contexts.public_context(changed, public.parameters)
    twice = context + sealwire.field(1, sealed(huge, compression=0))
    with pytest.raises(KeyFileError, match="there twice"):
        contexts.public_context(twice, public.parameters)


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
    monkeypatch.setattr(description, bound, 10)
    with pytest.raises(KeyFileError, match=r"more .* than a key folder"):
        describe(made.keys)

"""Only the authority's folder holds a secret, and no error leaves half a key folder behind."""

from __future__ import annotations

import copy
import errno
import hashlib
import itertools
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from key_folders import (
    MATCH_FILES,
    MATCH_SECRET,
    PASSPHRASE,
    SUMS_FILES,
    SUMS_SECRET,
    count_of,
    encoded,
    problems_of,
    rewritten,
)

from securefl.crypto.public import AddingContext, PublicKey
from securefl.errors import ConfigError, KeyFileError
from securefl_keys import folder
from securefl_keys.description import describe
from securefl_keys.folder import init_folder
from securefl_keys.loading import load_all, load_authority, load_client, load_server

pytestmark = pytest.mark.usefixtures("cheap_guesses")


@pytest.fixture(scope="module")
def secret(made_keys):
    return load_authority(made_keys, PASSPHRASE)


def files_of(directory):
    return sorted(
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    )


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def layout_of(directory):
    """The files that belong there."""
    counts = [count_of(directory, secret) for secret in (SUMS_SECRET, MATCH_SECRET)]
    return sorted([*SUMS_FILES, *MATCH_FILES, *counts])


def test_the_folder_holds_these_files_and_no_other(made_keys):
    """One folder for each role, with exactly the files that its role needs."""
    assert files_of(made_keys) == layout_of(made_keys)
    assert problems_of(made_keys) == {}


def test_each_role_loads_what_it_needs_and_no_more(made_keys):
    """Clients encrypt, the server adds, the authority reads, each from its own file."""
    keys = load_all(made_keys, PASSPHRASE)
    slots = np.linspace(-1, 1, 2048)
    total = keys.adding.sum().plus(keys.public.encrypt(slots)).plus(keys.public.encrypt(slots))
    np.testing.assert_allclose(keys.secret.decrypt(total.coefficients()), 2 * slots, atol=1e-6)
    assert type(load_server(made_keys)) is AddingContext
    assert type(load_client(made_keys)) is PublicKey
    assert not hasattr(load_server(made_keys), "encrypt")
    assert not hasattr(load_client(made_keys), "decrypt")


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_the_owner_may_read_the_secret_key(tmp_path, umask):
    """The secret keys are 0600 in a 0700 folder, whatever the umask."""
    before = os.umask(umask)
    try:
        init_folder(tmp_path / "keys", PASSPHRASE)
    finally:
        os.umask(before)
    made, secrets = tmp_path / "keys", (SUMS_SECRET, MATCH_SECRET)
    for file in (*secrets, *(count_of(made, secret) for secret in secrets)):
        assert mode_of(made / file) == 0o600
    assert mode_of(made / "authority") == mode_of(made / "authority/releases") == 0o700


def a_folder(path):
    path.mkdir()


def a_file(path):
    path.write_text("mine")


def a_dangling_link(path):
    path.symlink_to(path.parent / "nowhere")


@pytest.mark.parametrize("occupy", [a_folder, a_file, a_dangling_link])
def test_nothing_that_exists_is_overwritten(tmp_path, occupy):
    """A folder, a file or a link of that name is left as it is, and the way out is named."""
    occupy(tmp_path / "keys")
    with pytest.raises(KeyFileError, match="name another folder"):
        init_folder(tmp_path / "keys", PASSPHRASE)
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]
    assert not (tmp_path / "keys/authority").exists()


def test_a_folder_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    """Of two ceremonies at the same time, one wins and the other leaves nothing."""
    generate = folder.SecretKey.generate

    def slow_generate(*parameters):
        a_folder(tmp_path / "keys")
        a_file(tmp_path / "keys/theirs")
        return generate(*parameters)

    monkeypatch.setattr(folder.SecretKey, "generate", slow_generate)
    with pytest.raises(KeyFileError, match="cannot make the key folder"):
        init_folder(tmp_path / "keys", PASSPHRASE)
    assert files_of(tmp_path) == ["keys/theirs"]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("write", [*range(1, 16), "rename"])  # 9 files, 6 folders
def test_a_failure_in_the_middle_leaves_nothing_behind(tmp_path, monkeypatch, failure, write):
    """Disk full or Ctrl-C at any file leaves neither a folder nor the parents made for it."""
    writes = itertools.count(1)

    def fsync(_):
        if next(writes) == write:
            raise failure

    def rename(*_):
        raise failure

    monkeypatch.setattr(os, "fsync", fsync)
    if write == "rename":
        monkeypatch.setattr(Path, "rename", rename)
    expected = KeyFileError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        init_folder(tmp_path / "new/parent/keys", PASSPHRASE)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    """Where the operating system itself refuses the bytes, one line says so."""
    script = (
        "import resource, sys; from pathlib import Path; from securefl_keys import folder;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "folder.init_folder(Path(sys.argv[1]), 'passphrase')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "keys")],
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "KeyFileError" in last
    assert "cannot make the key folder: File too large" in last
    assert list(tmp_path.iterdir()) == []


def test_missing_parents_are_made(tmp_path):
    """A folder below folders that do not exist yet is made with them."""
    init_folder(tmp_path / "a/b/keys", PASSPHRASE)
    assert files_of(tmp_path / "a/b/keys") == layout_of(tmp_path / "a/b/keys")


def test_a_parent_that_is_a_file_is_refused(tmp_path):
    """Where no folder can be made, one line names the folder."""
    a_file(tmp_path / "file")
    with pytest.raises(KeyFileError, match="cannot make the key folder: Not a directory"):
        init_folder(tmp_path / "file/keys", PASSPHRASE)
    assert files_of(tmp_path) == ["file"]


def test_an_empty_passphrase_makes_no_folder(tmp_path):
    """No key is made that nothing protects."""
    with pytest.raises(ConfigError, match="passphrase is empty"):
        init_folder(tmp_path / "keys", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "load"), [("server/parameters.json", load_server), ("clients/public.key", load_client)]
)
def test_a_private_context_in_a_public_file_is_refused(keys, secret, file, load):
    """A file that claims to be public but holds the secret key is not loaded."""
    context = secret.to_secret_bytes()
    disguised = rewritten(
        keys / file, context=encoded(context), key_id=hashlib.sha256(context).hexdigest()
    )
    (keys / file).write_text(disguised)
    with pytest.raises(KeyFileError, match="holds a secret key"):
        load(keys)
    assert "holds a secret key" in problems_of(keys)[file][0]


def test_a_context_that_tenseal_cannot_read_is_refused(keys):
    """Bytes that are no context are an error with a path, though their SHA-256 is right."""
    path = keys / "server/parameters.json"
    path.write_text(rewritten(path, context=encoded(b"no context")))
    with pytest.raises(KeyFileError, match=f"{path}: damaged"):
        load_server(keys)


@pytest.mark.parametrize("file", ["server/parameters.json", "clients/public.key"])
@pytest.mark.parametrize("fields", [{"epoch": 2}, {"created": "2001-01-01T00:00:00Z"}], ids=str)
def test_another_epoch_or_date_is_refused(keys, file, fields):
    """Whoever holds the secret key sees that a public file is not the one it was made with."""
    (keys / file).write_text(rewritten(keys / file, **fields))
    with pytest.raises(KeyFileError, match="changed since the keys were made"):
        load_all(keys, PASSPHRASE)


@pytest.mark.parametrize("file", ["server/parameters.json", "clients/public.key"])
def test_a_file_cannot_claim_other_parameters_than_its_context_has(keys, file):
    """The security level that a file claims is checked against what TenSEAL will really use."""
    parameters = json.loads((keys / file).read_text())["parameters"]
    changed = parameters | {"scale_bits": parameters["scale_bits"] - 1}
    (keys / file).write_text(rewritten(keys / file, parameters=changed))
    with pytest.raises(KeyFileError, match="not of the parameters that its file names"):
        load_all(keys, PASSPHRASE)


def test_what_does_not_belong_is_shown(keys, secret):
    """Strange files, clear keys, second keys and hidden links are all listed as problems."""
    (keys / "server/notes.txt").write_text("hello")
    (keys / "clients/secret.bin").write_bytes(secret.to_secret_bytes())
    (keys / "clients/all").symlink_to(keys / "authority")
    shutil.copy(keys / "authority/secret.key", keys / "authority/secret.key.bak")
    shutil.copy(keys / "authority/secret.key", keys / "secret.key")
    shutil.copy(keys / "clients/public.key", keys / "server/public.key")
    (keys / "authority/parameters.json").unlink()
    assert problems_of(keys).keys() == {
        "server/notes.txt",
        "clients/secret.bin",
        "clients/all",
        "authority/secret.key.bak",
        "secret.key",
        "server/public.key",
        "authority/parameters.json",
    }


def test_a_truncated_secret_key_is_still_shown_as_one(keys):
    """Half of a secret key's file in the wrong folder is reported as a secret key."""
    text = (keys / "authority/secret.key").read_text()
    (keys / "server/old.key").write_text(text[:10_000])
    misplaced, mode, damage = problems_of(keys)["server/old.key"]
    assert "secret key outside authority/" in misplaced
    assert "chmod 600" in mode
    assert "not a sealed secret key" in damage


def test_a_folder_without_roles_is_no_key_folder(tmp_path):
    """Any other folder is refused before its files are looked at."""
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(KeyFileError, match="no key folder"):
            describe(directory)


@pytest.mark.parametrize("copy_it", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_secret_key_cannot_leave_its_process(made_keys, secret, copy_it):
    """A secret key is neither pickled nor copied, nor is anything that holds it."""
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        copy_it(secret)
    if copy_it is not copy.copy:
        with pytest.raises(TypeError):
            copy_it(load_all(made_keys, PASSPHRASE))

"""Only the authority's folder holds a secret, and no error leaves half a key folder behind."""

from __future__ import annotations

import base64
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

import pytest
from key_folders import (
    CARD_FILES,
    CARD_KEYS,
    CARD_SECRET,
    PASSPHRASE,
    encoded,
    load_client,
    load_server,
    problems_of,
    rewritten,
)

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.cards import KEY_BYTES
from securefl.errors import ConfigError, KeyFileError, MessageRefused
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.officer import KeySet
from securefl.exchange.sums import Sender
from securefl_keys import consortium
from securefl_keys.authority_keys import load_all, load_authority
from securefl_keys.consortium import init_folder
from securefl_keys.verification import describe

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


def test_the_folder_holds_these_files_and_no_other(made_keys):
    """One folder for each role, with exactly the files that its role needs."""
    assert files_of(made_keys) == sorted(CARD_FILES)
    assert problems_of(made_keys) == {}


def test_each_role_loads_what_it_needs_and_no_more(made_keys):
    """Clients make cards with their file, the authority alone opens them, and once taken knows."""
    keys, run = load_all(made_keys, PASSPHRASE), "ab" * 32
    opener = keys.opener()
    for name, held in {"alice": load_client(made_keys), "bob": load_server(made_keys)}.items():
        assert type(held) is CardKeys
        assert not hasattr(held.keys[0], "secrets_in")
        opener.take_cards(run, name, held.cards(run, Sender(name, bytes(32))))
    assert opener.without_card(run, ["alice", "bob", "carol"]) == ["carol"]
    stranger = KeySet.ephemeral().public.cards(run, Sender("carol", bytes(32)))
    with pytest.raises(MessageRefused):
        opener.take_cards(run, "carol", stranger)


def test_all_roles_hold_the_same_text(made_keys):
    """One public key, so that nobody is given another unnoticed."""
    assert len({(made_keys / file).read_text() for file in CARD_KEYS}) == 1


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_the_owner_may_read_the_secret_key(tmp_path, umask):
    """The secret key is 0600 in a 0700 folder, whatever the umask."""
    before = os.umask(umask)
    try:
        init_folder(tmp_path / "keys", PASSPHRASE)
    finally:
        os.umask(before)
    made = tmp_path / "keys"
    assert mode_of(made / CARD_SECRET) == 0o600
    assert mode_of(made / "authority") == 0o700


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
    generate = consortium.CardSecret.generate

    def slow_generate(*parameters):
        a_folder(tmp_path / "keys")
        a_file(tmp_path / "keys/theirs")
        return generate(*parameters)

    monkeypatch.setattr(consortium.CardSecret, "generate", slow_generate)
    with pytest.raises(KeyFileError, match="cannot make the key folder"):
        init_folder(tmp_path / "keys", PASSPHRASE)
    assert files_of(tmp_path) == ["keys/theirs"]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("write", [*range(1, 10), "rename"])  # 4 files, 5 folders
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
        "import resource, sys; from pathlib import Path; from securefl_keys import consortium;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "consortium.init_folder(Path(sys.argv[1]), 'passphrase')"
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
    assert files_of(tmp_path / "a/b/keys") == sorted(CARD_FILES)


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


LOADERS = {"server/public.key": load_server, "clients/public.key": load_client}


@pytest.mark.parametrize("file", LOADERS)
@pytest.mark.parametrize("disguise", ["in the key's place", "behind it", "as it is sealed"])
def test_a_secret_in_a_public_file_is_refused(keys, secret, file, disguise):
    """A file that claims to be public but holds the secret is not loaded, though digests fit."""
    path, inside = keys / file, secret.to_secret_bytes()
    public = base64.b64decode(json.loads(path.read_text())["key"])
    key = {"in the key's place": inside, "behind it": public + inside}.get(disguise)
    if key is None:
        path.write_text((keys / CARD_SECRET).read_text())
    else:
        path.write_text(rewritten(path, key=encoded(key), key_id=hashlib.sha256(key).hexdigest()))
    with pytest.raises(KeyFileError, match=f"{path}: (a card key of|this is a|not a SecureFL)"):
        LOADERS[file](keys)
    assert problems_of(keys).keys() == {file}


@pytest.mark.parametrize("file", LOADERS)
@pytest.mark.parametrize(
    "fields",
    [
        {"key": ""},
        {"key": "not base64"},
        {"key": encoded(b"no key")},
        {"key": encoded(bytes(KEY_BYTES - 1))},
        {"key": encoded(bytes(KEY_BYTES + 1))},
        {"key": encoded(b"\xff" * KEY_BYTES)},
        {"key": encoded(bytes(2**20))},
        {"key": None},
        {"key_id": "0" * 64},
        {"epoch": 0},
        {"epoch": "1"},
        {"epoch": 2**31},
        {"created": "yesterday"},
        {"format": "securefl-card-key/4"},
        {"format": "securefl-match-public-key/2"},
        {"sha256": None},
        {"more": 1},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_what_is_no_card_key_never_crashes(keys, file, fields):
    """Each refusal names the file, though its SHA-256 is right."""
    path = keys / file
    digest = {name: value for name, value in fields.items() if name == "sha256"}
    path.write_text(json.dumps(json.loads(rewritten(path, **fields)) | digest))
    with pytest.raises(KeyFileError, match=str(path)):
        LOADERS[file](keys)
    assert problems_of(keys).keys() == {file}


@pytest.mark.parametrize("file", CARD_KEYS)
@pytest.mark.parametrize("fields", [{"epoch": 2}, {"created": "2001-01-01T00:00:00Z"}], ids=str)
def test_another_epoch_or_date_is_refused(keys, file, fields):
    """Whoever holds the secret key sees that a public file is not the one it was made with."""
    (keys / file).write_text(rewritten(keys / file, **fields))
    with pytest.raises(KeyFileError, match="changed since the keys were made"):
        load_all(keys, PASSPHRASE)


@pytest.mark.parametrize("file", CARD_KEYS)
def test_another_key_under_the_same_name_is_refused(keys, file):
    """The key id is the SHA-256 of the key; with that changed as well it is another key."""
    path, other = keys / file, CardSecret.generate().public
    key = json.loads(other.to_json())["key"]
    path.write_text(rewritten(path, key=key))
    with pytest.raises(KeyFileError, match="does not match its key id"):
        load_all(keys, PASSPHRASE)
    path.write_text(rewritten(path, key=key, key_id=other.key_id))
    with pytest.raises(KeyFileError, match=f"{path}: of key {other.key_id[:16]}… *, but"):
        load_all(keys, PASSPHRASE)
    assert "two key pairs are mixed" in str(problems_of(keys))


def test_what_does_not_belong_is_shown(keys, secret):
    """Strange files, clear keys, second keys and hidden links are all listed as problems."""
    (keys / "server/notes.txt").write_text("hello")
    (keys / "clients/secret.bin").write_bytes(secret.to_secret_bytes())
    (keys / "clients/all").symlink_to(keys / "authority")
    shutil.copy(keys / "authority/secret.key", keys / "authority/secret.key.bak")
    shutil.copy(keys / "authority/secret.key", keys / "secret.key")
    shutil.copy(keys / "clients/public.key", keys / "server/other.key")
    (keys / "authority/public.key").unlink()
    assert problems_of(keys).keys() == {
        "server/notes.txt",
        "clients/secret.bin",
        "clients/all",
        "authority/secret.key.bak",
        "secret.key",
        "server/other.key",
        "authority/public.key",
    }


def test_a_truncated_secret_key_is_still_shown_as_one(keys):
    """Half of a secret key's file in the wrong folder is reported as a secret key."""
    text = (keys / "authority/secret.key").read_text()
    (keys / "server/old.key").write_text(text[: len(text) // 2])
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

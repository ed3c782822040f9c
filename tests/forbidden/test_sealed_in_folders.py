"""A key folder guards its secret, and its files are believed together or not at all."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from key_folders import (
    CARD_FILES,
    CARD_KEYS,
    CARD_SECRET,
    PASSPHRASE,
    load_client,
    load_server,
    problems_of,
)

from securefl.errors import ConfigError, KeyFileError, WrongPassphrase
from securefl_keys.authority_keys import load_all, load_authority
from securefl_keys.consortium import init_folder
from securefl_keys.export import export_all
from securefl_keys.key_files import lock_of
from securefl_keys.rotation import rotate
from securefl_keys.verification import describe, verify

pytestmark = pytest.mark.usefixtures("cheap_guesses")
WINDOW_BYTES = 16


VECTORS = Path(__file__).parents[1] / "vectors/v2"
MATCH_SECRET = "authority/match.key"
OF_MATCHES = {
    MATCH_SECRET: "match.key",
    "server/match.json": "match.json",
    "clients/match-public.key": "match-public.key",
    "authority/releases/1fa8e1acbd548e50.json": "match-releases.json",
}
"""Frozen file of an older release, by its place in a folder."""


@pytest.fixture
def with_matches(keys):
    """A key folder as the release before made it, with a key of profile matches."""
    for place, file in OF_MATCHES.items():
        (keys / place).parent.mkdir(exist_ok=True)
        shutil.copy(VECTORS / file, keys / place)
        (keys / place).chmod(0o600)
    return keys


def windows(data):
    return {data[i : i + WINDOW_BYTES] for i in range(len(data) - WINDOW_BYTES + 1)}


def views(path):
    """The bytes of a file, and what its base64 fields decode to."""
    yield path.read_bytes()
    for field, value in json.loads(path.read_text()).items():
        if field in {"ciphertext", "key"}:
            yield base64.b64decode(value)


def files_of(directory):
    return [path for path in directory.rglob("*.*") if path.is_file()]


def windows_of_the_secret(keys):
    return windows(load_authority(keys, PASSPHRASE).to_secret_bytes())


def test_no_window_of_a_secret_key_is_outside_its_sealed_file(made_keys):
    """No 16 bytes of the secret key stand in any file, in clear or base64."""
    only_secret = windows_of_the_secret(made_keys)
    assert len(only_secret) == 81  # of 96 bytes
    for file in files_of(made_keys):
        for view in views(file):
            assert only_secret.isdisjoint(windows(view)), file


def test_the_search_for_a_secret_would_find_it(keys):
    """A file with the secret key inside does show its windows."""
    only_secret, public = windows_of_the_secret(keys), keys / CARD_KEYS[-1]
    secret = base64.b64encode(load_authority(keys, PASSPHRASE).to_secret_bytes()).decode()
    public.write_text(json.dumps(json.loads(public.read_text()) | {"key": secret}))
    found = set().union(*map(windows, views(public)))
    assert not only_secret.isdisjoint(found)


def test_the_passphrase_is_nowhere_in_the_folder(made_keys):
    """No file holds the passphrase or one of its words, in clear or base64."""
    assert len(files_of(made_keys)) == 4
    for file in files_of(made_keys):
        for view in views(file):
            for word in PASSPHRASE.split():
                assert word.encode() not in view, file


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_secret_key_that_others_may_read_is_not_loaded(keys, mode):
    """A secret key open to other users is refused with the command that closes it."""
    path = keys / CARD_SECRET
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"chmod 600 {path}"):
        load_all(keys, PASSPHRASE)
    assert "chmod 600" in problems_of(keys)[CARD_SECRET][0]


def test_another_passphrase_names_the_file_and_repeats_nothing(made_keys):
    """A wrong passphrase is its own error, in one line with the file's path and no passphrase."""
    with pytest.raises(WrongPassphrase, match=f"{CARD_SECRET}: the passphrase") as refusal:
        load_all(made_keys, "Tr0ub4dor&3")
    assert "Tr0ub4dor" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match=f"{CARD_SECRET}: the passphrase is empty"):
        load_all(made_keys, "")


CONTENTS = pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\xff\xfe\x00",
        b"{}",
        b"[" * 100_000,
        b'{"format": "securefl-card-key/4"}',
        b'{"format": "securefl-ckks-parameters/2"}',
        b" " * (4 * 1024 * 1024 + 1),
    ],
    ids=[
        "missing",
        "empty",
        "binary",
        "no fields",
        "nested",
        "version 4",
        "version 2",
        "too large",
    ],
)


@pytest.mark.parametrize("file", CARD_FILES)
@CONTENTS
def test_what_is_no_key_file_is_refused_with_path_and_way_out(keys, file, content):
    """A file that is missing or anything else gives one line with its path and what to do."""
    spoil(keys, file, content)
    with pytest.raises(KeyFileError, match="securefl keys init") as refusal:
        load_all(keys, PASSPHRASE)
    assert str(keys / file) in str(refusal.value)


def spoil(keys, file, content):
    """Something else in a file's place, or nothing, which the description shows."""
    path = keys / file
    path.unlink()
    if content is not None:
        path.touch(mode=0o600)
        path.write_bytes(content)
    problems = problems_of(keys)
    assert problems.keys() == {file}
    if content is None:
        assert problems[file] == ("missing, or not a file",)


@pytest.mark.parametrize("role", ["server", "clients"])
def test_a_machine_needs_its_own_folder_alone(keys, role):
    """One file on the server's machine and on a client's, and no problem."""
    mine, others = (load_server, load_client) if role == "server" else (load_client, load_server)
    for folder in {"authority", "server", "clients"} - {role}:
        shutil.rmtree(keys / folder)
    assert mine(keys).key_id
    assert problems_of(keys) == {}
    assert [entry.what for entry in describe(keys)] == ["card key"]
    with pytest.raises(KeyFileError, match=r"public\.key: missing"):
        others(keys)


def test_the_description_names_key_and_holder(made_keys):
    """Each file of a pair is shown with its key id, and who may hold it."""
    entries = {e.path.as_posix(): e for e in describe(made_keys)}
    assert tuple(entries) == CARD_FILES
    holders = [entries[file].holder for file in CARD_FILES]
    assert holders == ["authority", "any role", "any role", "any role"]
    key_id = load_authority(made_keys, PASSPHRASE).key_id
    assert {entry.facts.key_id for entry in entries.values()} == {key_id}


def test_a_lock_that_holds_something_is_shown(keys):
    """No file hides under the lock's name."""
    lock = lock_of(keys / CARD_SECRET)
    lock.touch()
    assert problems_of(keys) == {}
    lock.write_text("a key")
    assert problems_of(keys).keys() == {lock.relative_to(keys).as_posix()}


@pytest.mark.parametrize("file", CARD_FILES)
def test_files_of_two_ceremonies_do_not_mix(keys, tmp_path, file):
    """A file of another key is refused by name and shown."""
    init_folder(tmp_path / "other", PASSPHRASE)
    shutil.copy(tmp_path / "other" / file, keys / file)
    named = f"{file}: of key .* but " if file in CARD_KEYS else ""
    with pytest.raises(KeyFileError, match=f"{named}the authority holds"):
        load_all(keys, PASSPHRASE)
    problems = problems_of(keys)
    assert problems
    assert problems.keys() <= set(CARD_FILES)
    assert all("two key pairs are mixed" in problem for (problem,) in problems.values())


@pytest.mark.parametrize(
    ("file", "other"),
    [
        ("server/public.key", CARD_SECRET),
        ("server/public.key", "server/match.json"),
        ("clients/public.key", CARD_SECRET),
        ("clients/public.key", MATCH_SECRET),
        ("clients/public.key", "authority/releases/1fa8e1acbd548e50.json"),
    ],
)
def test_no_file_serves_for_another(with_matches, file, other):
    """Files are told apart by name; a secret in a folder that is handed out is shown, too."""
    keys = with_matches
    shutil.copy(keys / other, keys / file)
    with pytest.raises(KeyFileError, match=f"{file}: this is a 'securefl-.* is needed"):
        load_all(keys, PASSPHRASE)
    (problem, *_) = problems_of(keys)[file]
    secret = other in {CARD_SECRET, MATCH_SECRET}
    assert ("secret key outside authority/" if secret else "belongs") in problem


@pytest.mark.parametrize("file", CARD_KEYS)
@pytest.mark.parametrize("field", ["key", "key_id", "created", "sha256"])
def test_a_damaged_public_file_is_refused(keys, file, field):
    """A changed character of what a public file holds does not match the file's own SHA-256."""
    path = keys / file
    content = json.loads(path.read_text())
    first, *rest = content[field]
    changed = {field: "".join(["1" if first != "1" else "2", *rest])}
    path.write_text(json.dumps(content | changed))
    with pytest.raises(KeyFileError, match="does not match its SHA-256"):
        load_all(keys, PASSPHRASE)


def test_no_text_of_a_secret_key_is_secret(made_keys):
    """What a log line would show of a key, or of all keys together, is its public id at most."""
    keys, secret = load_all(made_keys, PASSPHRASE), load_authority(made_keys, PASSPHRASE)
    parts = [getattr(keys, part.name) for part in fields(type(keys))]
    shown = f"{keys!r} {parts!r} {secret}"
    assert "secret=" not in shown
    assert "secrets=" not in shown
    data = secret.to_secret_bytes()
    for start in range(0, len(data) - 8, 8):
        assert data[start : start + 8].hex() not in shown


def test_files_of_matches_are_of_no_use_and_nothing_else_is_wrong(with_matches):
    """Each is told as such with what to do, and the key of cards loads."""
    entries = {entry.path.as_posix(): entry for entry in describe(with_matches)}
    for place in OF_MATCHES:
        (note,) = entries[place].notes
        assert "of no use any more" in note
        assert "delete it" in note
    assert not any(entries[file].notes for file in CARD_FILES)
    assert problems_of(with_matches) == {}
    assert load_all(with_matches, PASSPHRASE)
    told = verify(with_matches, passphrase=PASSPHRASE)
    assert told.problems == ()
    assert {note.partition(":")[0] for note in told.notes} == set(OF_MATCHES)


def test_a_rotation_deletes_the_files_of_matches(with_matches):
    """Their secret key would still open scores that somebody has recorded."""
    (with_matches / "authority/releases/.1fa8e1acbd548e50.json.lock").touch()
    rotate(with_matches, PASSPHRASE)
    assert {p.relative_to(with_matches).as_posix() for p in files_of(with_matches)} >= {*CARD_FILES}
    assert not any((with_matches / place).exists() for place in OF_MATCHES)
    assert not (with_matches / "authority/releases").exists()
    assert all(not entry.notes for entry in describe(with_matches))


def test_a_match_key_that_others_may_read_is_a_problem(with_matches):
    """It is of no use to its owner alone."""
    (with_matches / MATCH_SECRET).chmod(0o644)
    assert "chmod 600" in problems_of(with_matches)[MATCH_SECRET][0]


def test_no_file_of_matches_gets_into_a_bundle(tmp_path):
    """Where an older folder still has them, bundles are as without."""
    init_folder(tmp_path / "keys", PASSPHRASE, consortium="Nord")
    for place, file in OF_MATCHES.items():
        (tmp_path / "keys" / place).parent.mkdir(exist_ok=True)
        shutil.copy(VECTORS / file, tmp_path / "keys" / place)
        (tmp_path / "keys" / place).chmod(0o600)
    export_all(tmp_path / "keys", tmp_path / "bundles", PASSPHRASE)
    names = {path.name for path in (tmp_path / "bundles").rglob("*") if path.is_file()}
    public = {"public.key", "ca.crt", "authority.crt"}
    assert names == public | {"roster.json", "policy.json", "manifest.json"}

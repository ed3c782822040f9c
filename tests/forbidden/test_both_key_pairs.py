"""A key folder guards the key of cards and the match key alike."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields

import pytest
from key_folders import (
    CARD_FILES,
    CARD_KEYS,
    CARD_SECRET,
    MATCH_FILES,
    MATCH_SECRET,
    PASSPHRASE,
    count_of,
    problems_of,
)

from securefl.errors import ConfigError, KeyFileError, WrongPassphrase
from securefl_keys.description import describe
from securefl_keys.folder import init_folder
from securefl_keys.loading import load_all, load_client, load_match, load_server

pytestmark = pytest.mark.usefixtures("cheap_guesses")
WINDOW_BYTES = 16


@dataclass(frozen=True)
class Pair:
    """The files of one of the two pairs, and who reads them."""

    name: str
    files: tuple[str, ...]
    secret: str
    holders: tuple[str, ...]
    load: Callable
    """From a folder and a passphrase: the three roles' parts."""
    inside: str
    """Field of a public file that holds the key."""
    security_bits: int | None

    def secret_in(self, directory):
        """The pair's secret key."""
        loaded = self.load(directory, PASSPHRASE)
        return loaded.secrets[0] if self is CARDS else loaded.secret


CARDS = Pair(
    "cards",
    CARD_FILES,
    CARD_SECRET,
    ("authority", "any role", "any role", "any role"),
    load_all,
    "key",
    None,
)
MATCH = Pair(
    "match",
    MATCH_FILES,
    MATCH_SECRET,
    ("authority", "server", "clients"),
    load_match,
    "context",
    128,
)
PAIRS = pytest.mark.parametrize("pair", [CARDS, MATCH], ids=lambda pair: pair.name)
PUBLIC = [*CARD_KEYS, *MATCH_FILES[1:]]


def pair_of(file):
    return CARDS if file in CARDS.files else MATCH


def windows(data):
    return {data[i : i + WINDOW_BYTES] for i in range(len(data) - WINDOW_BYTES + 1)}


def views(path):
    """The bytes of a file, and what its base64 fields decode to."""
    yield path.read_bytes()
    for field, value in json.loads(path.read_text()).items():
        if field in {"context", "ciphertext", "key"}:
            yield base64.b64decode(value)


def files_of(directory):
    return [path for path in directory.rglob("*.*") if path.is_file()]


def only_in_the_secret(pair, keys):
    """Windows of a secret key that its public key has not.

    Those of few different bytes are sizes and headers of SEAL's and of its compression, which all
    serialised objects have.
    """
    public = base64.b64decode(json.loads((keys / pair.files[-1]).read_text())[pair.inside])
    found = windows(pair.secret_in(keys).to_secret_bytes()) - windows(public)
    return {window for window in found if len(set(window)) >= 12}


@PAIRS
def test_no_window_of_a_secret_key_is_outside_its_sealed_file(made_keys, pair):
    """No 16 bytes that only the secret key has stand in any file, in clear or base64."""
    only_secret = only_in_the_secret(pair, made_keys)
    assert len(only_secret) > (75 if pair is CARDS else 50_000)  # of 81 windows of 96 bytes
    for file in files_of(made_keys):
        for view in views(file):
            assert only_secret.isdisjoint(windows(view)), file


@PAIRS
def test_the_search_for_a_secret_would_find_it(keys, pair):
    """A file with the secret key inside does show its windows."""
    only_secret, public = only_in_the_secret(pair, keys), keys / pair.files[-1]
    secret = base64.b64encode(pair.secret_in(keys).to_secret_bytes()).decode()
    public.write_text(json.dumps(json.loads(public.read_text()) | {pair.inside: secret}))
    found = set().union(*map(windows, views(public)))
    assert not only_secret.isdisjoint(found)


def test_the_passphrase_is_nowhere_in_the_folder(made_keys):
    """No file holds the passphrase or one of its words, in clear or base64."""
    assert len(files_of(made_keys)) == 8
    for file in files_of(made_keys):
        for view in views(file):
            for word in PASSPHRASE.split():
                assert word.encode() not in view, file


@PAIRS
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_secret_key_that_others_may_read_is_not_loaded(keys, pair, mode):
    """A secret key open to other users is refused with the command that closes it."""
    path = keys / pair.secret
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"chmod 600 {path}"):
        pair.load(keys, PASSPHRASE)
    assert "chmod 600" in problems_of(keys)[pair.secret][0]


@PAIRS
def test_another_passphrase_names_the_file_and_repeats_nothing(made_keys, pair):
    """A wrong passphrase is its own error, in one line with the file's path and no passphrase."""
    with pytest.raises(WrongPassphrase, match=f"{pair.secret}: the passphrase") as refusal:
        pair.load(made_keys, "Tr0ub4dor&3")
    assert "Tr0ub4dor" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match=f"{pair.secret}: the passphrase is empty"):
        pair.load(made_keys, "")


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


@pytest.mark.parametrize("file", [CARD_SECRET, *PUBLIC, MATCH_SECRET])
@CONTENTS
def test_what_is_no_key_file_is_refused_with_path_and_way_out(keys, file, content):
    """A file that is missing or anything else gives one line with its path and what to do."""
    spoil(keys, file, content)
    with pytest.raises(KeyFileError, match="securefl keys init") as refusal:
        pair_of(file).load(keys, PASSPHRASE)
    assert str(keys / file) in str(refusal.value)


@CONTENTS
def test_without_its_count_no_match_key_is_loaded(keys, content):
    """Nobody knows what it has released, so the way out is a new key, and no copy of the file."""
    file = count_of(keys)
    spoil(keys, file, content)
    with pytest.raises(KeyFileError, match="make a new key, with: securefl keys rotate") as refusal:
        load_match(keys, PASSPHRASE)
    assert str(keys / file) in str(refusal.value)
    assert "copy it again" not in str(refusal.value)
    assert load_all(keys, PASSPHRASE)


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


@pytest.mark.parametrize(
    ("role", "held"),
    [
        ("server", ["card key", "match scoring"]),
        ("clients", ["card key", "match public"]),
    ],
)
def test_a_machine_needs_its_own_folder_alone(keys, role, held):
    """One file of each pair on the server's machine and on a client's, and no problem."""
    mine, others = (load_server, load_client) if role == "server" else (load_client, load_server)
    for folder in {"authority", "server", "clients"} - {role}:
        shutil.rmtree(keys / folder)
    assert mine(keys).key_id
    assert problems_of(keys) == {}
    assert [entry.what for entry in describe(keys)] == held
    with pytest.raises(KeyFileError, match=r"public\.key: missing"):
        others(keys)


@PAIRS
def test_the_description_names_key_holder_and_security(made_keys, pair):
    """Each file of a pair is shown with its key id, who may hold it and how secure it is."""
    entries = {e.path.as_posix(): e for e in describe(made_keys) if e.pair == pair.name}
    assert tuple(entries) == pair.files
    assert tuple(entries[file].holder for file in pair.files) == pair.holders
    key_id = pair.secret_in(made_keys).key_id
    assert {entry.facts.key_id for entry in entries.values()} == {key_id}
    assert {entry.facts.security_bits for entry in entries.values()} == {pair.security_bits}


def test_the_description_shows_what_was_released(keys):
    """The count of the match key is told, and its lock is no stranger."""
    load_match(keys, PASSPHRASE).count.spend(1, 2**30)
    file = count_of(keys)
    assert (keys / file).with_name(f".{(keys / file).name}.lock").exists()
    entries = {e.path.as_posix(): e for e in describe(keys)}
    assert (entries[file].what, entries[file].holder) == ("releases", "authority")
    assert entries[file].facts.n_released == 1
    assert problems_of(keys) == {}


def test_a_lock_that_holds_something_is_shown(keys):
    """No file hides under the lock's name."""
    lock = (keys / count_of(keys)).with_suffix(".json.lock")
    lock = lock.with_name(f".{lock.name}")
    lock.write_text("a key")
    assert problems_of(keys).keys() == {lock.relative_to(keys).as_posix()}


def test_a_count_of_another_key_is_none_of_this_one(keys, tmp_path):
    """A fresh count under the old one's name is refused and shown; there is no older copy."""
    init_folder(tmp_path / "other", PASSPHRASE)
    other = tmp_path / "other" / count_of(tmp_path / "other")
    file = count_of(keys)
    shutil.copy(other, keys / file)
    with pytest.raises(KeyFileError, match=f"it counts for key {other.stem[:16]}"):
        load_match(keys, PASSPHRASE)
    (problem,) = problems_of(keys)[file]
    assert f"it counts for key {other.stem[:16]}" in problem
    assert "copy it again" not in problem


@pytest.mark.parametrize("file", [*PUBLIC, CARD_SECRET, MATCH_SECRET])
def test_files_of_two_ceremonies_do_not_mix(keys, tmp_path, file):
    """A file of another key is refused by name and shown; the other pair's are not blamed."""
    init_folder(tmp_path / "other", PASSPHRASE)
    shutil.copy(tmp_path / "other" / file, keys / file)
    pair = pair_of(file)
    named = f"{file}: of key .* but " if file in PUBLIC else ""
    with pytest.raises(KeyFileError, match=f"{named}the authority holds"):
        pair.load(keys, PASSPHRASE)
    assert (MATCH if pair is CARDS else CARDS).load(keys, PASSPHRASE)
    problems = problems_of(keys)
    if file == MATCH_SECRET:  # whose releases are not counted in this folder
        assert problems.pop(count_of(keys)) == ("missing, or not a file",)
    assert problems
    assert problems.keys() <= set(pair.files)
    assert all("two key pairs are mixed" in problem for (problem,) in problems.values())


@pytest.mark.parametrize(
    ("file", "other"),
    [
        ("server/match.json", "server/public.key"),
        ("server/match.json", MATCH_SECRET),
        ("server/public.key", "server/match.json"),
        ("server/public.key", "clients/match-public.key"),
        ("server/public.key", CARD_SECRET),
        ("clients/match-public.key", "clients/public.key"),
        ("clients/match-public.key", "a count"),
        ("clients/public.key", "a count"),
        ("clients/public.key", "clients/match-public.key"),
        ("clients/public.key", CARD_SECRET),
        ("clients/public.key", MATCH_SECRET),
    ],
)
def test_no_file_serves_for_another(keys, file, other):
    """Files are told apart by name; a secret in a folder that is handed out is shown, too."""
    other = count_of(keys) if other == "a count" else other
    shutil.copy(keys / other, keys / file)
    with pytest.raises(KeyFileError, match=f"{file}: this is a 'securefl-.* is needed"):
        pair_of(file).load(keys, PASSPHRASE)
    (problem, *_) = problems_of(keys)[file]
    secret = other in {CARD_SECRET, MATCH_SECRET}
    assert ("secret key outside authority/" if secret else "belongs") in problem


@pytest.mark.parametrize("file", PUBLIC)
@pytest.mark.parametrize("field", ["the key", "key_id", "created", "sha256"])
def test_a_damaged_public_file_is_refused(keys, file, field):
    """A changed character of what a public file holds does not match the file's own SHA-256."""
    path = keys / file
    content = json.loads(path.read_text())
    field = pair_of(file).inside if field == "the key" else field
    first, *rest = content[field]
    changed = {field: "".join(["1" if first != "1" else "2", *rest])}
    path.write_text(json.dumps(content | changed))
    with pytest.raises(KeyFileError, match="does not match its SHA-256"):
        pair_of(file).load(keys, PASSPHRASE)


@PAIRS
def test_no_text_of_a_secret_key_is_secret(made_keys, pair):
    """What a log line would show of a key, or of all keys together, is its public id at most."""
    keys, secret = pair.load(made_keys, PASSPHRASE), pair.secret_in(made_keys)
    parts = [getattr(keys, part.name) for part in fields(keys)]
    shown = f"{keys!r} {parts!r} {secret}"
    assert "secret=" not in shown
    assert "secrets=" not in shown
    data = secret.to_secret_bytes()
    for start in range(0, len(data) - 8, 8):
        assert data[start : start + 8].hex() not in shown

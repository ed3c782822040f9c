"""Key files of sums of version 2 were CKKS keys: each is refused, with the way out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from key_folders import load_client, load_server

from securefl.crypto.cards import CardKey
from securefl.errors import KeyFileError
from securefl_keys.authority_keys import load_all, load_authority
from securefl_keys.rotation import rotate
from securefl_keys.sealed_keys import open_secret
from securefl_keys.verification import describe

FILES = Path(__file__).parent / "v2"
PASSPHRASE = "correct horse battery staple"
OLD = {
    "authority/secret.key": ("secret.key", "securefl-secret-key", "securefl-card-secret-key/3"),
    "authority/parameters.json": (
        "parameters.json",
        "securefl-ckks-parameters",
        "securefl-card-key/3",
    ),
    "server/parameters.json": (
        "parameters.json",
        "securefl-ckks-parameters",
        "securefl-card-key/3",
    ),
    "clients/public.key": ("public.key", "securefl-ckks-public-key", "securefl-card-key/3"),
}
"""Frozen file, name of its format, and the format of today, by its place in a folder."""


def line(place):
    """Return the line that says that a file is older."""
    _, name, wanted = OLD[place]
    return f"a {name}/2 file, of another SecureFL; this one reads {wanted}: make the keys anew"


@pytest.fixture
def folder(tmp_path):
    """A key folder as the release before made it."""
    match = {
        "authority/match.key": "match.key",
        "server/match.json": "match.json",
        "clients/match-public.key": "match-public.key",
        "authority/releases/1fa8e1acbd548e50.json": "match-releases.json",
        "authority/releases/0aa0914230abb6ac.json": "releases.json",
    }
    for place, file in ({place: file for place, (file, *_) in OLD.items()} | match).items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FILES / file, tmp_path / place)
        (tmp_path / place).chmod(0o600)
    return tmp_path


@pytest.mark.parametrize("place", OLD)
def test_a_key_file_of_version_2_is_refused_with_the_way_out(place):
    """Not as damaged, and before the passphrase is turned into a key."""
    text = (FILES / OLD[place][0]).read_text()
    with pytest.raises(KeyFileError) as refusal:
        open_secret(text, PASSPHRASE) if "secret" in place else CardKey.from_json(text)
    assert str(refusal.value) == line(place)


@pytest.mark.parametrize(
    ("load", "place"),
    [
        (load_client, "clients/public.key"),
        (load_server, "server/parameters.json"),
        (lambda folder: load_authority(folder, PASSPHRASE), "authority/secret.key"),
        (lambda folder: load_all(folder, PASSPHRASE), "clients/public.key"),
        (lambda folder: rotate(folder, PASSPHRASE), "authority/secret.key"),
    ],
    ids=["client", "server", "authority", "all", "rotate"],
)
def test_a_folder_of_version_2_is_told_as_such(folder, load, place):
    """Each role says so, also where the file had another name; nothing in it changes."""
    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    with pytest.raises(KeyFileError, match="securefl keys init") as refusal:
        load(folder)
    assert f"{folder / place}: {line(place)}" in str(refusal.value)
    assert before.items() <= {p: p.read_bytes() for p in folder.rglob("*.*") if p.is_file()}.items()


def test_the_description_of_a_folder_of_version_2_says_what_to_do(folder):
    """Each old file is named, and each that is missing; files of matches are of no use."""
    problems = {str(entry.path): entry.problems for entry in describe(folder) if entry.problems}
    assert problems.keys() == {
        *OLD,
        "authority/public.key",
        "server/public.key",
    }
    for place in OLD:
        assert line(place) in problems[place]

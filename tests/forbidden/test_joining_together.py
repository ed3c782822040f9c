"""Several join at once: all of them, or nobody, and nothing of them is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from consortium_files import PASSPHRASE, revoke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.errors import KeyFileError, RequestRefused, WrongPassphrase
from securefl_keys import key_files, membership, sealed_file
from securefl_keys.certificate_form import Holder
from securefl_keys.consortium import init_folder
from securefl_keys.identity import make_identities
from securefl_keys.membership import JoinApproval, approve
from securefl_keys.request import make_request, read_request
from securefl_keys.roster import load_roster

NAMES = ("alice", "bob", "carol")


@pytest.fixture(scope="module", autouse=True)
def _cheap_guesses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield


@pytest.fixture
def keys(tmp_path):
    init_folder(tmp_path / "keys", PASSPHRASE, consortium="Nord")
    return tmp_path / "keys"


@pytest.fixture
def asked(tmp_path):
    """Three good requests."""
    requests = make_identities(tmp_path / "members", NAMES, "client", "theirs")
    return [JoinApproval(r, tmp_path / f"members/{r.name}/identity.crt") for r in requests]


def request_of(name, key=None, role="client"):
    return read_request(make_request(Holder(name, role), key or Ed25519PrivateKey.generate()))


def contents(root):
    """Every file but the locks, which are empty."""
    found = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {path: content for path, content in found.items() if path.suffix != ".lock"}


def test_all_join_in_one_version(keys, asked):
    """Three certificates, and the roster changed once."""
    roster = approve(keys, asked, PASSPHRASE)
    assert (tuple(roster.members), roster.file.version) == (NAMES, 2)
    assert all(approval.certificate.is_file() for approval in asked)


def of_a_member(tmp_path, keys):
    approve(keys, [JoinApproval(request_of("dora"), tmp_path / "dora.crt")], PASSPHRASE)
    return JoinApproval(request_of("Dora"), tmp_path / "bad.crt")


def of_a_revoked_key(tmp_path, keys):
    key = Ed25519PrivateKey.generate()
    approve(keys, [JoinApproval(request_of("dora", key), tmp_path / "dora.crt")], PASSPHRASE)
    revoke(keys, "dora")
    return JoinApproval(request_of("dora", key), tmp_path / "bad.crt")


def whose_certificate_is_there(tmp_path, keys):
    (tmp_path / "bad.crt").write_text("mine")
    return JoinApproval(request_of("dora"), tmp_path / "bad.crt")


BAD = {
    "a member's name": of_a_member,
    "a revoked key": of_a_revoked_key,
    "a certificate that is there": whose_certificate_is_there,
    "a name of the three": lambda tmp_path, _: JoinApproval(
        request_of("BOB", role="server"), tmp_path / "bad.crt"
    ),
    "the authority's name": lambda tmp_path, _: JoinApproval(
        request_of("authority"), tmp_path / "bad.crt"
    ),
    "a folder that is not there": lambda tmp_path, _: JoinApproval(
        request_of("dora"), tmp_path / "none/bad.crt"
    ),
    "a certificate of the three": lambda tmp_path, _: JoinApproval(
        request_of("dora"), tmp_path / "members/carol/identity.crt"
    ),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_one_that_cannot_be_approved_stops_all(keys, asked, tmp_path, what, place):
    """Wherever it stands among the good ones, no certificate is written and no roster changed."""
    bad = BAD[what](tmp_path, keys)
    asked.insert(place, bad)
    before = contents(tmp_path)
    with pytest.raises((RequestRefused, KeyFileError)):
        approve(keys, asked, PASSPHRASE)
    assert contents(tmp_path) == before


def test_a_key_joins_once(keys, tmp_path):
    """Nor under two names in one call."""
    key = Ed25519PrivateKey.generate()
    twins = [JoinApproval(request_of(n, key), tmp_path / f"{n}.crt") for n in ("eve", "eva")]
    before = contents(tmp_path)
    with pytest.raises(RequestRefused, match="one name or one key"):
        approve(keys, twins, PASSPHRASE)
    assert contents(tmp_path) == before


def test_another_passphrase_approves_nobody(keys, asked, tmp_path):
    """Checked before the first certificate is written."""
    before = contents(tmp_path)
    with pytest.raises(WrongPassphrase):
        approve(keys, asked, "wrong")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["write_new", "replace"])
def test_a_disk_that_fills_up_leaves_nobody_approved(keys, asked, tmp_path, monkeypatch, name):
    """Certificates that were written before are taken away again."""
    real, calls = getattr(key_files, name), []

    def fails_at_last(path, text, mode):
        calls.append(path)
        if name == "replace" or len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(path, text, mode)

    monkeypatch.setattr(membership, name, fails_at_last)
    before = contents(tmp_path)
    with pytest.raises(KeyFileError, match="No space left"):
        approve(keys, asked, PASSPHRASE)
    assert contents(tmp_path) == before
    monkeypatch.undo()
    assert load_roster(keys).members == {}


@pytest.mark.parametrize("names", [("a", "b", "a"), ("a", "A"), ("a", ""), ("a", "../b")])
def test_identities_are_made_of_all_names_or_none(tmp_path, names):
    """One that is there twice, or that cannot be a name, and no folder is made."""
    with pytest.raises(RequestRefused):
        make_identities(tmp_path / "new", names, "client", "theirs")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_stops_all(tmp_path):
    """And stays as it is."""
    (tmp_path / "bob").mkdir()
    with pytest.raises(KeyFileError, match="bob exists"):
        make_identities(tmp_path, NAMES, "client", "theirs")
    assert list(tmp_path.iterdir()) == [tmp_path / "bob"]


def test_folders_that_appeared_go_again_where_one_cannot(tmp_path, monkeypatch):
    """The last rename fails: the first two, their files and the new parent are gone."""
    real = Path.rename

    def fails_for_carol(self, target):
        if Path(target).name == "carol":
            raise OSError(5, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", fails_for_carol)
    with pytest.raises(KeyFileError, match="nothing was left"):
        make_identities(tmp_path / "some/new", NAMES, "client", "theirs")
    assert list(tmp_path.iterdir()) == []

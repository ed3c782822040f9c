"""A consortium's files of version 2, made once, are still read; bundle and policy are newer.

Alice, Zoë K and the server hub had joined, bob had joined and was revoked, so that all is of
epoch 2. The passphrase of the consortium is `correct horse battery staple`, a member's `of NAME`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from consortium_v3 import MEMBERS, PASSPHRASE

from securefl.errors import CertificateExpired, CertificateRevoked, KeyFileError
from securefl_keys.bundle import load_bundle
from securefl_keys.certificate_form import AUTHORITY as THE_AUTHORITY
from securefl_keys.certificate_form import Holder, read_pem
from securefl_keys.identity import open_ca_key, open_identity_key
from securefl_keys.policy import load_policy
from securefl_keys.request import read_request
from securefl_keys.roster import RosterFile, load_roster
from securefl_keys.verification import verify

FILES = Path(__file__).parent / "v2/consortium"
AUTHORITY = "0759e9318fc144f85e0ab044240583beaeda168ba5a7b84bef8b8977caf7e2c5"
ALICE = "76cc70b57d35c75735db73ea9cd5590aa9685acb84a31889e02cba98dd8960f7"
HUB = "a6b68ff4d83ca4bbc46c098f7e54d354b35d88d360e6b339e9f888b481ae3c27"
THEN = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def roster():
    return load_roster(FILES / "bundle", AUTHORITY, THEN)


def test_a_bundle_of_version_2_says_what_to_do():
    """Its list is of other files than those of today: to its reader, and to who looks at it."""
    told = (
        "securefl-bundle/1 file, of another SecureFL; this one reads securefl-bundle/3: export it "
        "anew, with: securefl keys export"
    )
    with pytest.raises(KeyFileError, match=told):
        load_bundle(FILES / "bundle", "server", AUTHORITY, THEN)
    (problem,) = verify(FILES / "bundle", at=THEN).problems
    assert told in problem


def test_a_policy_of_version_2_says_what_to_do():
    """It states noise, which nothing adds any more."""
    told = "securefl-policy/2 file, of another SecureFL; this one reads securefl-policy/3"
    with pytest.raises(KeyFileError, match=told):
        load_policy(FILES / "bundle", THEN)


def test_the_frozen_roster_names_the_same_members(roster):
    """Two clients and a server are in, one was revoked."""
    assert (roster.file.epoch, roster.file.version) == (2, 6)
    roles = {name: member.role for name, member in roster.members.items()}
    assert roles == {name: role for name, role in MEMBERS.items() if name != "bob"}
    assert (roster.member("alice").key_id, roster.member("hub").key_id) == (ALICE, HUB)
    with pytest.raises(CertificateRevoked):
        roster.member("bob")
    with pytest.raises(CertificateRevoked):
        roster.holder_of(read_pem((FILES / "revoked.crt").read_text()), "client")


@pytest.mark.parametrize(("name", "key_id"), [("alice", ALICE), ("hub", HUB)])
def test_the_frozen_keys_and_papers_belong_together(roster, name, key_id):
    """Sealed keys open; request and certificate are of the same key and role."""
    owner, key = open_identity_key((FILES / f"{name}.key").read_text(), f"of {name}")
    request = read_request((FILES / f"{name}.csr").read_text())
    assert owner == Holder(name, MEMBERS[name]) == Holder(request.name, request.role)
    assert request.fingerprint == key_id
    certificate = read_pem((FILES / f"{name}.crt").read_text())
    assert certificate.public_key() == key.public_key() == request.public_key
    assert roster.holder_of(certificate, MEMBERS[name]).name == name


def test_the_frozen_authority_is_known(roster):
    """Its sealed identity opens, and its certificate is of that key and of this consortium."""
    owner, key = open_identity_key((FILES / "authority.key").read_text(), PASSPHRASE)
    certificate = read_pem((FILES / "authority.crt").read_text())
    assert owner == THE_AUTHORITY
    assert certificate.public_key() == key.public_key()
    assert roster.holder_of(certificate, "authority").name == owner.name


def test_the_same_roster_is_written_as_the_same_text(roster):
    """What version 2 signed is signed again byte for byte."""
    key = open_ca_key((FILES / "ca.key").read_text(), PASSPHRASE)
    text = (FILES / "bundle/consortium/roster.json").read_text()
    at = datetime.fromisoformat(json.loads(text)["created"])
    assert RosterFile.verified(text, roster.ca).signed_anew(roster.ca, key, at) == text


def test_a_frozen_certificate_expires():
    """Thirteen months later the members are none any more, and the consortium still is."""
    later = datetime(2028, 3, 1, tzinfo=UTC)
    roster = load_roster(FILES / "bundle", AUTHORITY, later)
    for name in ("alice", "hub"):
        with pytest.raises(CertificateExpired, match=f"{name}'s certificate is valid from 2026"):
            roster.member(name)
    certificate = read_pem((FILES / "authority.crt").read_text())
    assert roster.holder_of(certificate, "authority").name == "authority"

"""A consortium's files of version 2, made once by `consortium_v2.py`, are still read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from consortium_v2 import MEMBERS, PASSPHRASE, POLICY

from securefl.errors import CertificateExpired, CertificateRevoked
from securefl_keys.bundle import load_bundle
from securefl_keys.certificate_text import read_pem
from securefl_keys.holders import AUTHORITY as THE_AUTHORITY
from securefl_keys.holders import Holder
from securefl_keys.policy import PolicyFile
from securefl_keys.request import read_request
from securefl_keys.roster import RosterFile
from securefl_keys.sealed_identity import open_ca_key, open_identity_key

FILES = Path(__file__).parent / "v2/consortium"
AUTHORITY = "0759e9318fc144f85e0ab044240583beaeda168ba5a7b84bef8b8977caf7e2c5"
ALICE = "76cc70b57d35c75735db73ea9cd5590aa9685acb84a31889e02cba98dd8960f7"
HUB = "a6b68ff4d83ca4bbc46c098f7e54d354b35d88d360e6b339e9f888b481ae3c27"
THEN = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def bundle():
    return load_bundle(FILES / "bundle", "server", AUTHORITY, THEN)


def test_the_frozen_bundle_is_in_order(bundle):
    """List, roster, policy and key files of version 2 are still what was signed."""
    assert (bundle.manifest.epoch, bundle.manifest.roster_version) == (2, 6)
    assert bundle.policy().version == 2
    assert bundle.policy().policy() == POLICY


def test_the_frozen_roster_names_the_same_members(bundle):
    """Two clients and a server are in, one was revoked."""
    roster = bundle.roster()
    roles = {name: member.role for name, member in roster.members.items()}
    assert roles == {name: role for name, role in MEMBERS.items() if name != "bob"}
    assert (roster.member("alice").key_id, roster.member("hub").key_id) == (ALICE, HUB)
    with pytest.raises(CertificateRevoked):
        roster.member("bob")
    with pytest.raises(CertificateRevoked):
        roster.holder_of(read_pem((FILES / "revoked.crt").read_text()), "client")


@pytest.mark.parametrize(("name", "key_id"), [("alice", ALICE), ("hub", HUB)])
def test_the_frozen_keys_and_papers_belong_together(bundle, name, key_id):
    """Sealed keys open; request and certificate are of the same key and role."""
    owner, key = open_identity_key((FILES / f"{name}.key").read_text(), f"of {name}")
    request = read_request((FILES / f"{name}.csr").read_text())
    assert owner == Holder(name, MEMBERS[name]) == Holder(request.name, request.role)
    assert request.fingerprint == key_id
    certificate = read_pem((FILES / f"{name}.crt").read_text())
    assert certificate.public_key() == key.public_key() == request.public_key
    assert bundle.roster().holder_of(certificate, MEMBERS[name]).name == name


def test_the_frozen_authority_is_known(bundle):
    """Its sealed identity opens, and its certificate is of that key and of this consortium."""
    owner, key = open_identity_key((FILES / "authority.key").read_text(), PASSPHRASE)
    certificate = read_pem((FILES / "authority.crt").read_text())
    assert owner == THE_AUTHORITY
    assert certificate.public_key() == key.public_key()
    assert bundle.roster().holder_of(certificate, "authority").name == owner.name


@pytest.mark.parametrize(("kind", "name"), [(RosterFile, "roster"), (PolicyFile, "policy")])
def test_the_same_file_is_written_as_the_same_text(bundle, kind, name):
    """What version 2 signed is signed again byte for byte."""
    key = open_ca_key((FILES / "ca.key").read_text(), PASSPHRASE)
    text = (FILES / f"bundle/consortium/{name}.json").read_text()
    at = datetime.fromisoformat(json.loads(text)["created"])
    assert kind.verified(text, bundle.ca).signed_anew(bundle.ca, key, at) == text


def test_a_frozen_certificate_expires():
    """Thirteen months later the members are none any more, and the consortium still is."""
    later = datetime(2028, 3, 1, tzinfo=UTC)
    roster = load_bundle(FILES / "bundle", "server", AUTHORITY, later).roster()
    for name in ("alice", "hub"):
        with pytest.raises(CertificateExpired, match=f"{name}'s certificate is valid from 2026"):
            roster.member(name)
    certificate = read_pem((FILES / "authority.crt").read_text())
    assert roster.holder_of(certificate, "authority").name == "authority"

"""A consortium's files of version 1, made once, are read by every later release."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from securefl.errors import CertificateExpired, CertificateRevoked
from securefl_keys.bundle import load_bundle
from securefl_keys.certificate_text import read_pem
from securefl_keys.request import read_request
from securefl_keys.roster import RosterFile
from securefl_keys.sealed_identity import open_ca_key, open_identity_key

FILES = Path(__file__).parent / "v1/consortium"
PASSPHRASE = "correct horse battery staple"
AUTHORITY = "9602f98f8e58a36ea0f292bf5a2221e8c6e68dabccd1b6b7a6e7421026c71bcf"
ALICE = "9d1ea64abf75e50068a9c2ecd7dd2b97177f74505074a758728367571ee1fe15"
THEN = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def bundle():
    return load_bundle(FILES / "bundle", "server", AUTHORITY, THEN)


def test_the_frozen_bundle_is_in_order(bundle):
    """List, roster, policy and key files of version 1 are still what was signed."""
    assert bundle.manifest.roster_version == 5
    assert bundle.policy().min_contributions == 3
    assert bundle.policy().rule_for("layer/mean").precision_bits == 24


def test_the_frozen_roster_names_the_same_clients(bundle):
    """Two are in, one was revoked, and a rotation is due since."""
    roster = bundle.roster()
    assert list(roster.members) == ["alice", "Zoë K"]
    assert roster.member("alice").key_id == ALICE
    assert roster.rotation_due
    with pytest.raises(CertificateRevoked):
        roster.member("bob")


def test_the_frozen_keys_and_papers_belong_together(bundle):
    """Sealed keys open; request and certificate are of alice's key."""
    name, key = open_identity_key((FILES / "identity.key").read_text(), "of alice")
    request = read_request((FILES / "identity.csr").read_text())
    assert (name, request.name, request.fingerprint) == ("alice", "alice", ALICE)
    certificate = read_pem((FILES / "identity.crt").read_text())
    assert certificate.public_key() == key.public_key() == request.public_key
    assert certificate == bundle.roster().member("alice").certificate


def test_the_same_roster_is_written_as_the_same_text(bundle):
    """What version 1 signed is signed again byte for byte."""
    key = open_ca_key((FILES / "ca.key").read_text(), PASSPHRASE)
    text = (FILES / "bundle/consortium/roster.json").read_text()
    old = bundle.roster().file
    fields = {name: getattr(old, name) for name in ("format", "epoch", "version", "certificates")}
    at = datetime.fromisoformat(json.loads(text)["created"])
    assert RosterFile.signing(bundle.ca, key, at, revoked=old.revoked, **fields) == text


def test_a_frozen_certificate_expires(bundle):
    """Thirteen months later alice is no client any more, and the consortium still is."""
    later = datetime(2028, 3, 1, tzinfo=UTC)
    roster = load_bundle(FILES / "bundle", "server", AUTHORITY, later).roster()
    with pytest.raises(CertificateExpired, match="alice's certificate is valid from 2026"):
        roster.member("alice")

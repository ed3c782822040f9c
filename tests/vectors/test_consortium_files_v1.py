"""A consortium's files of version 1, made once, are told from damaged ones; certificates last."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from securefl.errors import KeyFileError, RequestRefused
from securefl_keys.bundle import Manifest, load_bundle
from securefl_keys.certificate_form import read_pem
from securefl_keys.certificates import holder_certificate, read_authority
from securefl_keys.identity import open_ca_key, open_identity_key
from securefl_keys.policy import PolicyFile
from securefl_keys.request import read_request
from securefl_keys.roster import RosterFile

FILES = Path(__file__).parent / "v1/consortium"
PASSPHRASE = "correct horse battery staple"
AUTHORITY = "9602f98f8e58a36ea0f292bf5a2221e8c6e68dabccd1b6b7a6e7421026c71bcf"
ALICE = "9d1ea64abf75e50068a9c2ecd7dd2b97177f74505074a758728367571ee1fe15"
THEN = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def ca():
    return read_authority((FILES / "bundle/consortium/ca.crt").read_text(), THEN)


@pytest.mark.parametrize(
    ("file", "name", "kind", "way_out"),
    [
        ("roster", "roster", RosterFile, "init DIR --consortium"),
        ("policy", "policy", PolicyFile, "init DIR --consortium"),
        ("manifest", "bundle", Manifest, "keys export"),
    ],
)
def test_a_signed_file_of_version_1_says_what_to_do(ca, file, name, kind, way_out):
    """Not that it was changed."""
    with pytest.raises(
        KeyFileError, match=f"securefl-{name}/1 file, of another SecureFL.*{way_out}"
    ):
        kind.verified((FILES / f"bundle/consortium/{file}.json").read_text(), ca)


def test_a_bundle_of_version_1_says_what_to_do():
    """Already by its signed list."""
    with pytest.raises(KeyFileError, match="securefl-bundle/1 file, of another SecureFL"):
        load_bundle(FILES / "bundle", "server", AUTHORITY, THEN)


@pytest.mark.parametrize(
    ("file", "opened", "passphrase"),
    [("ca.key", open_ca_key, PASSPHRASE), ("identity.key", open_identity_key, "of alice")],
)
def test_a_sealed_key_of_version_1_says_what_to_do(file, opened, passphrase):
    """Not that it was damaged, nor that the passphrase is wrong."""
    with pytest.raises(KeyFileError, match=r"secret-key/1 file, of another SecureFL.*anew"):
        opened((FILES / file).read_text(), passphrase)


def test_a_request_of_version_1_says_what_to_do():
    """It names no role, so nobody can approve it."""
    with pytest.raises(RequestRefused, match=r"names no role, as those of older versions.*anew"):
        read_request((FILES / "identity.csr").read_text())


def test_a_certificate_of_version_1_is_a_clients(ca):
    """Its form has not changed."""
    certificate = read_pem((FILES / "identity.crt").read_text())
    alice = holder_certificate(certificate, ca)
    assert (alice.name, alice.role, alice.key_id) == ("alice", "client", ALICE)

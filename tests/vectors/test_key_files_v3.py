"""The key files of cards, version 3, made once by `consortium_v3.py`, are still read.

Their bundle had a file of profile matches. The same files without it are listed in a bundle of
today, signed once with the frozen key: `v4/consortium/bundle`.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from consortium_v3 import ALICE, MEMBERS, PASSPHRASE, POLICY, SESSION
from key_folders import load_server

from securefl.crypto.artefact import Origin
from securefl.crypto.cards import CardKey
from securefl.crypto.derived import group_secret
from securefl.errors import KeyFileError, MessageRefused
from securefl.exchange.card_keys import CardKeys, card_about
from securefl.exchange.officer import KeySet
from securefl_keys import layout
from securefl_keys.bundle import load_bundle
from securefl_keys.identity import open_ca_key
from securefl_keys.policy import PolicyFile
from securefl_keys.sealed_keys import SealedKey, open_secret, seal_secret
from securefl_keys.verification import verify

FILES = Path(__file__).parent / "v3/consortium"
BUNDLE = Path(__file__).parent / "v4/consortium/bundle"
AUTHORITY = "569e5b637bf63f8b9147ab79284813c84a9e617f31596296de53a4bdc17a60af"
KEY_ID = "fa615dae235c2000585dd49c6ae1282a33c47caf1516dfc64f6886d97c18930d"
ORIGIN = Origin(epoch=2, created="2026-11-23T17:43:50Z")
PUBLIC = FILES / "bundle/server/public.key"
THEN = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def secret():
    return open_secret((FILES / "secret.key").read_text(), PASSPHRASE)


@pytest.fixture(scope="module")
def bundle():
    return load_bundle(BUNDLE, "server", AUTHORITY, THEN)


def test_the_frozen_files_name_one_key(secret, bundle):
    """Sealed secret, public file and bundle, by the published id; the id is the key's digest."""
    public = CardKey.from_json(PUBLIC.read_text())
    assert {secret.key_id, public.key_id, bundle.manifest.key_id} == {KEY_ID}
    assert {secret.origin, public.origin} == {ORIGIN}
    assert hashlib.sha256(public._bytes).hexdigest() == KEY_ID
    assert load_server(FILES / "bundle").key_id == load_server(BUNDLE).key_id == KEY_ID


def test_the_frozen_secret_opens_the_frozen_card(secret):
    """And a card that is made now; each for its own session alone."""
    held = CardKeys((CardKey.from_json(PUBLIC.read_text()),))
    now = held.cards(SESSION, ALICE)
    card, (committed,) = held.card_of(now, 0)
    about = card_about(SESSION, ALICE.name)
    for one in ((FILES / "card.bin").read_bytes(), card):
        assert secret.secrets_in(one, 1, about) == [group_secret(ALICE.secret, 0)]
        KeySet((secret,)).opener().take_cards(SESSION, ALICE.name, one + committed)
        with pytest.raises(MessageRefused):
            KeySet((secret,)).opener().take_cards("cd" * 32, ALICE.name, one + committed)


def test_the_same_key_is_written_as_the_same_text(secret):
    """A public file byte for byte; a sealed one but for salt, nonce, and what follows from them."""
    assert secret.public.to_json() == PUBLIC.read_text()
    written, frozen = (
        SealedKey.parse(text).header()
        for text in (seal_secret(secret, PASSPHRASE), (FILES / "secret.key").read_text())
    )
    for header in (written, frozen):
        del header["nonce"], header["kdf"]["salt"]
    assert written == frozen


def test_the_frozen_bundle_is_in_order(bundle):
    """Its roster, policy and key files are those of version 3, and still what was signed."""
    for path in bundle.texts.keys() - {layout.MANIFEST}:
        assert (FILES / "bundle" / path).read_text() == bundle.texts[path]
    assert (bundle.manifest.epoch, bundle.manifest.roster_version) == (2, 6)
    assert bundle.policy().version == 2
    assert bundle.policy().policy() == POLICY
    roles = {name: member.role for name, member in bundle.roster().members.items()}
    assert roles == {name: role for name, role in MEMBERS.items() if name != "bob"}


def test_the_same_policy_is_signed_as_the_same_text(bundle):
    """Byte for byte, by the frozen key of the certificate authority."""
    key = open_ca_key((FILES / "ca.key").read_text(), PASSPHRASE)
    text = (FILES / "bundle/consortium/policy.json").read_text()
    at = datetime.fromisoformat(json.loads(text)["created"])
    assert PolicyFile.verified(text, bundle.ca).signed_anew(bundle.ca, key, at) == text


def test_the_same_list_is_signed_as_the_same_text(bundle):
    """Byte for byte."""
    key = open_ca_key((FILES / "ca.key").read_text(), PASSPHRASE)
    text = bundle.texts[layout.MANIFEST]
    at = datetime.fromisoformat(json.loads(text)["created"])
    assert bundle.manifest.signed_anew(bundle.ca, key, at) == text


def test_a_bundle_with_a_match_key_says_what_to_do():
    """Only its list is of another form, so that the way out is a new export."""
    told = (
        "manifest.json: a securefl-bundle/2 file, of another SecureFL; this one reads "
        "securefl-bundle/3: export it anew, with: securefl keys export"
    )
    with pytest.raises(KeyFileError, match=told):
        load_bundle(FILES / "bundle", "server", AUTHORITY, THEN)
    (problem,) = verify(FILES / "bundle", at=THEN).problems
    assert told in problem

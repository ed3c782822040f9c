"""The files of officers, version 1, made once by `consortium_v4.py`, are still read."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from consortium_v4 import ALICE, MEMBERS, OFFICERS, PASSPHRASE, SESSION
from key_folders import load_client

from securefl.crypto.artefact import Origin
from securefl.crypto.derived import group_secret
from securefl.exchange.card_keys import Quorum, card_about
from securefl_keys import layout
from securefl_keys.bundle import VerifiedBundle, load_bundle
from securefl_keys.identity import open_ca_key, open_identity_key
from securefl_keys.officer_card import OfficerCard, load_officer
from securefl_keys.roster import OfficersFile
from securefl_keys.sealed_keys import (
    SealedOfficerKey,
    open_officer_secret,
    open_secret,
    seal_officer_secret,
)

FILES = Path(__file__).parent / "v4/officers"
AUTHORITY = "d94b69116a6553f5093d942bf463d1c13ea91ac993f138a73cf6f0aa1eda00b4"
KEY_ID = "d83e317b171e484901933bf85caf3ad6349f7f30013163bc5f6fd62369604378"
OLGA = "60fa3067a3fa7597480e6f3e48dc6cd56f6a0bb0c0f2f93d936efca55dfa5d3a"
ORIGIN = Origin(epoch=2, created="2026-11-23T21:23:06Z")
THEN = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def bundle():
    return load_bundle(FILES / "bundle", "officer", AUTHORITY, THEN)


@pytest.fixture(scope="module")
def secret():
    return open_officer_secret((FILES / "olga/card-2.key").read_text(), "of olga")


def test_the_frozen_list_names_the_officers(bundle):
    """In order, with the quorum, the epoch, and the published ids."""
    officers, keys = bundle.officers(), bundle.card_keys()
    assert officers.names == OFFICERS
    assert (officers.needed, officers.epoch) == (2, 2)
    assert (keys.key_id, keys.quorum, keys.epoch) == (KEY_ID, Quorum(2, 3), 2)
    assert keys.keys[1].key_id == OLGA
    assert bundle.manifest.key_id == KEY_ID
    roles = {name: member.role for name, member in bundle.roster().members.items()}
    assert roles == MEMBERS


def test_the_frozen_secrets_open_the_frozen_cards(bundle, secret):
    """Each its own part: olga and the authority know all three secrets together."""
    cards, about = (FILES / "cards.bin").read_bytes(), card_about(SESSION, ALICE.name)
    keys = bundle.card_keys()
    assert len(cards) == keys.card_bytes
    own = open_secret((FILES / "secret.key").read_text(), PASSPHRASE)
    for number, held in enumerate((own, secret)):
        card, committed = keys.card_of(cards, number)
        groups = keys.quorum.groups_of[number]
        wanted = [group_secret(ALICE.secret, group) for group in groups]
        assert held.secrets_in(card, len(committed), about) == wanted


def test_the_frozen_folder_is_olgas(monkeypatch, tmp_path):
    """Her secret, her number, and what two of three means; the folder stays as it was."""
    monkeypatch.setattr("securefl_keys.bundle.now", lambda: THEN)
    shutil.copytree(FILES / "olga", tmp_path / "olga")
    for path in (tmp_path / "olga").iterdir():
        path.chmod(0o600)
    sound = VerifiedBundle.load(FILES / "bundle", "officer")
    secret, number, quorum = load_officer(tmp_path / "olga", sound, "of olga")
    assert (secret.key_id, secret.origin) == (OLGA, ORIGIN)
    assert (number, quorum) == (1, Quorum(2, 3))
    assert {p.name for p in (tmp_path / "olga").iterdir()} == {
        *("identity.key", "identity.csr", "identity.crt", "card-2.key")
    }


def test_the_frozen_card_key_is_signed_by_olga(bundle, secret):
    """And written as the same text, byte for byte."""
    text = (FILES / "olga.json").read_text()
    card = OfficerCard.parse(text)
    card.require_signed(bundle.roster().members["olga"], 2)
    assert card.officer == bundle.officers().officers[1]
    assert card.officer.key().to_json() == secret.public.to_json()
    owner, key = open_identity_key((FILES / "olga/identity.key").read_text(), "of olga")
    assert OfficerCard.signing(card.officer, key).text() == text
    assert owner.role == "officer"


def test_the_same_list_is_signed_as_the_same_text(bundle):
    """Byte for byte, by the frozen key of the certificate authority."""
    key = open_ca_key((FILES / "ca.key").read_text(), PASSPHRASE)
    text = bundle.texts[layout.OFFICERS]
    at = datetime.fromisoformat(json.loads(text)["created"])
    assert OfficersFile.verified(text, bundle.ca).signed_anew(bundle.ca, key, at) == text


def test_a_secret_is_written_as_the_same_text(secret):
    """But for salt, nonce, and what follows from them."""
    written, frozen = (
        SealedOfficerKey.parse(text).header()
        for text in (
            seal_officer_secret(secret, "of olga"),
            (FILES / "olga/card-2.key").read_text(),
        )
    )
    for header in (written, frozen):
        del header["nonce"], header["kdf"]["salt"]
    assert written == frozen


def test_a_bundle_loads_as_a_key_folder(tmp_path):
    """Under a client's place for the authority's card key, as its bundle has it."""
    shutil.copytree(FILES / "bundle", tmp_path / "bundle")
    (tmp_path / "bundle/authority").rename(tmp_path / "bundle/clients")
    assert load_client(tmp_path / "bundle").key_id == KEY_ID

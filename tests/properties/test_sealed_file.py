"""A sealed secret key opens as it was written, under its passphrase, or not at all."""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.cards import CardKey
from securefl.errors import ConfigError, KeyFileError, WrongPassphrase
from securefl_keys import sealed_file
from securefl_keys.certificate_form import Holder
from securefl_keys.identity import seal_ca_key, seal_identity_key
from securefl_keys.sealed_keys import (
    SealedKey,
    SealedOfficerKey,
    open_officer_secret,
    open_secret,
    seal_officer_secret,
    seal_secret,
)

PASSPHRASE = "correct horse battery staple"
RECOMMENDED = sealed_file.KDF_COST
CHEAP = sealed_file.KdfCost(iterations=1, lanes=1, memory_kib=8)


@pytest.fixture(scope="module", autouse=True)
def _cheap_guesses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", CHEAP)
        yield


@dataclass(frozen=True)
class Kind:
    """What there is of each for a kind of key."""

    key: type
    file: type
    seal: Callable
    open: Callable


KINDS = {
    "cards": Kind(CardSecret, SealedKey, seal_secret, open_secret),
    "officer": Kind(CardSecret, SealedOfficerKey, seal_officer_secret, open_officer_secret),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def key(kind):
    return kind.key.generate()


@pytest.fixture(scope="module")
def sealed(kind, key):
    return kind.seal(key, PASSPHRASE)


def changed(sealed, **fields):
    return json.dumps(json.loads(sealed) | fields)


def changed_kdf(sealed, **fields):
    return changed(sealed, sealed_file=json.loads(sealed)["kdf"] | fields)


def test_a_sealed_key_opens_the_cards_of_its_public_half():
    """The key that comes out is the key that went in, and its public half goes through text."""
    key = CardSecret.generate(epoch=3)
    opened = open_secret(seal_secret(key, PASSPHRASE), PASSPHRASE)
    assert (opened.key_id, opened.origin) == (key.key_id, key.origin)
    assert opened.to_secret_bytes() == key.to_secret_bytes()
    secrets = [bytes(32), bytes(range(32))]
    card = CardKey.from_json(key.public.to_json()).card(secrets, b"about")
    assert opened.secrets_in(card, 2, b"about") == secrets


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(min_size=1))
def test_any_text_is_a_passphrase(kind, key, passphrase):
    """Whatever a keyboard can write opens what it sealed, composed or decomposed."""
    text = kind.seal(key, passphrase)
    assert kind.open(text, unicodedata.normalize("NFD", passphrase)).key_id == key.key_id


def test_no_two_seals_are_alike(kind, key, sealed):
    """The same key under the same passphrase is sealed with a fresh salt and a fresh nonce."""
    first, second = kind.file.parse(sealed), kind.file.parse(kind.seal(key, PASSPHRASE))
    assert first.kdf.salt != second.kdf.salt
    assert first.nonce != second.nonce
    assert first.ciphertext != second.ciphertext


def test_new_files_cost_what_rfc_9106_recommends(kind):
    """Unpatched, a guess costs three passes over 64 MiB in four lanes."""
    assert sealed_file.KdfCost(iterations=3, lanes=4, memory_kib=65536) == RECOMMENDED
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", RECOMMENDED)
        text = kind.seal(kind.key.generate(), PASSPHRASE)
    kdf = kind.file.parse(text).kdf
    assert (kdf.iterations, kdf.lanes, kdf.memory_kib) == (3, 4, 65536)
    assert len(base64.b64decode(kdf.salt)) == 16
    kind.open(text, PASSPHRASE)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_one_changed_byte_of_the_ciphertext_opens_nothing(kind, sealed, data):
    """No byte of what was sealed can be another one."""
    ciphertext = bytearray(base64.b64decode(json.loads(sealed)["ciphertext"]))
    ciphertext[data.draw(st.integers(0, len(ciphertext) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WrongPassphrase, match="or the file was changed"):
        kind.open(changed(sealed, ciphertext=base64.b64encode(ciphertext).decode()), PASSPHRASE)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_one_changed_character_of_the_file_opens_nothing(kind, sealed, data):
    """No character of the file can be another one, but white space between JSON tokens."""
    header = sealed.index('"ciphertext"') + 20
    where = data.draw(st.one_of(st.integers(0, header), st.integers(header, len(sealed) - 1)))
    character = data.draw(st.characters(codec="utf-8").filter(lambda c: c != sealed[where]))
    if sealed[where].isspace() and character in " \t\r\n":
        return
    with pytest.raises(KeyFileError):
        kind.open(sealed[:where] + character + sealed[where + 1 :], PASSPHRASE)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_truncated_file_opens_nothing(kind, sealed, data):
    """A file that ends early is refused wherever it ends."""
    with pytest.raises(KeyFileError):
        kind.open(sealed[: data.draw(st.integers(0, len(sealed) - 3))], PASSPHRASE)


@settings(max_examples=100, deadline=None)
@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_rubbish_is_refused(kind, text):
    """A file of anything else is no secret key."""
    with pytest.raises(KeyFileError, match=r"not a sealed secret key|without a quote"):
        kind.open(text, PASSPHRASE)


@pytest.mark.parametrize(
    "fields",
    [
        {"created": "1999-12-31T23:59:59Z"},
        {"epoch": 2},
        {"key_id": "0" * 64},
        {"nonce": base64.b64encode(bytes(12)).decode()},
    ],
    ids=str,
)
def test_a_header_with_another_value_opens_nothing(kind, sealed, fields):
    """Every field of the header is under the seal."""
    with pytest.raises(WrongPassphrase):
        kind.open(changed(sealed, **fields), PASSPHRASE)


def test_no_other_key_opens_as_a_key_of_cards(kind, sealed):
    """Neither the certificate authority's, nor an identity; also under its name."""
    key = Ed25519PrivateKey.generate()
    alice = Holder("alice", "client")
    for text in (seal_ca_key(key, PASSPHRASE), seal_identity_key(key, alice, PASSPHRASE)):
        with pytest.raises(
            KeyFileError, match=r"this is a .securefl-.* file where securefl-card-sec"
        ):
            kind.open(text, PASSPHRASE)
        ciphertext = json.loads(text)["ciphertext"]
        with pytest.raises(WrongPassphrase):
            kind.open(changed(sealed, ciphertext=ciphertext), PASSPHRASE)


def test_neither_role_opens_the_others():
    """The authority's key is no officer's, nor the other way round, even under its role."""
    for one, other in (("cards", "officer"), ("officer", "cards")):
        text = KINDS[one].seal(CardSecret.generate(), PASSPHRASE)
        with pytest.raises(KeyFileError, match="not a sealed secret key of"):
            KINDS[other].open(text, PASSPHRASE)
        role = "officer" if other == "officer" else "authority"
        with pytest.raises(WrongPassphrase):
            KINDS[other].open(changed(text, role=role), PASSPHRASE)


def test_headers_of_two_files_cannot_be_swapped(kind, sealed):
    """The ciphertext of one key does not open under the header of another, same passphrase."""
    other = json.loads(kind.seal(kind.key.generate(), PASSPHRASE))
    for field in other.keys() - {"format", "role", "codec", "cipher", "ciphertext"}:
        if other[field] != json.loads(sealed)[field]:
            with pytest.raises(WrongPassphrase):
                kind.open(changed(sealed, **{field: other[field]}), PASSPHRASE)
    with pytest.raises(WrongPassphrase):
        kind.open(changed(sealed, ciphertext=other["ciphertext"]), PASSPHRASE)


@pytest.mark.parametrize(
    "costs",
    [
        {"iterations": 17},
        {"iterations": 0},
        {"lanes": 17},
        {"lanes": 0},
        {"memory_kib": 1024 * 1024 + 1},
        {"memory_kib": 7},
        {"memory_kib": 10**30},
        {"memory_kib": "8"},
        {"memory_kib": 8.0},
        {"lanes": 16},
        {"salt": ""},
        {"salt": base64.b64encode(bytes(15)).decode()},
        {"name": "scrypt"},
        {"more": 1},
    ],
    ids=str,
)
def test_costs_out_of_bounds_are_refused_before_they_are_paid(kind, sealed, costs, monkeypatch):
    """A file cannot make its reader compute for hours or take all of its memory."""
    if costs != {"lanes": 16}:  # in bounds, but Argon2 itself wants 8 KiB a lane
        monkeypatch.setattr(sealed_file, "Argon2id", lambda **_: pytest.fail("Argon2id was run"))
    with pytest.raises(KeyFileError) as refusal:
        kind.open(changed_kdf(sealed, **costs), PASSPHRASE)
    assert type(refusal.value) is KeyFileError


def test_too_little_memory_is_an_error_with_a_way_out(kind, sealed, monkeypatch):
    """Where the memory that a file asks for is not free, one line says so."""

    def out_of_memory(**_):
        raise MemoryError

    monkeypatch.setattr(sealed_file, "Argon2id", out_of_memory)
    with pytest.raises(KeyFileError, match="larger machine"):
        kind.open(sealed, PASSPHRASE)


def test_another_form_of_what_is_inside_is_named(kind, sealed):
    """Without the passphrase."""
    with pytest.raises(KeyFileError, match=r"made by mlkem1024-raw"):
        kind.open(changed(sealed, codec="mlkem1024-raw"), PASSPHRASE)


@pytest.mark.parametrize("name", ["securefl-secret-key/2", "securefl-card-secret-key/2"])
def test_the_file_of_an_older_release_is_told_with_the_way_out(name):
    """Also under the name that keys of sums had before there were cards."""
    sealed = seal_secret(CardSecret.generate(), PASSPHRASE)
    with pytest.raises(KeyFileError, match=f"a {name} file, of another SecureFL.*make the keys"):
        open_secret(changed(sealed, format=name), PASSPHRASE)


def test_what_was_sealed_must_be_the_key_that_the_header_names(kind, key, monkeypatch):
    """Even with the passphrase, no one can put one key under the name of another."""
    monkeypatch.setattr(kind.key, "key_id", "0" * 64)
    forged = kind.seal(key, PASSPHRASE)
    monkeypatch.undo()
    with pytest.raises(KeyFileError, match="inside is CardSecret"):
        kind.open(forged, PASSPHRASE)


def test_what_was_sealed_must_be_a_key(kind, key, monkeypatch):
    """Rubbish under the right passphrase is refused, not a crash."""
    monkeypatch.setattr(kind.key, "to_secret_bytes", lambda _: b"rubbish")
    forged = kind.seal(key, PASSPHRASE)
    with pytest.raises(KeyFileError, match="what was sealed is no such secret key"):
        kind.open(forged, PASSPHRASE)


def test_another_passphrase_is_refused_in_one_line_that_holds_neither(kind, sealed):
    """The refusal says what happened and repeats no passphrase."""
    with pytest.raises(WrongPassphrase, match="the passphrase does not open") as refusal:
        kind.open(sealed, "Tr0ub4dor&3")
    assert "Tr0ub4dor" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("passphrase", ["", "\udcff"])
def test_a_passphrase_that_is_none_is_refused(kind, key, sealed, passphrase):
    """No key is sealed or opened with nothing, or with bytes that are no text."""
    with pytest.raises(ConfigError, match="passphrase"):
        kind.seal(key, passphrase)
    with pytest.raises(ConfigError, match="passphrase"):
        kind.open(sealed, passphrase)

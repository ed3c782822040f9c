"""A sealed secret key opens as it was written, under its passphrase, or not at all."""

from __future__ import annotations

import base64
import json
import unicodedata

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from securefl.crypto.secret import SecretKey
from securefl.errors import ConfigError, KeyFileError, WrongPassphrase
from securefl_keys import kdf, sealed_file
from securefl_keys.sealed_file import SealedKey, open_secret, seal_secret

PASSPHRASE = "correct horse battery staple"
RECOMMENDED = sealed_file.KDF_COST
CHEAP = sealed_file.KdfCost(iterations=1, lanes=1, memory_kib=8)


@pytest.fixture(scope="module", autouse=True)
def _cheap_guesses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", CHEAP)
        yield


@pytest.fixture(scope="module")
def key():
    return SecretKey.generate()


@pytest.fixture(scope="module")
def sealed(key):
    return seal_secret(key, PASSPHRASE)


def changed(sealed, **fields):
    return json.dumps(json.loads(sealed) | fields)


def changed_kdf(sealed, **fields):
    return changed(sealed, kdf=json.loads(sealed)["kdf"] | fields)


def test_a_sealed_key_reads_what_its_public_half_encrypts(key, sealed):
    """The key that comes out is the key that went in."""
    opened = open_secret(sealed, PASSPHRASE)
    assert opened.key_id == key.key_id
    assert opened.parameters == key.parameters
    slots = np.linspace(-1, 1, 2048)
    np.testing.assert_allclose(opened.decrypt(key.public_key.encrypt(slots)), slots, atol=1e-6)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(min_size=1))
def test_any_text_is_a_passphrase(key, passphrase):
    """Whatever a keyboard can write opens what it sealed, composed or decomposed."""
    text = seal_secret(key, passphrase)
    assert open_secret(text, unicodedata.normalize("NFD", passphrase)).key_id == key.key_id


def test_no_two_seals_are_alike(key, sealed):
    """The same key under the same passphrase is sealed with a fresh salt and a fresh nonce."""
    first, second = SealedKey.parse(sealed), SealedKey.parse(seal_secret(key, PASSPHRASE))
    assert first.kdf.salt != second.kdf.salt
    assert first.nonce != second.nonce
    assert first.ciphertext != second.ciphertext


def test_new_files_cost_what_rfc_9106_recommends():
    """Unpatched, a guess costs three passes over 64 MiB in four lanes."""
    assert sealed_file.KdfCost(iterations=3, lanes=4, memory_kib=65536) == RECOMMENDED
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", RECOMMENDED)
        text = seal_secret(SecretKey.generate(), PASSPHRASE)
    kdf = SealedKey.parse(text).kdf
    assert (kdf.iterations, kdf.lanes, kdf.memory_kib) == (3, 4, 65536)
    assert len(base64.b64decode(kdf.salt)) == 16
    open_secret(text, PASSPHRASE)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_one_changed_byte_of_the_ciphertext_opens_nothing(sealed, data):
    """No byte of what was sealed can be another one."""
    ciphertext = bytearray(base64.b64decode(json.loads(sealed)["ciphertext"]))
    ciphertext[data.draw(st.integers(0, len(ciphertext) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WrongPassphrase, match="or the file was changed"):
        open_secret(changed(sealed, ciphertext=base64.b64encode(ciphertext).decode()), PASSPHRASE)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_one_changed_character_of_the_file_opens_nothing(sealed, data):
    """No character of the file can be another one, but white space between JSON tokens."""
    header = sealed.index('"ciphertext"') + 20
    where = data.draw(st.one_of(st.integers(0, header), st.integers(header, len(sealed) - 1)))
    character = data.draw(st.characters(codec="utf-8").filter(lambda c: c != sealed[where]))
    if sealed[where].isspace() and character in " \t\r\n":
        return
    with pytest.raises(KeyFileError):
        open_secret(sealed[:where] + character + sealed[where + 1 :], PASSPHRASE)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_truncated_file_opens_nothing(sealed, data):
    """A file that ends early is refused wherever it ends."""
    with pytest.raises(KeyFileError):
        open_secret(sealed[: data.draw(st.integers(0, len(sealed) - 3))], PASSPHRASE)


@settings(max_examples=100, deadline=None)
@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_rubbish_is_refused(text):
    """A file of anything else is no secret key."""
    with pytest.raises(KeyFileError, match="not a sealed secret key"):
        open_secret(text, PASSPHRASE)


@pytest.mark.parametrize(
    "fields",
    [
        {"created": "1999-12-31T23:59:59Z"},
        {"key_id": "0" * 64},
        {"poly_degree": 8192},
        {"modulus_bits": [49, 60]},
        {"scale_bits": 44},
        {"nonce": base64.b64encode(bytes(12)).decode()},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_header_with_another_value_opens_nothing(sealed, fields):
    """Every field of the header is under the seal."""
    with pytest.raises(WrongPassphrase):
        open_secret(changed(sealed, **fields), PASSPHRASE)


def test_headers_of_two_files_cannot_be_swapped(sealed):
    """The ciphertext of one key does not open under the header of another, same passphrase."""
    other = json.loads(seal_secret(SecretKey.generate(), PASSPHRASE))
    for field in other.keys() - {"format", "role", "codec", "cipher", "ciphertext"}:
        if other[field] != json.loads(sealed)[field]:
            with pytest.raises(WrongPassphrase):
                open_secret(changed(sealed, **{field: other[field]}), PASSPHRASE)
    with pytest.raises(WrongPassphrase):
        open_secret(changed(sealed, ciphertext=other["ciphertext"]), PASSPHRASE)


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
def test_costs_out_of_bounds_are_refused_before_they_are_paid(sealed, costs, monkeypatch):
    """A file cannot make its reader compute for hours or take all of its memory."""
    if costs != {"lanes": 16}:  # in bounds, but Argon2 itself wants 8 KiB a lane
        monkeypatch.setattr(kdf, "Argon2id", lambda **_: pytest.fail("Argon2id was run"))
    with pytest.raises(KeyFileError) as refusal:
        open_secret(changed_kdf(sealed, **costs), PASSPHRASE)
    assert type(refusal.value) is KeyFileError


def test_too_little_memory_is_an_error_with_a_way_out(sealed, monkeypatch):
    """Where the memory that a file asks for is not free, one line says so."""

    def out_of_memory(**_):
        raise MemoryError

    monkeypatch.setattr(kdf, "Argon2id", out_of_memory)
    with pytest.raises(KeyFileError, match="larger machine"):
        open_secret(sealed, PASSPHRASE)


def test_another_tenseal_is_named(sealed):
    """A key of another TenSEAL release is refused by that name, without the passphrase."""
    with pytest.raises(KeyFileError, match=r"made by tenseal-0\.3\.16"):
        open_secret(changed(sealed, codec="tenseal-0.3.16"), PASSPHRASE)


def test_parameters_below_the_security_level_are_refused(sealed):
    """A header cannot ask for a modulus that its ring does not carry."""
    with pytest.raises(KeyFileError, match="128-bit"):
        open_secret(changed(sealed, poly_degree=2048), PASSPHRASE)


def test_what_was_sealed_must_be_the_key_that_the_header_names(key, monkeypatch):
    """Even with the passphrase, no one can put one key under the name of another."""
    monkeypatch.setattr(SecretKey, "key_id", "0" * 64)
    forged = seal_secret(key, PASSPHRASE)
    monkeypatch.undo()
    with pytest.raises(KeyFileError, match="inside is SecretKey"):
        open_secret(forged, PASSPHRASE)


def test_what_was_sealed_must_be_a_key(key, monkeypatch):
    """Rubbish under the right passphrase is refused, not a crash."""
    monkeypatch.setattr(SecretKey, "to_secret_bytes", lambda _: b"rubbish")
    forged = seal_secret(key, PASSPHRASE)
    with pytest.raises(KeyFileError, match="no CKKS secret key"):
        open_secret(forged, PASSPHRASE)


def test_another_passphrase_is_refused_in_one_line_that_holds_neither(sealed):
    """The refusal says what happened and repeats no passphrase."""
    with pytest.raises(WrongPassphrase, match="the passphrase does not open") as refusal:
        open_secret(sealed, "Tr0ub4dor&3")
    assert "Tr0ub4dor" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("passphrase", ["", "\udcff"])
def test_a_passphrase_that_is_none_is_refused(key, sealed, passphrase):
    """No key is sealed or opened with nothing, or with bytes that are no text."""
    with pytest.raises(ConfigError, match="passphrase"):
        seal_secret(key, passphrase)
    with pytest.raises(ConfigError, match="passphrase"):
        open_secret(sealed, passphrase)

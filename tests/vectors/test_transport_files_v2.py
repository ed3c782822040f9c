"""Requests and certificates of two blocks, made once by `transport_v2.py`, are still read."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from transport_v2 import MEMBERS, PASSPHRASE

from securefl.errors import CertificateExpired
from securefl_keys.certificate_form import Holder, key_id_of
from securefl_keys.certificates import CertificateFile, transport_key
from securefl_keys.identity import open_identity_key
from securefl_keys.request import read_request
from securefl_keys.roster import load_roster

FILES = Path(__file__).parent / "v2/transport"
THEN = datetime(2026, 12, 1, tzinfo=UTC)
ORDER = ec.SECP256R1().group_order
FINGERPRINTS = {
    "alice": "6a29da862cb895e8f0ad2c8edb5dde37708e53fc1bcb76a6d4370559c40d1821",
    "hub": "2af94edbeb6902ab51b72de9bb44b779327003c51d5070e472dd0995e006fe13",
}
X = {
    "authority": 0xE655F6DFF0B7F240D774F925887EF2FD3210609B29F08CC1F7B4294F46CA2163,
    "alice": 0x7FC1E2494B87159796AE117A7247526CCC835ECCCF2D9F21EEB001750619558D,
    "hub": 0x9AC195094F7EFEC9F112D976DAF819D14C1D5EC922581D528C3DD2FFC76579B5,
}
"""First coordinate of each transport key."""
DERIVED = {
    bytes(range(32)): (
        0x71CD2E559BF04454DF927B20649D0924865AE37A22EF3F772C9F25CD84236474,
        0x6F1732B05D55D2905F0492EC3068E0CEF43384A606C19B8C2F2055BF54BA675D,
    ),
    bytes(32): (
        0x4BD67C12113F1AD36D716A76F8E8A7930690E6AB4CBA9820FDDB5839DE594DA0,
        0x56474EFD9AAAD3EFB53057BC13866A6D700C307810562976AD2B3E5B6ACC7085,
    ),
    b"\xff" * 32: (
        0xC914FD6FE9C67B261573601FB36A98F2CD3711C6071729D2CAA8F20AD37CDD22,
        0x072C3F36A50E02FFE3093E0495BD80142CD78FB5F730B4466B51CA21EB869418,
    ),
}
"""By the raw identity key: the transport key, and its public key's first coordinate."""


def by_hand(raw):
    """HKDF (RFC 5869) with the standard library's HMAC, then FIPS 186-5, A.2.1."""
    info = b"SecureFL transport key 1"
    secret = hmac.digest(bytes(32), raw, "sha256")
    first = hmac.digest(secret, info + b"\x01", "sha256")
    second = hmac.digest(secret, first + info + b"\x02", "sha256")
    return int.from_bytes((first + second)[:48], "big") % (ORDER - 1) + 1


@pytest.mark.parametrize("raw", DERIVED, ids=lambda raw: raw[:4].hex())
def test_the_same_identity_derives_the_same_key(raw):
    """In every release; also by hand."""
    key = transport_key(Ed25519PrivateKey.from_private_bytes(raw))
    secret, x = DERIVED[raw]
    assert key.private_numbers().private_value == by_hand(raw) == secret
    assert (key.public_key().public_numbers().x, key.curve.name) == (x, "secp256r1")


def identity_of(name):
    passphrase = PASSPHRASE if name == "authority" else f"of {name}"
    return open_identity_key((FILES / name / "identity.key").read_text(), passphrase)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_frozen_requests_are_read(name):
    """Of both keys; the fingerprint is of both, and by hand the same."""
    owner, key = identity_of(name)
    request = read_request((FILES / name / "identity.csr").read_text())
    assert owner == Holder(name, MEMBERS[name]) == Holder(request.name, request.role)
    assert request.public_key == key.public_key()
    assert request.transport_key == transport_key(key).public_key()
    both = b"".join(
        k.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for k in (request.public_key, request.transport_key)
    )
    assert request.fingerprint == FINGERPRINTS[name] == hashlib.sha256(both).hexdigest()


@pytest.mark.parametrize("name", X)
def test_the_frozen_certificate_files_are_read_and_written_the_same(name):
    """Both certificates are of the sealed key, have the same dates, and the roster knows them."""
    owner, key = identity_of(name)
    text = (FILES / name / "identity.crt").read_text()
    file = CertificateFile.parse(text)
    assert file.text == text
    assert file.transport.public_key() == transport_key(key).public_key()
    assert file.transport.public_key().public_numbers().x == X[name]
    for date in ("not_valid_before_utc", "not_valid_after_utc"):
        assert getattr(file.identity, date) == getattr(file.transport, date)
    roster = load_roster(FILES, at=THEN)
    assert roster.holder_of(file.identity, owner.role).name == name
    found = roster.transport_holder_of(file.transport, owner.role)
    assert (found.name, found.identity) == (name, key_id_of(key.public_key()))


@pytest.mark.parametrize("name", MEMBERS)
def test_a_frozen_transport_certificate_expires(name):
    """With the identity, thirteen months later."""
    roster = load_roster(FILES, at=datetime(2028, 3, 1, tzinfo=UTC))
    file = CertificateFile.parse((FILES / name / "identity.crt").read_text())
    with pytest.raises(CertificateExpired, match=f"{name}'s certificate for TLS is valid from"):
        roster.transport_holder_of(file.transport, MEMBERS[name])

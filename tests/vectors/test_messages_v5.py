"""A message of version 5 is received and written as it was; older ones are refused as such."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.errors import MessageRefused
from securefl.exchange.sums import Sealed
from securefl.federation.message import Expected, Roster, encode_message, header_for, split_message

FILES = Path(__file__).parent
FROZEN = FILES / "v5/message.bin"


def test_the_frozen_message_is_received_and_written_as_it_was():
    """Ed25519 signs the same bytes alike, so a message has one form, to the byte."""
    frozen, sealed = FROZEN.read_bytes(), Sealed(b"0123456789", "01" * 16)
    identity = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    about = "ab" * 32, 3, "1/mean", "one-time/digits/1", "cd" * 32, 2, 8, "ef" * 32, "9a" * 32
    expected = Expected(*about)
    signed, received = split_message(frozen, 10)
    Roster({"client-1": identity.public_key()}).check(signed, expected)
    assert (received, signed.header.nonce) == sealed
    assert encode_message(header_for(expected, "client-1", sealed), received, identity) == frozen


def test_the_signature_is_over_the_prefix_and_the_header():
    """No other signature of an identity key begins like this one."""
    signed, _ = split_message(FROZEN.read_bytes(), 10)
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key()
    key.verify(signed.signature, b"SecureFL message 5\0" + signed.signed)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_older_message_is_refused_by_its_version(version):
    """It names no nonce, or no model, by which totals are held against each other."""
    with pytest.raises(MessageRefused, match=f"version {version}, where version 5 is read"):
        split_message((FILES / f"v{version}/message.bin").read_bytes(), 10)

"""A message of version 3 is received and written as it was."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl.federation.message import Expected, Roster, encode_message, header_for, split_message

FROZEN = Path(__file__).parent / "v3" / "message.bin"


def test_the_frozen_message_is_received_and_written_as_it_was():
    """Ed25519 signs the same bytes alike, so a message has one form, to the byte."""
    frozen, payload = FROZEN.read_bytes(), b"0123456789"
    identity = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    about = "ab" * 32, 3, "1/mean", "ckks/tenseal-0.3.18", "cd" * 32, 2, 8, "ef" * 32
    expected = Expected(*about)
    signed, received = split_message(frozen, 10)
    Roster({"client-1": identity.public_key()}).check(signed, expected)
    assert received == payload
    assert encode_message(header_for(expected, "client-1", payload), payload, identity) == frozen


def test_the_signature_is_over_the_prefix_and_the_header():
    """No other signature of an identity key begins like this one."""
    signed, _ = split_message(FROZEN.read_bytes(), 10)
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key()
    key.verify(signed.signature, b"SecureFL message 3\0" + signed.signed)

"""The message format: what is encoded comes back, and nothing else passes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from securefl.errors import (
    KeyMismatch,
    MessageRefused,
    OtherModel,
    Relabelled,
    Replayed,
    SignatureRefused,
)
from securefl.exchange.sums import ONE_TIME, Sealed
from securefl.federation.message import (
    MAGIC,
    MAX_HEADER_BYTES,
    SIGNATURE_BYTES,
    Expected,
    Header,
    Roster,
    encode_message,
    header_for,
    n_message_bytes,
    signature_over,
    split_message,
)

MAX_PAYLOAD_BYTES = 300
IDENTITY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
ROSTER = Roster({"client-1": IDENTITY.public_key(), "client-2": OTHER.public_key()})
EXPECTED = Expected("ab" * 32, 3, "1/mean", "plain/float32", "cd" * 32, 2, 8)
UNDER_A_KEY = replace(EXPECTED, form=ONE_TIME)

REFUSALS = {
    "run": Replayed,
    "round": Replayed,
    "name": Relabelled,
    "form": Relabelled,
    "n_values": Relabelled,
    "state": OtherModel,
    "key_id": KeyMismatch,
    "epoch": KeyMismatch,
}

hex32 = st.binary(min_size=32, max_size=32).map(bytes.hex)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
payloads = st.binary(max_size=MAX_PAYLOAD_BYTES)
expectations = st.builds(
    Expected,
    run=hex32,
    round=st.integers(0, 2**31 - 1),
    name=texts,
    form=texts | st.just(ONE_TIME),
    key_id=hex32 | st.just(""),
    epoch=st.integers(0, 2**31 - 1),
    n_values=st.integers(1, 2**40 - 1),
    state=hex32 | st.just(""),
)


def sealed_as(expected, payload, nonce="0f" * 16):
    """A payload as it would be sealed: with a nonce where its form has one."""
    return Sealed(payload, nonce[: expected.nonce_digits])


def message_of(payload=b"0123456789", expected=EXPECTED, sender="client-1", identity=IDENTITY):
    header = header_for(expected, sender, sealed_as(expected, payload))
    return encode_message(header, payload, identity)


def received(message, expected=EXPECTED, roster=ROSTER, max_payload_bytes=MAX_PAYLOAD_BYTES):
    """What a server does with bytes before it looks at their payload."""
    signed, payload = split_message(message, max_payload_bytes)
    roster.check(signed, expected)
    return signed, payload


@settings(deadline=None)
@given(expected=expectations, sender=texts, payload=payloads)
@example(replace(EXPECTED, name="п" * 100), 'é"\\\n\x00', b"")
@example(UNDER_A_KEY, "client-1", b"01")
def test_what_is_encoded_comes_back(expected, sender, payload):
    """Header and payload of every message survive the trip, and the roster accepts them."""
    roster = Roster({sender: IDENTITY.public_key()})
    message = message_of(payload, expected, sender)
    signed, received_payload = received(message, expected, roster)
    assert received_payload == payload
    header = signed.header
    assert header == header_for(expected, sender, sealed_as(expected, payload))
    assert (header.sender, header.payload_bytes) == (sender, len(payload))
    assert header.payload_sha256 == hashlib.sha256(payload).hexdigest()
    said = {field.name: getattr(header, field.name) for field in fields(Expected)}
    assert Expected(**said) == expected


@settings(deadline=None)
@given(expected=expectations, sender=texts, payload=payloads)
@example(UNDER_A_KEY, "client-1", b"01")
def test_a_messages_length_is_known_before_there_is_one(expected, sender, payload):
    """To the byte, nonce included."""
    message = message_of(payload, expected, sender)
    assert len(message) == n_message_bytes(expected, sender, len(payload))


@settings(deadline=None)
@given(nonce=st.binary(max_size=20).map(bytes.hex) | st.text(max_size=40))
@example("0f" * 16)
@example("0F" * 16)
def test_a_nonce_has_its_length_or_the_message_is_refused(nonce):
    """Under a one-time key it is 16 bytes in hex, elsewhere there is none."""
    for expected in (EXPECTED, UNDER_A_KEY):
        sealed = sealed_as(expected, b"01")
        good = json.loads(header_for(expected, "client-1", sealed).model_dump_json())
        text = json.dumps(good | {"nonce": nonce}).encode()
        signed = MAGIC + len(text).to_bytes(2, "little") + text + signature_over(text, IDENTITY)
        fits = len(nonce) == expected.nonce_digits and set(nonce) <= set("0123456789abcdef")
        if fits:
            assert received(signed + b"01", expected)[0].header.nonce == nonce
            continue
        with pytest.raises(MessageRefused):
            received(signed + b"01", expected)


@settings(deadline=None)
@given(
    payload=payloads,
    data=st.data(),
    value=st.integers(1, 255),
    expected=st.sampled_from([EXPECTED, UNDER_A_KEY]),
)
def test_any_changed_byte_is_refused(payload, data, value, expected):
    """No single byte of a message can change without `split` or the roster refusing it."""
    message = bytearray(message_of(payload, expected))
    position = data.draw(st.integers(0, len(message) - 1))
    message[position] ^= value
    with pytest.raises(MessageRefused):
        received(bytes(message), expected)


def test_every_changed_byte_of_one_message_is_refused():
    """Forty other values for each byte of a short message."""
    message = message_of(b"01")
    for position in range(len(message)):
        for value in (*range(1, 256, 7), 32, 128, 255):
            changed = bytearray(message)
            changed[position] ^= value
            with pytest.raises(MessageRefused):
                received(bytes(changed))


@settings(deadline=None)
@given(payload=payloads, data=st.data())
def test_any_missing_or_added_bytes_are_refused(payload, data):
    """Bytes left out or put in, anywhere, are noticed."""
    message = message_of(payload)
    start = data.draw(st.integers(0, len(message)))
    end = data.draw(st.integers(start, min(len(message), start + 40)))
    filling = data.draw(st.binary(max_size=40))
    changed = message[:start] + filling + message[end:]
    assume(changed != message)
    with pytest.raises(MessageRefused):
        received(changed)


@settings(deadline=None, max_examples=500)
@given(data=st.binary(max_size=3000), max_payload_bytes=st.integers(0, 4000))
@example(b"", 0)
@example(MAGIC, 0)
@example(MAGIC + b"\x02\x00{}" + bytes(64), 0)
@example(MAGIC + b"\xff\xff" + b"[" * 2900, 4000)
@example(MAGIC + b"\x00\x08" + b"[" * 2048 + bytes(64), 4000)
@example(MAGIC + b"\x00\x08" + b'{"a":' * 409 + b"1}}" + bytes(64), 4000)
def test_arbitrary_bytes_raise_nothing_else(data, max_payload_bytes):
    """Bytes that no client made get MessageRefused, with and without the format's first bytes."""
    for message in (data, MAGIC + data, MAGIC + b"\x80\x00" + data):
        with pytest.raises(MessageRefused):
            split_message(message, max_payload_bytes)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70) | hex32,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@settings(deadline=None, max_examples=300)
@given(field=st.sampled_from(list(Header.model_fields)), value=json_values)
def test_a_well_signed_header_of_other_values_is_refused(field, value):
    """Whatever JSON value a client signs for a field, it is the expected one or refused."""
    good = json.loads(header_for(EXPECTED, "client-1", Sealed(b"")).model_dump_json())
    text = json.dumps(good | {field: value}).encode()[:MAX_HEADER_BYTES]
    message = MAGIC + len(text).to_bytes(2, "little") + text + signature_over(text, IDENTITY)
    same_type = type(value) is type(good[field]) or field == "version"  # true is 1 too
    if same_type and value == good[field]:
        received(message)
    else:
        with pytest.raises(MessageRefused):
            received(message)


@settings(deadline=None)
@given(n_bytes=st.integers(0, 6000), limit=st.integers(0, 4000))
@example(3000, 100)
def test_no_message_above_the_limit_gets_through(n_bytes, limit):
    """What `split` lets through is no longer than any header and the largest payload together."""
    payload = bytes(n_bytes)
    message = message_of(payload)
    try:
        _, through = split_message(message, limit)
    except MessageRefused:
        assert len(payload) > limit
    else:
        assert through == payload
        assert len(message) <= 6 + MAX_HEADER_BYTES + SIGNATURE_BYTES + limit


def test_no_header_above_the_limit_gets_through():
    """A signed header one byte longer than allowed is refused, one just as long is not."""
    text = header_for(EXPECTED, "client-1", Sealed(b"")).model_dump_json().encode()
    for length, passes in ((MAX_HEADER_BYTES, True), (MAX_HEADER_BYTES + 1, False)):
        padded = text.ljust(length)
        prefix = MAGIC + length.to_bytes(2, "little")
        message = prefix + padded + signature_over(padded, IDENTITY)
        if passes:
            received(message)
        else:
            with pytest.raises(MessageRefused, match="truncated"):
                received(message)


def test_a_field_that_is_there_twice_is_refused():
    """Signed well: readers may take one or the other."""
    text = header_for(EXPECTED, "client-1", Sealed(b"")).model_dump_json()
    twice = text.replace('"round":3', '"round":4,"round":3').encode()
    message = MAGIC + len(twice).to_bytes(2, "little") + twice + signature_over(twice, IDENTITY)
    with pytest.raises(MessageRefused, match="a field is there twice"):
        received(message)


def test_what_was_verified_once_counts_for_its_own_key_and_bytes_alone():
    """A signature is verified once a process; another key, header or signature is another one."""
    signed, _ = received(message_of())
    others = Roster({"client-1": OTHER.public_key()})
    turned = replace(signed, signature=signed.signature[:-1] + bytes([signed.signature[-1] ^ 1]))
    longer = replace(signed, signed=signed.signed + b" ")
    for header, roster in ((signed, others), (turned, ROSTER), (longer, ROSTER)):
        for _ in range(2):
            with pytest.raises(SignatureRefused):
                roster.check(header, EXPECTED)


def test_a_cut_signature_is_no_signature():
    """Without a payload behind it too, a signature must be whole before it is looked at."""
    message = message_of(b"")
    for length in range(len(message)):
        with pytest.raises(MessageRefused):
            split_message(message[:length], MAX_PAYLOAD_BYTES)


@settings(deadline=None)
@given(other=expectations, data=st.data())
def test_only_the_expected_message_passes(other, data):
    """A signed message that differs from the expected one in any field is refused for it."""
    field = data.draw(st.sampled_from(list(REFUSALS)))
    changed = replace(EXPECTED, **{field: getattr(other, field)})
    assume(changed != EXPECTED)
    for message, expected in ((message_of(expected=changed), EXPECTED), (message_of(), changed)):
        with pytest.raises(MessageRefused) as caught:
            received(message, expected)
        assert caught.type is REFUSALS[field]


@settings(deadline=None)
@given(sender=texts, seed=st.binary(min_size=32, max_size=32))
def test_only_the_named_client_signs(sender, seed):
    """Another identity's signature is refused, under a client's name and under any other."""
    stranger = Ed25519PrivateKey.from_private_bytes(seed)
    assume(stranger.private_bytes_raw() != IDENTITY.private_bytes_raw())
    for name, identity in ((sender, IDENTITY), ("client-1", stranger), ("client-2", IDENTITY)):
        assume(name != "client-1" or identity is stranger)
        with pytest.raises(SignatureRefused):
            received(message_of(sender=name, identity=identity))


def test_the_signature_is_looked_at_before_the_label():
    """An unsigned message learns nothing of what the server expects."""
    message = message_of(expected=replace(EXPECTED, key_id="00" * 32, round=9), identity=OTHER)
    with pytest.raises(SignatureRefused):
        received(message)

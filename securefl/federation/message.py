"""The message format, version 5, and the checks that come before any parser.

    "SFL" 0x05 | header length, 2 bytes | header, JSON | Ed25519 signature, 64 bytes | payload

The header names run, round, message, sender, key, epoch, sizes, the digest of all that its sender
was sent in the round (`Expected.under`), the digest of the model that the round began with, the
nonce of a one-time key and the payload's SHA-256. The signature is over the header behind a prefix
that no other signature of an identity key has. So the server can give the authority a list of
signed headers, without payloads.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from securefl.errors import (
    KeyMismatch,
    MessageRefused,
    OtherModel,
    Relabelled,
    Replayed,
    SenderExpired,
    SenderRevoked,
    SignatureRefused,
    UnknownSender,
)
from securefl.exchange.sums import (
    NONCE_BYTES,
    ONE_TIME,
    ONE_TIME_PROFILE,
    Channel,
    Keyed,
    MessageId,
    Sealed,
)
from securefl.exchange.whole import PART_BITS
from securefl.io.json import require_plain
from securefl.types import Kind, MessageSpec, Weighing

if TYPE_CHECKING:
    from securefl.federation.total import Terms


VERSION = 5
MAGIC = b"SFL" + bytes([VERSION])
SIGNED_AS = b"SecureFL message 5\0"
"""Prefix of all that is signed as a message; no certificate, request or handshake has it."""
MAX_HEADER_BYTES = 2048
SIGNATURE_BYTES = 64
NUMBER, NUMBER_FORM = struct.Struct("<d"), "number/float64"
SCORE_VALUE, SCORE_LOSS = SCORES = "score/value", "score/loss"
"""Names of a client's score by the run's metric and by its loss, where it has a model or test data
of its own and the server reads each client's."""
SCORE_MEAN = "score/mean"
"""Name of the sum of both, and of what the metric's value over all clients follows from."""
SCORING = frozenset({*SCORES, SCORE_MEAN})
"""Names of all messages after a round, by which its model is scored."""
CARD, CARD_FORM = "card", "cards/hpke/1"
_LENGTH = struct.Struct("<H")
_PREFIX_BYTES = len(MAGIC) + _LENGTH.size

_REFUSALS = {
    "run": Replayed,
    "round": Replayed,
    "name": Relabelled,
    "form": Relabelled,
    "n_values": Relabelled,
    "state": OtherModel,
    "model": OtherModel,
}
_WHY_NOT: dict[type[SignatureRefused], str] = {
    UnknownSender: "is no client of this run",
    SenderExpired: "has a certificate that is not valid at this time",
    SenderRevoked: "had a certificate that was revoked",
}

Buffer = TypeVar("Buffer", bytes, memoryview)
Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def scores_sum(n_sums: int) -> MessageSpec:
    """Return the message `SCORE_MEAN` of a metric of so many sums.

    It has a client's value, or 0 where it has none; its loss; 1 or 0, whether it has a value; and
    the sums in parts (`exchange.whole`).
    """
    number = torch.zeros((), dtype=torch.float64)
    sums = torch.zeros(len(PART_BITS) * n_sums, dtype=torch.float64)
    like = {"value": number, "loss": number, "scored": number, "sums": sums}
    return MessageSpec(SCORE_MEAN, Kind.SCORES, 3 + len(sums), Weighing.EQUAL, like=like)


class Header(BaseModel):
    """Header of a message, untrusted until the signature over it is verified."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[5] = 5
    run: Hex32
    round: Annotated[int, Field(ge=0, lt=2**31)]
    name: Annotated[str, Field(max_length=500)]
    sender: Annotated[str, Field(max_length=100)]
    form: Annotated[str, Field(max_length=100)]
    key_id: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    epoch: Annotated[int, Field(ge=0, lt=2**31)]
    n_values: Annotated[int, Field(ge=1, lt=2**40)]
    state: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    model: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    nonce: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]
    payload_bytes: Annotated[int, Field(ge=0, lt=2**40)]
    payload_sha256: Hex32


@dataclass(frozen=True, slots=True)
class SignedHeader:
    """Header with the exact bytes that its sender signed, and the signature."""

    header: Header
    signed: bytes
    signature: bytes


def headers_bytes(headers: Iterable[SignedHeader]) -> bytes:
    """Return headers and signatures, one after the other, as the authority gets them."""
    return b"".join(header.signed + header.signature for header in headers)


@dataclass(frozen=True, slots=True)
class Expected:
    """Header fields that a receiver knows before a message arrives."""

    run: str
    round: int
    name: str
    form: str
    key_id: str
    epoch: int
    n_values: int
    state: str = ""
    """Digest of what all clients were sent; empty for numbers, which are not summed.
    A client's header has it with the client's own terms (`under`)."""
    model: str = ""
    """Digest of the global state that the round began with, alone: the same in all rounds and
    sessions at this model. Empty where `state` is, and in profiles, whose `state` has it."""

    @classmethod
    def over(
        cls,
        channel: Channel,
        about: tuple[str, int],
        name: str,
        n_values: int,
        state: str = "",
        model: str = "",
    ) -> Expected:
        """Return the fields of a message over this channel, `about` a run and its round."""
        (run, number), form, key_id = about, channel.form, channel.key_id
        return cls(run, number, name, form, key_id, channel.epoch, n_values, state, model)

    @property
    def about(self) -> MessageId:
        """Name of the message, which one-time keys follow from."""
        return MessageId(self.run, self.round, self.name, self.n_values)

    @property
    def nonce_digits(self) -> int:
        """Length of the header's nonce, in hex digits."""
        return 2 * NONCE_BYTES if self.form in {ONE_TIME, ONE_TIME_PROFILE} else 0

    def under(self, terms: Terms) -> Expected:
        """Return the fields of a client's header that takes part on these terms."""
        return replace(self, state=terms.bind(self.state))


class Roster:
    """Clients of a run and their public identity keys."""

    def __init__(
        self,
        keys: Mapping[str, Ed25519PublicKey],
        *,
        expired: Collection[str] = (),
        revoked: Collection[str] = (),
    ) -> None:
        """Take the keys by name; `expired` and `revoked` are names whose keys no longer count."""
        self._keys = dict(keys)
        self._gone = dict.fromkeys(expired, SenderExpired) | dict.fromkeys(revoked, SenderRevoked)

    @property
    def names(self) -> frozenset[str]:
        """Names of the clients that may take part."""
        return frozenset(self._keys)

    def key_of(self, sender: str) -> Ed25519PublicKey:
        """Return a client's key.

        Raises:
            UnknownSender, SenderExpired, SenderRevoked: the client has none.
        """
        key = self._keys.get(sender)
        if key is None:
            gone = self._gone.get(sender, UnknownSender)
            raise gone(f"{sender!r} {_WHY_NOT[gone]}")
        return key

    def check(self, message: SignedHeader, expected: Expected) -> None:
        """Raise unless a client of the roster has signed this header and its fields are expected.

        Raises:
            UnknownSender, SenderExpired, SenderRevoked: its sender may not take part.
            SignatureRefused: the signature is not its sender's.
            KeyMismatch: it names another key, or one of another epoch.
            Replayed: it is of another run or round.
            Relabelled: it is of another name, encoding or size.
            OtherModel: its sender was sent another model, or other terms.
        """
        header = message.header
        try:
            key = self.key_of(header.sender).public_bytes_raw()
            _verify(key, message.signature, message.signed)
        except InvalidSignature:
            raise SignatureRefused(f"not signed by {header.sender!r}") from None
        if (header.key_id, header.epoch) != (expected.key_id, expected.epoch):
            raise KeyMismatch(
                f"{header.sender}: sealed under key {header.key_id[:16] or 'none'} of epoch "
                f"{header.epoch}, this run's key is {expected.key_id[:16] or 'none'} of epoch "
                f"{expected.epoch}"
            )
        for field, error in _REFUSALS.items():
            said, wanted = getattr(header, field), getattr(expected, field)
            if said != wanted:
                raise error(
                    f"{header.sender}: message of {field} {said!r:.80}, expected {wanted!r:.80}"
                )
        if len(header.nonce) != expected.nonce_digits:
            raise Relabelled(
                f"{header.sender}: nonce of {len(header.nonce)} digits, expected "
                f"{expected.nonce_digits}"
            )


@lru_cache(maxsize=2**10)
def _verify(key: bytes, signature: bytes, signed: bytes) -> None:
    """Verify a signature, once a process: in a simulation server and authority are one.

    The answer follows from key, signature and bytes alone, and what fails is not kept.
    """
    Ed25519PublicKey.from_public_bytes(key).verify(signature, SIGNED_AS + signed)


def number_expected(run: str, round_number: int, name: str) -> Expected:
    """Return the expected fields of a message with one number in the clear."""
    return Expected(run, round_number, name, NUMBER_FORM, key_id="", epoch=0, n_values=1)


def card_expected(run: str, keys: Keyed) -> Expected:
    """Return the expected fields of a client's cards in a session, which come once."""
    return Expected(run, 0, CARD, CARD_FORM, keys.key_id, keys.epoch, n_values=1)


def encode_message(header: Header, payload: bytes, identity: Ed25519PrivateKey) -> bytes:
    """Return the whole message, signed; `header` must be of `payload` (see `header_for`)."""
    text = header.model_dump_json().encode()
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"header of {len(text)} bytes, at most {MAX_HEADER_BYTES} fit")
    return MAGIC + _LENGTH.pack(len(text)) + text + signature_over(text, identity) + payload


def signature_over(header: bytes, identity: Ed25519PrivateKey) -> bytes:
    """Return a client's signature over a header, 64 bytes."""
    return identity.sign(SIGNED_AS + header)


def header_for(expected: Expected, sender: str, sealed: Sealed) -> Header:
    """Return the header of a message with this payload."""
    payload, nonce = sealed
    return Header(
        run=expected.run,
        round=expected.round,
        name=expected.name,
        sender=sender,
        form=expected.form,
        key_id=expected.key_id,
        epoch=expected.epoch,
        n_values=expected.n_values,
        state=expected.state,
        model=expected.model,
        nonce=nonce,
        payload_bytes=len(payload),
        payload_sha256=hashlib.sha256(payload).hexdigest(),
    )


def n_message_bytes(expected: Expected, sender: str, payload_bytes: int) -> int:
    """Return the exact length in bytes of a client's message; the payload need not exist."""
    return _anonymous_bytes(expected, payload_bytes) + _json_bytes(sender) - _json_bytes("")


@lru_cache(maxsize=2**16)
def _json_bytes(text: str) -> int:
    return len(to_json(text))


@lru_cache(maxsize=256)  # the same of all clients
def _anonymous_bytes(expected: Expected, payload_bytes: int) -> int:
    empty = Sealed(b"", "0" * expected.nonce_digits)
    header = header_for(expected, "", empty).model_copy(update={"payload_bytes": payload_bytes})
    text = header.model_dump_json().encode()
    return _PREFIX_BYTES + len(text) + SIGNATURE_BYTES + payload_bytes


def split_message(message: Buffer, max_payload_bytes: int) -> tuple[SignedHeader, Buffer]:
    """Return header and payload of untrusted bytes; the payload's length and hash are checked.

    Of a memoryview, the payload is no copy.

    Raises:
        MessageRefused: the bytes are not of this format, truncated, oversized, or changed on the
            way.
    """
    if len(message) > _PREFIX_BYTES + MAX_HEADER_BYTES + SIGNATURE_BYTES + max_payload_bytes:
        raise MessageRefused(f"message of {len(message)} bytes is larger than any expected here")
    end = _header_end(message)
    signed = bytes(message[_PREFIX_BYTES:end])
    header = _header_of(signed)
    signature = bytes(message[end : end + SIGNATURE_BYTES])
    payload = message[end + SIGNATURE_BYTES :]
    if len(payload) != header.payload_bytes:
        raise MessageRefused(
            f"payload of {len(payload)} bytes, its header says {header.payload_bytes}"
        )
    if hashlib.sha256(payload).hexdigest() != header.payload_sha256:
        raise MessageRefused("the payload does not match its SHA-256: changed under way")
    return SignedHeader(header, signed, signature), payload


def claimed_name(beginning: bytes) -> str:
    """Return the name in the header of a message of which this is the beginning.

    Nobody believes it before the message is verified. It is empty where there is no header.
    """
    try:
        return _header_of(beginning[_PREFIX_BYTES : _header_end(beginning)]).name
    except MessageRefused:
        return ""


def _header_end(message: bytes | memoryview) -> int:
    """Return where the header ends; raises MessageRefused where the signature is not there."""
    if message[: len(MAGIC)] != MAGIC:
        raise MessageRefused(_foreign(message))
    if len(message) < _PREFIX_BYTES:
        raise MessageRefused("truncated message")
    (length,) = _LENGTH.unpack_from(message, len(MAGIC))
    end: int = _PREFIX_BYTES + length
    if length > MAX_HEADER_BYTES or len(message) < end + SIGNATURE_BYTES:
        raise MessageRefused("truncated message")
    return end


def _header_of(signed: bytes) -> Header:
    try:
        header = Header.model_validate_json(signed)
    except ValidationError as error:
        require_plain(signed, MessageRefused)
        raise MessageRefused(f"bad header: {error.errors()[0]['msg']}") from None
    if header.model_dump_json().encode() != signed:  # else no field is there twice
        require_plain(signed, MessageRefused)
    return header


def _foreign(message: bytes | memoryview) -> str:
    """Return the reason why bytes with another prefix are refused."""
    if message[:3] == MAGIC[:3] and len(message) > 3:
        return (
            f"a SecureFL message of version {message[3]}, where version {VERSION} is read: all "
            "parties of a run need the same release"
        )
    return f"not a SecureFL message of version {VERSION}"

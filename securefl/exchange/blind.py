"""Blind totals, which the server relays and cannot read: their form, and a client's reading."""

import json
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from securefl.crypto.blind import SALT_BYTES, TAG_BYTES, WRAP_BYTES, BlindText, ContentKey
from securefl.errors import BlindTotalRefused
from securefl.exchange.sums import Keyed, MessageId, Sender

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class BlindTotal:
    """A total that is sealed for the clients on its list, each of whom has a wrap of its key."""

    sealed: bytes
    """Salt, the list of clients and the ciphertext: the same for all."""
    wraps: Mapping[str, bytes]
    """Key of the ciphertext, by the client for whom it is wrapped."""

    @property
    def n_clients(self) -> int:
        """Number of clients on the list."""
        return len(self.wraps)

    @classmethod
    def of(cls, key: ContentKey, wraps: Mapping[str, bytes]) -> "BlindTotal":
        """Return what travels of a sealed total."""
        text = key.text
        sealed = text.salt + _LENGTH.pack(len(text.about)) + text.about + text.ciphertext
        return cls(sealed, wraps)

    def among(self, clients: Collection[str]) -> "BlindTotal":
        """Return the total with the wraps of these clients alone."""
        wraps = {name: wrap for name, wrap in self.wraps.items() if name in clients}
        return BlindTotal(self.sealed, wraps)

    def for_client(self, name: str) -> bytes:
        """Return the bytes that one client is sent: its wrap, if it has one, and the rest."""
        return self.wraps.get(name, b"") + self.sealed

    @classmethod
    def sent_to(cls, name: str, body: bytes) -> "BlindTotal":
        """Take what `for_client` has given, of any bytes; `opened` checks them."""
        return cls(body[WRAP_BYTES:], {name: body[:WRAP_BYTES]})

    def as_bytes(self) -> bytes:
        """Return the authority's answer to the server: count, wraps in order, and the rest."""
        return b"".join([_LENGTH.pack(self.n_clients), *self.wraps.values(), self.sealed])

    @classmethod
    def from_bytes(cls, body: bytes, names: Sequence[str]) -> "BlindTotal":
        """Parse what `as_bytes` wrote, of a total of these clients in this order.

        Raises:
            BlindTotalRefused: it counts other clients, or is too short.
        """
        start, end = _LENGTH.size, _LENGTH.size + WRAP_BYTES * len(names)
        if len(body) < end or _LENGTH.unpack_from(body) != (len(names),):
            raise BlindTotalRefused(f"no sealed total of {len(names)} clients")
        wraps = (body[i : i + WRAP_BYTES] for i in range(start, end, WRAP_BYTES))
        return cls(body[end:], dict(zip(names, wraps, strict=True)))


class BlindReader(Keyed, Protocol):
    """A sealer whose client has a secret that totals are sealed for."""

    def opened(self, total: BlindTotal, about: MessageId, sender: Sender) -> tuple[bytes, int]:
        """Return the client's reading of a total: see `opened`."""


def listed(names: Sequence[str]) -> bytes:
    """Return the list of clients as it travels."""
    return json.dumps([*names], separators=(",", ":")).encode()


def n_sealed_bytes(names: Sequence[str], n_content_bytes: int) -> int:
    """Return the exact length of `BlindTotal.sealed` for these clients."""
    return SALT_BYTES + _LENGTH.size + len(listed(names)) + n_content_bytes + TAG_BYTES


def n_client_bytes(names: Sequence[str], n_content_bytes: int) -> int:
    """Return the exact length of what each of these clients is sent."""
    return WRAP_BYTES + n_sealed_bytes(names, n_content_bytes)


def n_answer_bytes(names: Sequence[str], n_content_bytes: int) -> int:
    """Return the exact length of the authority's answer for these clients."""
    return _LENGTH.size + WRAP_BYTES * len(names) + n_sealed_bytes(names, n_content_bytes)


def names_in(total: BlindTotal) -> list[str]:
    """Return the clients on the list of a sealed total.

    Raises:
        BlindTotalRefused: there is no such list.
    """
    return _names(_text(total, b"").about)


def opened(total: BlindTotal, about: MessageId, name: str, secret: bytes) -> tuple[bytes, int]:
    """Return what a client reads of a total: its content, and the number of clients on its list.

    Raises:
        BlindTotalRefused: the total is of another message, list or client, or changed, or this
            client is not on its list.
    """
    text = _text(total, about.digest())
    content = ContentKey.unwrapped(total.wraps.get(name, b""), secret, text).content()
    names = _names(text.about)
    if name not in names:
        raise BlindTotalRefused("is of a list without this client")
    return content, len(names)


def _text(total: BlindTotal, message: bytes) -> BlindText:
    sealed, start = total.sealed, SALT_BYTES + _LENGTH.size
    if len(sealed) < start:
        raise BlindTotalRefused("is too short for a sealed total")
    end = start + _LENGTH.unpack_from(sealed, SALT_BYTES)[0]
    if end > len(sealed):
        raise BlindTotalRefused("is shorter than its list")
    return BlindText(message, sealed[start:end], sealed[:SALT_BYTES], sealed[end:])


def _names(about: bytes) -> list[str]:
    try:
        found = json.loads(about)
    except (ValueError, RecursionError):
        raise BlindTotalRefused("has no list of clients") from None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise BlindTotalRefused("has no list of clients")
    if len(set(found)) != len(found):
        raise BlindTotalRefused("has a client twice on its list")
    return found

"""Messages under one-time keys, opened one by one by a tap that has the officers' keys.

A tap sees that each is what a client may send: its key follows from the client's card and from the
nonce in its header and was used for nothing else, it is masked by a key and an error of full size,
and nothing stands in slots that no value takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import final

import numpy as np

from securefl.audit.exposure.uniform import UNEVEN, uneven_sum
from securefl.crypto.one_time import KeySum, OneTimeKey, ring
from securefl.crypto.params import BOOKKEEPING_SLOTS, KEY_DEVIATION, SUMS
from securefl.crypto.ring import split_payload
from securefl.errors import MessageRefused, PeerError
from securefl.exchange.base import NONCE_BYTES, MessageId, Values
from securefl.exchange.blind import BlindTotal, n_sealed_bytes, names_in
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.decode_total import EMPTY
from securefl.exchange.digits import Digits
from securefl.exchange.keyset import KeySet
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.one_time_open import OneTimeOpener
from securefl.federation.client import Client
from securefl.federation.identities import Identities
from securefl.federation.ledger import AUTHORITY
from securefl.federation.message import split_message
from securefl.federation.total import RELEASED, n_total_bytes, read_total
from securefl.types import Kind

ERROR = EMPTY + 16 * SUMS.noise(1)
"""Largest error of a slot of one client's message: its encryption's, 16 standard deviations of it,
and the rounding of encoder and decoder. 1.3e-8."""
_OFF = 0.25
"""Largest relative error of a key's variance: eight standard deviations of that of 2048 draws."""
_ENOUGH = 100
"""Slots from which an error's size can be told: with a quarter of the variance once in 10^14."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Plaintext:
    """One client's message, opened."""

    values: Values
    """Its values, as gains leave them, shape (n_values,)."""
    weight: float


@final
@dataclass(slots=True)
class SealedSums:
    """Cards of clients, and their messages under one-time keys."""

    keys: KeySet
    identities: Identities
    nonces: list[bytes] = field(default_factory=list)
    """Nonces so far."""
    public: CardKeys = field(init=False)
    _opener: OneTimeOpener = field(init=False)
    _used: set[bytes] = field(default_factory=set)
    """Keys of the messages so far."""
    _polynomials: set[bytes] = field(default_factory=set)
    """Ciphertexts so far, and their sums: no two are alike."""

    def __post_init__(self) -> None:
        self.public, self._opener = self.keys.public, self.keys.opener()

    def card(self, run: str, sender: str, cards: bytes) -> str:
        """Return the reason why these are no honest client's cards; empty where they are.

        The secret in them follows from the client's identity, so it can be nothing else.
        """
        try:
            self._opener.take_cards(run, sender, cards)
        except MessageRefused as error:
            return f"no cards of its sender: {error}"
        _, due = split_message(self._honest(sender).send_cards(run), self.public.card_bytes)
        try:
            self._opener.take_cards(run, sender, due)
        except MessageRefused:
            return "its cards hold something else than the secret of its keys"
        return ""

    def ciphertexts(self, payload: bytes, n_values: int) -> str:
        """Return the reason why a message or a sum of them is no ciphertext; empty where it may be.

        Raises:
            MessageRefused: it is of another length.
        """
        n = SUMS.n_ciphertexts(n_values)
        chunks = split_payload(payload, SUMS.ciphertext_bytes, n)
        found = set(chunks)
        if len(found) < n or found & self._polynomials:
            return "its ciphertext is the same as another one"
        self._polynomials |= found
        return uneven_sum(chunks, SUMS.poly_degree, ring().modulus)

    def opened(self, about: MessageId, sender: str, nonce: str, payload: bytes) -> Plaintext:
        """Return what one client's message holds.

        Raises:
            MessageRefused: it is not what an honest client may send.
        """
        if why := self.ciphertexts(payload, about.n_values):
            raise MessageRefused(why)
        key = self._key(about, sender, nonce)
        slots = key.open(payload, about.digest(), SUMS.n_ciphertexts(about.n_values))
        weight = float(slots[0, -BOOKKEEPING_SLOTS])
        if np.abs(slots[:, -BOOKKEEPING_SLOTS:] - [weight, 1.0]).max() > ERROR or weight <= 0:
            raise MessageRefused("it opens to no contribution of one client")
        filled, digits = slots[:, :-BOOKKEEPING_SLOTS].ravel(), Digits.of(SUMS, about.n_values)
        empty = filled[len(digits.gain_bits) * about.n_values :]
        if np.abs(empty).max(initial=0.0) > ERROR:
            raise MessageRefused("something stands behind its values")
        if len(empty) >= _ENOUGH and np.mean(empty**2) < SUMS.noise(1) ** 2 / 4:
            raise MessageRefused("its encryption has no error, or a small one: the key is readable")
        return Plaintext(digits.joined(filled, about.n_values) / weight, weight)

    def for_clients(self, about: MessageId, total: BlindTotal, names: Sequence[str]) -> Values:
        """Return what a total holds, with gains, that is sealed for these clients.

        Raises:
            MessageRefused: it is not what each of them can read, of them and nobody else.
        """
        if names_in(total) != [*names]:
            raise MessageRefused("its list is of other clients than those in it")
        if len(total.sealed) != n_sealed_bytes(names, n_total_bytes(about.n_values, RELEASED)):
            raise MessageRefused("more than a sealed total, its list and its salt")
        self.nonces.append(total.sealed[:NONCE_BYTES])  # the salt, as long and as random
        sealer, found = OneTimeSealer(self.public), set[bytes]()
        for name in names:
            sender = self._honest(name).sender(about.run, self.public.key_id)
            found.add(sealer.opened(total, about, sender)[0])
        try:
            opened = read_total(found.pop(), about.n_values, RELEASED, AUTHORITY)
        except PeerError as error:
            raise MessageRefused(str(error)) from error
        if opened.n_clients != len(names):
            raise MessageRefused(f"it counts {opened.n_clients} clients, of {len(names)}")
        return opened.values

    def _key(self, about: MessageId, sender: str, nonce: str) -> KeySum:
        """Return the key of one message; raises MessageRefused where it hides nothing.

        It is made of the client's own secret, as officers open no message alone.
        """
        if self._opener.without_card(about.run, [sender]):
            raise MessageRefused("sealed before its sender has handed its cards over")
        self.nonces.append(bytes.fromhex(nonce))
        secrets = self.public.secrets(self._honest(sender).sender(about.run, self.public.key_id))
        key = OneTimeKey.of(secrets, about.digest(), sender, bytes.fromhex(nonce))
        alone = KeySum.of([key])
        if (found := alone.to_bytes()) in self._used:
            raise MessageRefused("its key is that of another message")
        self._used.add(found)
        due = len(secrets) * KEY_DEVIATION**2
        if abs(float(np.mean(alone.coefficients**2)) / due - 1) > _OFF:
            raise MessageRefused("its key is not as large as keys are")
        return alone

    def _honest(self, sender: str) -> Client:
        sealers = {Kind.STATISTICS: OneTimeSealer(self.public)}
        return Client(sender, 1.0, sealers, signing_key=self.identities.keys[sender])


def too_alike(nonces: Sequence[bytes]) -> bool:
    """Return whether nonces have more bytes in common, in one place, than chance makes.

    Values would: their first bytes are few. Of n coincidences where E are due, as many or more come
    with a probability of at most exp(n - E - n ln(n / E)) (Chernoff's bound for Poisson's law).
    """
    if len(nonces) < 2:
        return False
    columns = np.frombuffer(b"".join(nonces), np.uint8).reshape(len(nonces), -1)
    counts = np.stack([np.bincount(column, minlength=256) for column in columns.T])
    found = float((counts * (counts - 1)).sum() / 2)
    due = columns.shape[1] * len(nonces) * (len(nonces) - 1) / 2 / 256
    return found > due and found * log(found / due) - found + due > -log(UNEVEN)

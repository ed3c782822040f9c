"""Messages under one-time keys, inspected one by one with the officers' keys.

Without the key, a ciphertext's polynomial is uniform over the ring (RLWE). So are its residues as
they travel, transformed, and so are its coefficients. An encoded plaintext, or an encryption with
too little randomness, is not: it has small coefficients, which the transform hides.

With the keys, each is seen to be what a client may send: its key follows from the client's card and
from the nonce in its header and was used for nothing else, and it is masked by a key and an error
of full size. What its slots may hold is for `opened_messages` to say.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import log
from typing import final

import numpy as np

from securefl.audit.statistics import too_far
from securefl.crypto import KEY_DEVIATION
from securefl.crypto.ciphertext_codec import Residues, split_payload, unpacked
from securefl.crypto.derived import SEED_BYTES
from securefl.crypto.one_time import KeySum, OneTimeKey, Rows, ring
from securefl.crypto.params import MATCHES, SUMS, RingParameters
from securefl.errors import MessageRefused, PeerError
from securefl.exchange.blind import BlindTotal, n_sealed_bytes, names_in
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.officer import KeySet, OneTimeOpener
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.one_time_match import SCORE_BYTES, split_score
from securefl.exchange.sums import NONCE_BYTES, MessageId, Values
from securefl.federation.client import Client, Identities
from securefl.federation.ledger import AUTHORITY
from securefl.federation.message import split_message
from securefl.federation.total import RELEASED, n_total_bytes, read_total
from securefl.io.uncopyable import SecretBytes

UNEVEN = 1e-9
"""Probability that a uniform polynomial looks as uneven as is called readable here."""
_ROOTS_TRIED = 1000


def uneven(polynomials: Iterable[bytes], parameters: RingParameters) -> str:
    """Return the reason why one of them is no ciphertext; empty where all may be.

    Raises:
        MessageRefused: another length, or a word that is not below the prime.
    """
    of = ring(parameters)
    for one in polynomials:
        for words, prime in zip(
            unpacked(one, of.shape, of.primes, "ciphertext"), of.primes, strict=True
        ):
            if too_far(words / prime, UNEVEN):
                return "its payload is no ciphertext: residues are not uniform"
            if too_far(coefficients(words, prime) / prime, UNEVEN):
                return "its payload is no ciphertext: coefficients are not uniform"
    return ""


def coefficients(row: Residues, modulus: int) -> Residues:
    """Return a_j modulo a prime, from A(ψ^(2k + 1)) in bit-reversed order of k, as SEAL has it."""
    n = len(row)
    values, twiddles = row, _powers(pow(_smallest_root(2 * n, modulus), -1, modulus), modulus, n)
    size = 2
    while size <= n:  # Cooley and Tukey; ω = ψ²
        halves = values.reshape(-1, 2, size // 2)
        turned = _times(halves[:, 1], twiddles[:: 2 * n // size][: size // 2], modulus)
        low, high = halves[:, 0] + turned, halves[:, 0] + np.uint64(modulus) - turned
        values = np.stack([low, high], 1).reshape(-1) % np.uint64(modulus)
        size *= 2
    scaled = _times(values, np.uint64(pow(n, -1, modulus)), modulus)
    return _times(scaled, twiddles, modulus)


def _times(left: Residues, right: Residues | np.uint64, modulus: int) -> Residues:
    """Return products modulo a prime below 2^60: quotient from floats, the rest modulo 2^64."""
    quotient = (left.astype(np.longdouble) * right / modulus).astype(np.uint64)
    with np.errstate(over="ignore"):
        rest = (left * right - quotient * np.uint64(modulus)).astype(np.int64)
    return (rest % modulus).astype(np.uint64)


@cache
def _powers(root: int, modulus: int, n: int) -> Residues:
    return np.array([pow(root, k, modulus) for k in range(n)], np.uint64)


@cache
def _smallest_root(order: int, modulus: int) -> int:
    """Return the smallest primitive root of unity of this order, a power of two."""
    candidates = (pow(g, (modulus - 1) // order, modulus) for g in range(2, _ROOTS_TRIED))
    root = next(r for r in candidates if pow(r, order // 2, modulus) == modulus - 1)
    return min(pow(root, k, modulus) for k in range(1, order, 2))


_OFF = 0.25
"""Largest relative error of a key's variance: eight standard deviations of that of 2048 draws."""


@final
@dataclass(slots=True)
class SealedMessages:
    """Cards of clients, and their messages under one-time keys."""

    keys: KeySet
    identities: Identities
    nonces: list[bytes] = field(default_factory=list)
    """Nonces so far."""
    drawn: list[bytes] = field(default_factory=list)
    """Bytes so far that common polynomials of profiles follow from."""
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

    def ciphertexts(
        self, payload: bytes, n_ciphertexts: int, parameters: RingParameters = SUMS
    ) -> str:
        """Return the reason why a message or a sum of them is no ciphertext; empty where it may be.

        Raises:
            MessageRefused: it is of another length.
        """
        chunks = split_payload(payload, parameters.ciphertext_bytes, n_ciphertexts)
        found = set(chunks)
        if len(found) < n_ciphertexts or found & self._polynomials:
            return "its ciphertext is the same as another one"
        self._polynomials |= found
        return uneven(chunks, parameters)

    def scores(self, content: bytes, n_scores: int) -> str:
        """Return the reason why what the server asks for are no scores; empty where they may be.

        Raises:
            MessageRefused: they are of another length.
        """
        parts = [split_score(part) for part in split_payload(content, SCORE_BYTES, n_scores)]
        exponents, constants, polynomials = zip(*parts, strict=True)
        if len(set(exponents)) > 1:
            return "its scores are of several scales"
        if not 2**64 <= min(constants) <= max(constants) < ring(MATCHES).modulus:
            return "its score is no uniform number: it fits a double, or is not below the modulus"
        return self.ciphertexts(b"".join(polynomials), n_scores, MATCHES)

    def slots_of_sum(self, about: MessageId, sender: str, nonce: str, payload: bytes) -> Rows:
        """Return the slots of one client's message of a sum, shape (ciphertexts, N).

        Raises:
            MessageRefused: it is not sealed as an honest client does.
        """
        n, digest = SUMS.n_ciphertexts(about.n_values), about.digest()
        if why := self.ciphertexts(payload, n):
            raise MessageRefused(why)
        secrets, noted = self._secrets(about.run, sender), self._noted(nonce)
        key = OneTimeKey.of(secrets, digest, sender, noted)
        return self._alone(key, SUMS).open(payload, digest, n)

    def slots_of_profile(self, about: MessageId, sender: str, nonce: str, content: bytes) -> Rows:
        """Return the slots of one client's profile, behind the bytes that it has drawn.

        Raises:
            MessageRefused: it is not sealed as an honest client does.
        """
        drawn, message = content[:SEED_BYTES], content[SEED_BYTES:]
        n = len(message) // MATCHES.ciphertext_bytes
        if why := self.ciphertexts(message, n, MATCHES):
            raise MessageRefused(why)
        if drawn in self.drawn:
            raise MessageRefused("its common polynomials are those of another profile")
        self.drawn.append(drawn)
        secrets, noted = self._secrets(about.run, sender), self._noted(nonce)
        key = OneTimeKey.of(secrets, about.digest("profile"), sender, noted, MATCHES)
        return self._alone(key, MATCHES).open(message, drawn, n)

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

    def _secrets(self, run: str, sender: str) -> list[SecretBytes]:
        """Return the client's own secrets, as officers open no message alone."""
        if self._opener.without_card(run, [sender]):
            raise MessageRefused("sealed before its sender has handed its cards over")
        return self.public.secrets(self._honest(sender).sender(run, self.public.key_id))

    def _noted(self, nonce: str) -> bytes:
        self.nonces.append(bytes.fromhex(nonce))
        return self.nonces[-1]

    def _alone(self, key: OneTimeKey, parameters: RingParameters) -> KeySum:
        """Return the key of one message; raises MessageRefused where it hides nothing."""
        alone = KeySum.of([key], parameters)
        if (found := alone.to_bytes()) in self._used:
            raise MessageRefused("its key is that of another message")
        self._used.add(found)
        due = len(self.keys.quorum.groups) * KEY_DEVIATION**2
        if abs(float(np.mean(alone.coefficients**2)) / due - 1) > _OFF:
            raise MessageRefused("its key is not as large as keys are")
        return alone

    def _honest(self, sender: str) -> Client:
        identity = self.identities.keys[sender]
        return Client(sender, 1.0, {}, card_keys=self.public, signing_key=identity)


def too_alike(drawn: Sequence[bytes]) -> bool:
    """Return whether random strings have more bytes in common, in one place, than chance makes.

    Values would: their first bytes are few. Of n coincidences where E are due, as many or more come
    with a probability of at most exp(n - E - n ln(n / E)) (Chernoff's bound for Poisson's law).
    """
    if len(drawn) < 2:
        return False
    columns = np.frombuffer(b"".join(drawn), np.uint8).reshape(len(drawn), -1)
    counts = np.stack([np.bincount(column, minlength=256) for column in columns.T])
    found = float((counts * (counts - 1)).sum() / 2)
    due = columns.shape[1] * len(drawn) * (len(drawn) - 1) / 2 / 256
    return found > due and found * log(found / due) - found + due > -log(UNEVEN)

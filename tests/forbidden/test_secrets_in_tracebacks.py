"""Tracebacks with their local variables, as rich and `pytest --showlocals` print: no key in them.

Each step of sealing, adding keys and opening fails in turn, and so do the steps of cards, blind
totals and scores. Numpy prints arrays whole here, where it would leave most of a key out.
"""

from __future__ import annotations

import copy
import hashlib
import io
import pickle
import re
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
from rich.console import Console
from rich.traceback import Traceback

from securefl.crypto import blind
from securefl.crypto.blind import ContentKey
from securefl.crypto.derived import (
    _KEY,
    SecretArray,
    error_polynomial,
    error_seed,
    group_secret,
    key_polynomial,
    key_seed,
)
from securefl.crypto.one_time import KeySum, OneTimeKey, polynomial_bytes
from securefl.crypto.params import MATCHES, SUMS
from securefl.errors import BlindTotalRefused, MessageRefused, PeerError, ValueRefused
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.sums import MessageId, Sender
from securefl.io.uncopyable import SecretBytes
from securefl_keys.sealed_keys import open_secret, seal_secret

RUN, N, Q = "ab" * 32, SUMS.poly_degree, 4503599627366401
ABOUT, PROFILE = MessageId(RUN, 1, "layer/mean", 1000), MessageId(RUN, 1, "profile", 5)
ALICE, NONCE, RANDOM = "alice", b"n" * 16, bytes(range(128, 160))
SECRET = SecretBytes(bytes(range(200, 232)))


class Broken(Exception):
    """What each step fails with."""


@dataclass
class Party:
    """A client's sealer and the officers that have its card."""

    keys: KeySet

    def __post_init__(self):
        self.public, self.sender = self.keys.public, Sender(ALICE, SECRET)
        self.sealer, self.opener = OneTimeSealer(self.public), self.keys.opener()
        self.opener.take_cards(RUN, ALICE, self.public.cards(RUN, self.sender))
        self.sent = self.seal()

    def seal(self, values=None):
        values = np.full(1000, 0.1) if values is None else values
        return self.sealer.seal(values, 1.0, ABOUT, self.sender)

    def answer(self, nonce=NONCE):
        return self.opener.officers[0].key_sums(ABOUT, {ALICE: nonce.hex()})

    def open(self, total=None):
        total = total or self.sent.payload
        return self.opener.open(total, ABOUT, {ALICE: NONCE.hex()}, 32)

    def score(self):
        polynomial = polynomial_bytes(np.ones((2, MATCHES.poly_degree), np.uint64))
        return self.opener.officers[0].score_parts(PROFILE, ALICE, NONCE.hex(), polynomial)

    def wraps(self):
        return self.opener.sealed_for(b"content", ABOUT, [ALICE])


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Random bytes and nonces are known here, and so all keys and errors."""
    for module in ("derived", "blind"):
        monkeypatch.setattr(f"securefl.crypto.{module}.os.urandom", lambda n: (RANDOM * n)[:n])
    monkeypatch.setattr("securefl.exchange.one_time.fresh_nonce", lambda _values: NONCE)


@pytest.fixture(params=[None, Quorum(2, 3)], ids=["authority", "2 of 3 officers"])
def party(request):
    return Party(KeySet.ephemeral(request.param))


@contextmanager
def all_of_arrays():
    with np.printoptions(threshold=sys.maxsize, linewidth=10**6):
        yield


def plain(text):
    """Text without white space and brackets, so that rows of arrays are one."""
    return re.sub(r"[\s\[\]()]", "", text)


def told(call, error=Broken):
    """The traceback of a call that fails, with the variables of all of its frames."""
    with all_of_arrays(), pytest.raises(error) as caught:
        call()
    with all_of_arrays():
        found = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        return plain("".join(found.format()))


def told_by_rich(call):
    """The same as rich prints it."""
    with pytest.raises(Broken) as caught:
        call()
    console = Console(width=200, record=True, file=io.StringIO())
    of = type(caught.value), caught.value, caught.value.__traceback__
    console.print(Traceback.from_exception(*of, show_locals=True, locals_max_string=10**6))
    return plain(console.export_text())


def words_of(array):
    """What a text has of an array, in each form in which arithmetic has it: its beginning."""
    small = np.asarray(array, np.int64)[:12]
    forms = small, -small, small % Q, -small % Q, small.view(np.uint64), (-small).view(np.uint64)
    yield from (",".join(map(str, form.tolist())) for form in forms)
    for form in forms:
        yield from of_bytes(form.astype("<u8").tobytes())
    yield from of_bytes(small.astype(np.int8).tobytes())


def of_bytes(secret):
    """What a text has of some bytes: the first sixteen."""
    yield plain(repr(bytes(secret[:16]))[2:-1])
    yield bytes(secret[:16]).hex()


def shown(text, party):
    """Names of the secrets that a text has."""
    groups = [group_secret(SECRET, g) for g in range(len(party.public.quorum.groups))]
    secrets = {"k": [*of_bytes(SECRET)], "card key": []}
    for key in party.keys.secrets:
        secrets["card key"] += of_bytes(key.to_secret_bytes())
    for use, about, parameters in (("sum", ABOUT, SUMS), ("profile", PROFILE, MATCHES)):
        total = np.zeros(parameters.poly_degree, np.int64)
        for g, of_group in enumerate(groups):
            seed = key_seed(of_group, about.digest(use), ALICE, NONCE)
            key = key_polynomial(seed, parameters.poly_degree)
            total += key
            secrets[f"{use}, group {g}"] = [
                *of_bytes(of_group),
                *of_bytes(seed),
                *of_bytes(hashlib.shake_256(_KEY + seed).digest(16)),
                *words_of(key),
            ]
        errors = error_seed(total)
        secrets[use] = [
            *words_of(total),
            *words_of(np.concatenate((total[:1], -total[:0:-1]))),
            *of_bytes(errors),
            *words_of(error_polynomial(errors, 0, parameters.poly_degree)),
        ]
    return [name for name, forms in secrets.items() if any(plain(form) in text for form in forms)]


SEALING = (
    "securefl.crypto.derived.HKDF",
    "securefl.crypto.one_time.key_seed",
    "securefl.crypto.one_time.key_polynomial",
    "securefl.crypto.derived.np.bitwise_count",
    "securefl.crypto.one_time.error_seed",
    "securefl.crypto.one_time.error_polynomial",
    "securefl.crypto.seal_ring.SealRing._ciphertext",
    "tenseal.tensors.ckksvector.CKKSVector.load",
    "tenseal.tensors.ckksvector.CKKSVector._wrap",
    "securefl.crypto.seal_ring.SealRing._encoded",
    "securefl.crypto.seal_ring.SealRing._decrypted",
    "securefl.crypto.seal_ring._words",
    "securefl.crypto.one_time.packed",
)
ADDING = SEALING[:4]
OPENING = (
    *ADDING,
    "securefl.crypto.one_time.unpacked",
    *SEALING[6:9],
    "securefl.crypto.seal_ring.SealRing._decrypted",
    "securefl.exchange.decode_total.TotalDecoder.decode",
)


def broken(step):
    return mock.patch(step, side_effect=Broken("a step"))


@pytest.mark.parametrize("step", SEALING)
def test_sealing_that_fails_shows_no_key(party, step):
    """Not the client's secret, nor a key or an error, nor what they follow from."""
    with broken(step):
        text = told(party.seal)
    assert "values=array" in text  # variables are in it
    assert shown(text, party) == []


@pytest.mark.parametrize("step", [SEALING[0], SEALING[2], SEALING[-1]])
def test_rich_prints_what_has_failed_and_no_key(party, step):
    """It looks into dataclasses, which those that hold a key refuse."""
    with broken(step):
        text = told_by_rich(party.seal)
    assert "Broken:astep" in text.replace(" ", "")
    assert shown(text, party) == []


def test_values_that_cannot_be_sealed_show_no_key(party):
    """SEAL refuses them by itself: all add to one coefficient."""
    powers = np.array([pow(3, j, 2 * N) for j in range(N // 2)])
    aligned = np.exp(1j * np.pi / 4 * powers)
    values = SUMS.max_value * np.sign(np.concatenate([aligned.real, aligned.imag]))[: N - 2]
    text = told(lambda: party.seal(values), ValueRefused)
    assert "SecretArray" in text
    assert shown(text, party) == []


@pytest.mark.parametrize("step", ADDING)
def test_adding_keys_that_fails_shows_no_key(party, step):
    """At the authority, and at an officer."""
    with broken(step):
        text = told(party.answer)
    assert "nonces={" in text
    assert shown(text, party) == []


def test_keys_that_are_not_added_show_no_key(party):
    """An officer refuses another list."""
    party.answer()
    assert shown(told(lambda: party.answer(bytes(16)), PeerError), party) == []


@pytest.mark.parametrize("step", OPENING)
def test_opening_that_fails_shows_no_key(party, step):
    """Nor the sum of keys."""
    with broken(step):
        text = told(party.open)
    assert "precision_bits=32" in text
    assert shown(text, party) == []


def test_a_total_that_does_not_open_shows_no_key(party):
    """One of a word beyond the prime, and one that counts nobody."""
    for total in (b"\xff" * len(party.sent.payload), bytes(len(party.sent.payload))):
        assert shown(told(lambda of=total: party.open(of), MessageRefused), party) == []


@pytest.mark.parametrize("step", [*ADDING, "securefl.crypto.seal_ring.SealRing.composed"])
def test_a_score_that_fails_shows_no_key(party, step):
    """Its part is told rounded, and the key not at all."""
    with broken(step):
        text = told(party.score)
    assert "polynomial=b'" in text
    assert shown(text, party) == []


def test_a_card_that_cannot_be_made_shows_no_secret(party):
    """Not of the client, nor of a group: HPKE refuses, and then the commitment fails."""
    secrets = party.public.secrets(party.sender)
    card_of = party.public.keys[0].card
    assert shown(told(lambda: card_of(secrets, "no bytes"), TypeError), party) == []
    with broken("securefl.exchange.card_keys.commitment"):
        assert shown(told(lambda: party.public.cards(RUN, party.sender)), party) == []


def test_a_card_that_is_refused_shows_no_secret(party):
    """Neither the one that came first nor the second."""
    other = Sender(ALICE, SecretBytes(bytes(32)))
    cards = party.public.cards(RUN, other)
    text = told(lambda: party.opener.officers[0].take_cards(RUN, ALICE, cards), MessageRefused)
    assert "SecretBytes" in text
    assert shown(text, party) == []
    assert plain(repr(bytes(group_secret(other.secret, 0)))[2:-1]) not in text


def content_key(text):
    """What a text has of the key of a total, which follows from the known random bytes."""
    made = ContentKey.sealing(b"content", ABOUT.digest(), b'["alice"]')
    return [form for form in of_bytes(made._key) if form in text] + [
        form for form in of_bytes(RANDOM) if form in text
    ]


@pytest.mark.parametrize("step", ["_digest", "HKDF", "AESGCM", "BlindText", "_wrapping"])
def test_a_blind_total_that_fails_shows_no_key(step):
    """Neither the one that the total is under nor the one that wraps it."""
    party = Party(KeySet.ephemeral())
    with broken(f"securefl.crypto.blind.{step}"):
        text = told(party.wraps)
    assert shown(text, party) == []
    assert content_key(text) == []


@pytest.mark.parametrize("of", ["wrap", "total"])
def test_a_blind_total_that_does_not_open_shows_no_key(of):
    """A client's wrap that was changed, or a ciphertext."""
    party = Party(KeySet.ephemeral())
    total = party.wraps()
    key = ContentKey.sealing(b"content", ABOUT.digest(), b'["alice"]')
    if of == "wrap":
        changed = type(total)(total.sealed, {ALICE: bytes(48)})
        text = told(lambda: party.sealer.opened(changed, ABOUT, party.sender), BlindTotalRefused)
    else:
        other = blind.BlindText(b"other", key.text.about, key.text.salt, key.text.ciphertext)
        text = told(ContentKey(key._key, other).content, BlindTotalRefused)
    assert shown(text, party) == []
    assert content_key(text) == []


@pytest.mark.usefixtures("cheap_guesses")
def test_a_folders_key_that_does_not_load_is_not_shown(party):
    """Between the sealed file and the card key."""
    key = party.keys.secrets[0]
    text = seal_secret(key, "a passphrase of words")
    with broken("securefl.crypto.card_secret.MLKEM768PrivateKey.from_seed_bytes"):
        assert shown(told(lambda: open_secret(text, "a passphrase of words")), party) == []


@pytest.mark.parametrize(
    "secret", [SECRET, key_polynomial(SECRET, N)], ids=["SecretBytes", "SecretArray"]
)
def test_secret_bytes_and_arrays_are_not_shown_copied_or_pickled(secret):
    """Nor are slices of them, as rich prints long bytes."""
    for part in (secret, secret[:5], secret[-5:]):
        with all_of_arrays():
            texts = {repr(part), str(part), f"{part}", f"{[part]}"[1:-1], f"{part!s}"}
        assert len(texts) == 1
        assert re.fullmatch(r"Secret(Bytes\(\d+\)|Array\(\(\d+,\)\))", texts.pop())
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copied(secret)


def test_what_numpy_makes_of_a_secret_array_is_one():
    """Sums, products, other types, and several joined."""
    key = key_polynomial(SECRET, N)
    made = -key, key + key, 2 * key, np.stack((key, key)), np.concatenate((key, key))
    made += key.astype(np.uint64), key[:, None], np.zeros_like(key), KeySum.of([]).coefficients
    made += (OneTimeKey.of([SECRET], b"", "", b"").coefficients, KeySum.of([]).plus(KeySum.of([])))
    assert {type(each) for each in made} == {SecretArray, KeySum}


def test_a_secret_in_the_clear_would_be_found(party):
    """The checks above see what they look for: in bytes, in an array, in words of the ring."""
    key = key_polynomial(key_seed(group_secret(SECRET, 0), ABOUT.digest(), ALICE, NONCE), N)
    for leak in (bytes(SECRET), np.asarray(key), -np.asarray(key) % Q, np.asarray(key).tobytes()):

        def fail(_leak=leak):
            raise Broken

        assert shown(told(fail), party) != []

"""What reaches the server and is no honest contribution is refused; TenSEAL parses none of it."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import tenseal as ts
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from securefl.crypto.ciphertext_codec import packed, unpacked
from securefl.crypto.one_time import ring
from securefl.crypto.params import SUMS
from securefl.errors import (
    Duplicate,
    KeyMismatch,
    MessageRefused,
    Relabelled,
    Replayed,
    SignatureRefused,
    TotalRefused,
    UnknownSender,
)
from securefl.exchange.one_time import OneTimeSealer
from securefl.federation.client import Client
from securefl.federation.message import (
    MAGIC,
    MAX_HEADER_BYTES,
    SIGNATURE_BYTES,
    encode_message,
    header_for,
    signature_over,
    split_message,
)

PREFIX_BYTES = len(MAGIC) + 2
CIPHERTEXT_BYTES = SUMS.ciphertext_bytes
N, Q = SUMS.poly_degree, 4503599627366401
FAULTY = "client-3"
HONEST = ("client-1", "client-2", "client-4", "client-5")


@pytest.fixture(scope="module")
def federation(federate):
    return federate(n_clients=5)


@pytest.fixture
def parsed(monkeypatch):
    """The lengths of all that TenSEAL's parsers see; clients' own sealing is some of it."""
    seen = []
    ring()  # whose context is made once a process
    for parser in ("ckks_vector_from", "context_from"):
        parse = getattr(ts, parser)

        def recording(*args, parse=parse):
            seen.append(len(args[-1]))
            return parse(*args)

        monkeypatch.setattr(ts, parser, recording)
    return seen


def received(arriving, parsed, message):
    """Received, without a parser of TenSEAL's."""
    before = len(parsed)
    try:
        arriving.receive(message)
    finally:
        assert len(parsed) == before


def header_bytes(message):
    (length,) = struct.unpack_from("<H", message, len(MAGIC))
    return length


def flipped(message, position, mask=1):
    position %= len(message)
    return message[:position] + bytes([message[position] ^ mask]) + message[position + 1 :]


def signed_text(federation, text, payload=b"", name=FAULTY):
    """A message with any bytes as its header, signed by a client of the roster."""
    signature = signature_over(text, federation.clients[name].signing_key)
    return MAGIC + struct.pack("<H", len(text)) + text + signature + payload


def honest_header(federation, sealed):
    header = header_for(federation.expected(), FAULTY, sealed)
    return json.loads(header.model_dump_json())


def random_in_ring(seed=0):
    """Shape (ciphertexts, primes, N)."""
    return np.random.default_rng(seed).integers(0, Q, (1, 1, N), dtype=np.uint64)


def words_of(payload):
    return unpacked(payload, (1, 1, N), [Q], "message")


def assert_refused_amid_honest(federation, parsed, message, refusal, match=None):
    """Refused unparsed between honest messages, whose total is as if it had never been sent."""
    arriving = federation.server.start(1, federation.spec)
    received(arriving, parsed, federation.message(HONEST[0]))
    received(arriving, parsed, federation.message(HONEST[1]))
    total_before = arriving.request().total
    with pytest.raises(MessageRefused, match=match) as caught:
        received(arriving, parsed, message)
    assert caught.type is refusal
    assert arriving.request().total == total_before
    for name in HONEST[2:]:
        received(arriving, parsed, federation.message(name))
    assert_total(federation, arriving, HONEST)
    received(arriving, parsed, federation.message(FAULTY))  # being framed costs it nothing
    assert_total(federation, arriving, (*HONEST, FAULTY))


def assert_total(federation, arriving, names):
    request = arriving.request()
    assert {signed.header.sender for signed in request.signed} == set(names)
    nonces = {signed.header.sender: signed.header.nonce for signed in request.signed}
    opener = federation.authority_of().opener  # that has answered for nothing before
    opened = opener.open(request.total, request.expected.about, nonces, 26)
    np.testing.assert_allclose(opened.values, federation.mean(*names), rtol=0, atol=1e-7)
    assert opened.n_clients == len(names)
    assert opened.weight == sum(federation.clients[name].weight for name in names)


def test_a_message_cut_anywhere_is_refused(federation, parsed):
    """Every length within prefix, header and signature, and many within the payload."""
    message = federation.message(FAULTY)
    payload_start = len(message) - CIPHERTEXT_BYTES
    lengths = [*range(payload_start + 2), *range(payload_start, len(message), 997)]
    arriving = federation.server.start(1, federation.spec)
    for length in [*lengths, len(message) - 8, len(message) - 1]:
        with pytest.raises(MessageRefused):
            received(arriving, parsed, message[:length])


@pytest.mark.parametrize("length", [0, 5, 6, 300, 700, 10_000, -8, -1])
def test_a_cut_message_leaves_the_sum_alone(federation, parsed, length):
    """The honest clients' total stands, and the client that was cut off may send again."""
    message = federation.message(FAULTY)[:length]
    assert_refused_amid_honest(federation, parsed, message, MessageRefused)


def test_any_flipped_bit_before_the_payload_is_refused(federation, parsed):
    """Every single bit of prefix, header and signature counts."""
    message = federation.message(FAULTY)
    arriving = federation.server.start(1, federation.spec)
    payload_start = PREFIX_BYTES + header_bytes(message) + SIGNATURE_BYTES
    for bit in range(payload_start * 8):
        with pytest.raises(MessageRefused):
            received(arriving, parsed, flipped(message, bit // 8, 1 << bit % 8))
    with pytest.raises(MessageRefused, match="no client contributed"):
        arriving.request()


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(position=st.integers(0, CIPHERTEXT_BYTES - 1), mask=st.integers(1, 255))
def test_any_changed_byte_of_the_payload_is_refused(federation, parsed, position, mask):
    """The hash in the signed header covers the whole payload."""
    message = federation.message(FAULTY)
    arriving = federation.server.start(1, federation.spec)
    with pytest.raises(MessageRefused, match="SHA-256"):
        received(arriving, parsed, flipped(message, position - CIPHERTEXT_BYTES, mask))


@pytest.mark.parametrize("place", ["header", "signature", "payload"])
def test_a_flipped_bit_leaves_the_sum_alone(federation, parsed, place):
    """Where the bit was changed under way makes no difference to the honest clients' total."""
    message = federation.message(FAULTY)
    end = PREFIX_BYTES + header_bytes(message)
    changed = {
        "header": message.replace(b'"round":1', b'"round":2', 1),
        "signature": flipped(message, end + 3),
        "payload": flipped(message, -5),
    }[place]
    assert changed != message
    refusal = MessageRefused if place == "payload" else SignatureRefused
    assert_refused_amid_honest(federation, parsed, changed, refusal)


@pytest.mark.parametrize("extra", [1, 8, CIPHERTEXT_BYTES, 10_000_000])
def test_an_oversized_message_is_refused(federation, parsed, extra):
    """Bytes behind the payload are refused, signed for or not."""
    message = federation.message(FAULTY) + bytes(extra)
    assert_refused_amid_honest(federation, parsed, message, MessageRefused)


@pytest.mark.parametrize(
    "n_bytes", [0, 1, CIPHERTEXT_BYTES - 8, CIPHERTEXT_BYTES + 8, 2 * CIPHERTEXT_BYTES]
)
def test_a_signed_payload_of_another_length_is_refused(federation, parsed, n_bytes):
    """The server knows the one length that it takes, whatever the header announces."""
    message = federation.signed(FAULTY, bytes(n_bytes))
    assert_refused_amid_honest(federation, parsed, message, MessageRefused)


def test_no_message_names_its_own_size(federation, parsed):
    """A header that claims more values, or more bytes than there are, is refused."""
    sealed = federation.sealed(FAULTY)
    for changes, refusal in (
        ({"n_values": 6}, Relabelled),
        ({"n_values": 2**39}, Relabelled),
        ({"payload_bytes": 2**39}, MessageRefused),
        ({"payload_bytes": 0}, MessageRefused),
    ):
        message = federation.signed(FAULTY, sealed, **changes)
        assert_refused_amid_honest(federation, parsed, message, refusal)


@pytest.mark.parametrize(
    ("field", "value", "refusal"),
    [
        ("run", "cd" * 32, Replayed),
        ("round", 0, Replayed),
        ("round", 2, Replayed),
        ("name", "layer/variance", Relabelled),
        ("name", "", Relabelled),
        ("form", "plain/float64", Relabelled),
        ("form", "ckks/tenseal-0.3.18", Relabelled),
        ("form", "one-time/digits/2", Relabelled),
        ("n_values", 4, Relabelled),
        ("key_id", "", KeyMismatch),
        ("key_id", "ef" * 32, KeyMismatch),
        ("epoch", 0, KeyMismatch),
        ("epoch", 2, KeyMismatch),
        ("sender", "client-1", SignatureRefused),
        ("sender", "client-9", UnknownSender),
        ("sender", "", UnknownSender),
        ("nonce", "", Relabelled),
        ("payload_sha256", "00" * 32, MessageRefused),
    ],
)
def test_a_client_that_signs_another_label_is_refused(federation, parsed, field, value, refusal):
    """A good signature over another run, round, name, form, key, epoch, size or sender is none."""
    message = federation.signed(FAULTY, federation.sealed(FAULTY), **{field: value})
    match = None
    if refusal in {Replayed, Relabelled}:
        match = f"{field} of 0 digits" if field == "nonce" else f"message of {field}"
    assert_refused_amid_honest(federation, parsed, message, refusal, match)


def test_a_contribution_under_another_key_is_refused(federation, foreign_key_set, parsed):
    """Key ids differ, so a foreign ciphertext never adds silently into garbage."""
    honest = federation.clients[FAULTY]
    stray = Client(
        FAULTY,
        honest.weight,
        {federation.spec.kind: OneTimeSealer(foreign_key_set.public)},
        signing_key=honest.signing_key,
    )
    tensors = {"mean": torch.from_numpy(federation.values[FAULTY])}
    message = stray.contribute(federation.run, 1, federation.spec, tensors)
    assert_refused_amid_honest(federation, parsed, message, KeyMismatch, "sealed under key")


def test_a_relabelled_sender_is_refused(federation, parsed):
    """Another client's name in the header does not go with the signature."""
    message = federation.message(FAULTY)
    for name in (b'"client-4"', b'"client-1"'):
        relabelled = message.replace(b'"client-3"', name, 1)
        assert_refused_amid_honest(federation, parsed, relabelled, SignatureRefused, "not signed")


def test_a_replayed_message_is_refused(federation, parsed):
    """What was valid in another round, or for another sum, is not valid in this one."""
    earlier = federation.message(FAULTY, round_number=0)
    in_clear = federation.message(FAULTY, federation.plain_spec)
    assert_refused_amid_honest(federation, parsed, earlier, Replayed, "round 0")
    assert_refused_amid_honest(federation, parsed, in_clear, KeyMismatch)


@pytest.mark.parametrize("again", ["the same bytes", "another message"])
def test_a_client_counts_once(federation, parsed, again):
    """A second contribution of one client is refused, whether it is a copy or a new one."""
    first = federation.message(HONEST[0])
    message = first if again == "the same bytes" else federation.message(HONEST[0])
    assert_refused_amid_honest(federation, parsed, message, Duplicate, "already")


@pytest.mark.parametrize("name", ["stranger", FAULTY, "client-1"])
def test_who_is_not_on_the_roster_is_refused(federation, parsed, name):
    """A stranger's own key signs nothing here, under a new name or under a client's."""
    stranger = Client(name, 0.1, federation.clients[FAULTY].sealers)
    tensors = {"mean": torch.from_numpy(federation.values[FAULTY])}
    message = stranger.contribute(federation.run, 1, federation.spec, tensors)
    refusal = SignatureRefused if name in federation.clients else UnknownSender
    assert_refused_amid_honest(federation, parsed, message, refusal)


def coefficients(**at):
    """A payload of ones, with some coefficients of one's choice."""
    words = np.ones((1, 1, N), np.uint64)
    for place, value in at.items():
        words[0, 0, PLACES[place]] = value
    return packed(words, [Q])


PLACES = {"first": 0, "middle": N // 2, "last": N - 1}


GARBAGE = {
    "random bytes": np.random.default_rng(1).bytes(CIPHERTEXT_BYTES),
    "all ones": b"\xff" * CIPHERTEXT_BYTES,
    "the modulus first": coefficients(first=Q),
    "the modulus in the middle": coefficients(middle=Q),
    "the modulus last": coefficients(last=Q),
    "above the modulus": coefficients(last=Q + 1),
    "the largest number": coefficients(last=2**56 - 1),
    "the highest bit": coefficients(middle=2**55),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_signed_garbage_is_refused(federation, parsed, kind):
    """A client of the roster that signs no ciphertext of these parameters is refused unparsed."""
    message = federation.signed(FAULTY, GARBAGE[kind])
    assert_refused_amid_honest(federation, parsed, message, MessageRefused, "ciphertext")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32), position=st.integers(0, N - 1), excess=st.integers(0, 2**20))
def test_one_coefficient_outside_the_ring_is_enough(federation, parsed, seed, position, excess):
    """Wherever it stands among ones that are in range."""
    words = random_in_ring(seed)
    words.flat[position] = Q + excess
    arriving = federation.server.start(1, federation.spec)
    with pytest.raises(MessageRefused, match="outside the ring"):
        received(arriving, parsed, federation.signed(FAULTY, packed(words, [Q])))


RUBBISH = {f"random words {seed}": random_in_ring(seed) for seed in range(10)} | {
    "zeros": np.zeros((1, 1, N), np.uint64),
    "the largest words": np.full((1, 1, N), Q - 1, np.uint64),
}


@pytest.mark.parametrize("kind", RUBBISH)
def test_rubbish_in_the_ring_makes_a_total_that_nobody_opens(federate, parsed, kind):
    """A client's rubbish in the shape of a ciphertext harms no process; the total stays shut."""
    federation = federate()
    arriving = federation.collect("client-1", "client-2", "client-4")
    received(arriving, parsed, federation.signed("client-3", packed(RUBBISH[kind], [Q])))
    with pytest.raises(TotalRefused, match="does not count its clients"):
        federation.authority.open(arriving.request())
    assert federation.log[-1].refused


@pytest.mark.parametrize("others", [0, 2])
def test_a_contribution_that_cancels_another_makes_a_total_that_nobody_opens(federate, others):
    """The sum is of nobody, or of the others, and the keys of two more are added to theirs."""
    federation = federate()
    sealed = federation.sealed("client-3")
    words = words_of(sealed.payload)
    negative = np.where(words == 0, words, np.uint64(Q) - words)
    arriving = federation.server.start(1, federation.spec)
    for name in ("client-1", "client-2")[:others]:
        arriving.receive(federation.message(name))
    arriving.receive(federation.signed("client-3", sealed))
    before = arriving.request().total if others else bytes(CIPHERTEXT_BYTES)
    arriving.receive(federation.signed("client-4", packed(negative, [Q])))
    request = arriving.request()
    assert (request.total != before) == bool(others)
    nonces = {signed.header.sender: signed.header.nonce for signed in request.signed}
    about = request.expected.about
    with pytest.raises(MessageRefused, match="does not count its clients"):
        federation.authority.opener.open(request.total, about, nonces, 26)


def test_a_bad_second_ciphertext_keeps_the_first_out(federate):
    """A message of two ciphertexts is added as a whole or not at all."""
    federation = federate(n_clients=5, n_values=3000)
    sealed = federation.sealed(FAULTY)
    first = sealed.payload[:CIPHERTEXT_BYTES]
    arriving = federation.collect("client-1", "client-2")
    before = arriving.request().total
    for kind in ("the modulus last", "random bytes"):
        with pytest.raises(MessageRefused, match="outside the ring"):
            arriving.receive(
                federation.signed(FAULTY, sealed._replace(payload=first + GARBAGE[kind]))
            )
    assert arriving.request().total == before
    for name in ("client-4", "client-5", FAULTY):
        arriving.receive(federation.message(name))
    assert_total(federation, arriving, tuple(federation.clients))


def as_json(good, **fields):
    return json.dumps(good | fields).encode()


def with_raw(field, value):
    return lambda good: as_json(good, **{field: "@"}).replace(b'"@"', value)


def changed(**fields):
    return lambda good: as_json(good, **fields)


BAD_HEADERS = {
    "deep lists": lambda good: b"[" * 2000,
    "deep objects": lambda good: b'{"run":' * 290,
    "a deep field": with_raw("name", b"[" * 700 + b"]" * 700),
    "NaN": with_raw("round", b"NaN"),
    "infinity": with_raw("n_values", b"Infinity"),
    "minus infinity": with_raw("round", b"-Infinity"),
    "a fraction": changed(round=1.0),
    "a large exponent": with_raw("round", b"1e999"),
    "a thousand digits": with_raw("round", b"9" * 1000),
    "text for a number": changed(round="1"),
    "true for a number": changed(n_values=True),
    "a negative number": changed(round=-1),
    "negative bytes": changed(payload_bytes=-1),
    "null": changed(sender=None),
    "a list for text": changed(sender=[FAULTY]),
    "not UTF-8": with_raw("sender", b'"client-\xff\xfe"'),
    "UTF-16": lambda good: json.dumps(good, separators=(",", ":")).encode("utf-16"),
    "half a surrogate": with_raw("sender", b'"\\ud800"'),
    "a byte order mark": lambda good: b"\xef\xbb\xbf" + as_json(good),
    "a missing field": lambda good: as_json({k: v for k, v in good.items() if k != "run"}),
    "one field more": changed(admin=True),
    "another version": changed(version=3),
    "a nonce that is no hex": changed(nonce="g" * 32),
    "a long nonce": changed(nonce="0" * 34),
    "no nonce": lambda good: as_json({k: v for k, v in good.items() if k != "nonce"}),
    "upper case hex": changed(run="AB" * 32),
    "hex with a line end": changed(run="ab" * 32 + "\n"),
    "a short key id": changed(key_id="ab"),
    "a negative epoch": changed(epoch=-1),
    "no epoch": lambda good: as_json({k: v for k, v in good.items() if k != "epoch"}),
    "a long name": changed(name="n" * 501),
    "a long sender": changed(sender="n" * 101),
    "nothing": lambda good: b"",
    "null alone": lambda good: b"null",
    "a list": lambda good: b"[]",
    "a number": lambda good: b"1",
    "cut JSON": lambda good: as_json(good)[:-1],
    "two headers": lambda good: as_json(good) * 2,
    "binary": lambda good: bytes(range(256)),
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_a_header_that_is_none_is_refused(federation, parsed, kind):
    """Whatever a client signs in place of a header, the answer is a refusal and no other error."""
    sealed = federation.sealed(FAULTY)
    text = BAD_HEADERS[kind](honest_header(federation, sealed))
    assert len(text) <= MAX_HEADER_BYTES
    message = signed_text(federation, text, sealed.payload)
    assert_refused_amid_honest(
        federation, parsed, message, MessageRefused, r"bad header|nested|without a quote"
    )


@pytest.mark.parametrize("announced", [0, 1, 2047, 2048, 2049, 40_000, 65_535])
def test_a_false_header_length_is_refused(federation, parsed, announced):
    """The two bytes of the header's length cannot reach into the payload or beyond the end."""
    message = federation.message(FAULTY)
    changed = MAGIC + struct.pack("<H", announced) + message[PREFIX_BYTES:]
    assert_refused_amid_honest(federation, parsed, changed, MessageRefused)


def test_a_header_over_the_limit_is_refused(federation, parsed):
    """A valid, signed header with kilobytes of white space is not even parsed."""
    sealed = federation.sealed(FAULTY)
    text = json.dumps(honest_header(federation, sealed)).encode()
    fits = text + b" " * (MAX_HEADER_BYTES - len(text))
    message = signed_text(federation, fits + b" ", sealed.payload)
    assert_refused_amid_honest(federation, parsed, message, MessageRefused)
    arriving = federation.server.start(1, federation.spec)
    arriving.receive(signed_text(federation, fits, sealed.payload))


@pytest.mark.parametrize(
    "magic", [b"SFL\x04", b"SFL\x06", b"SFL\x00", b"sfl\x05", b"GET ", b"\x00" * 4]
)
def test_another_format_is_refused(federation, parsed, magic):
    """Bytes that are not of format version 5 are not looked into."""
    message = magic + federation.message(FAULTY)[4:]
    assert_refused_amid_honest(federation, parsed, message, MessageRefused, "version 5")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=4000), magic=st.booleans(), sign=st.booleans())
def test_arbitrary_bytes_are_refused(federation, parsed, data, magic, sign):
    """Any bytes, with a client's signature or without, get MessageRefused and nothing else."""
    message = (MAGIC if magic else b"") + data
    if sign:
        message = signed_text(federation, data[:2000], data[2000:])
    arriving = federation.server.start(1, federation.spec)
    with pytest.raises(MessageRefused):
        received(arriving, parsed, message)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(payload=st.binary(max_size=2000), tail=st.binary(max_size=50))
def test_arbitrary_signed_payloads_are_refused(federation, parsed, payload, tail):
    """A client that signs any short payload, or random bytes of the right length, is refused."""
    stretched = (payload + tail + b"\xff") * (CIPHERTEXT_BYTES // (len(payload + tail) + 1) + 1)
    arriving = federation.server.start(1, federation.spec)
    for body in (payload, stretched[-CIPHERTEXT_BYTES:]):
        with pytest.raises(MessageRefused):
            received(arriving, parsed, federation.signed(FAULTY, body))


PLAIN_GARBAGE = {
    "NaN": [1, np.nan, 1, 1, 1, 0.1],
    "infinity": [1, 1, np.inf, 1, 1, 0.1],
    "minus infinity": [-np.inf, 1, 1, 1, 1, 0.1],
    "no weight": [1, 1, 1, 1, 1, 0.0],
    "a negative weight": [1, 1, 1, 1, 1, -0.1],
    "a weight above one": [1, 1, 1, 1, 1, 1.5],
    "a weight of NaN": [1, 1, 1, 1, 1, np.nan],
    "an infinite weight": [1, 1, 1, 1, 1, np.inf],
    "a value too few": [1, 1, 1, 1, 0.1],
    "a value too many": [1, 1, 1, 1, 1, 1, 0.1],
    "nothing": [],
}


@pytest.mark.parametrize("kind", PLAIN_GARBAGE)
def test_signed_garbage_in_the_clear_is_refused(federation, kind):
    """The plain sum refuses what is not finite or not weighted, and stays as it was."""
    spec = federation.plain_spec
    arriving = federation.collect(*HONEST[:2], spec=spec)
    before = arriving.request().total
    payload = np.array(PLAIN_GARBAGE[kind], dtype="<f8").tobytes()
    with pytest.raises(MessageRefused):
        arriving.receive(federation.signed(FAULTY, payload, spec))
    assert arriving.request().total == before
    arriving.receive(federation.message(FAULTY, spec))
    opened = federation.plain.open(arriving.request().total, federation.n_values)
    np.testing.assert_allclose(
        opened.values, federation.mean(*HONEST[:2], FAULTY), rtol=0, atol=1e-14
    )


def test_only_the_clients_own_key_signs_for_it(federation):
    """Another key's signature over the very header that passes with the client's own is refused."""
    message = federation.message(FAULTY)
    signed, payload = split_message(message, CIPHERTEXT_BYTES)
    again = encode_message(signed.header, payload, Ed25519PrivateKey.generate())
    arriving = federation.server.start(1, federation.spec)
    with pytest.raises(SignatureRefused):
        arriving.receive(again)
    arriving.receive(message)

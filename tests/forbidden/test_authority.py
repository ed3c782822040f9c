"""The authority opens totals of enough clients, once, and nothing finer than it declares."""

from __future__ import annotations

import dataclasses
import json
import re
from itertools import combinations
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from asked_officers import noting_what_is_asked

from securefl.crypto.ciphertext_codec import packed
from securefl.crypto.one_time import ring
from securefl.crypto.params import SUMS
from securefl.errors import (
    Duplicate,
    KeyMismatch,
    MessageRefused,
    OpeningRefused,
    OtherModel,
    Relabelled,
    Replayed,
    SecureFLError,
    SignatureRefused,
    TooFewContributions,
    TotalRefused,
    UnknownSender,
)
from securefl.exchange import decode_total
from securefl.exchange.card_keys import Quorum
from securefl.exchange.decode_total import SPOILT, UNCOUNTED, TotalDecoder
from securefl.exchange.digits import Digits
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder
from securefl.exchange.policy import OpeningRule, Policy
from securefl.exchange.sums import Sender
from securefl.federation.authority import Authority, CheckingOfficer
from securefl.federation.client import Client
from securefl.federation.message import split_message
from securefl.federation.opening_history import MOST_LISTS, MOST_SESSIONS, OpeningHistory, fewest
from securefl.federation.server import DueWeight, SumRequest
from securefl.federation.total import Terms
from securefl.types import Kind, MessageSpec

CIPHERTEXT_BYTES = SUMS.ciphertext_bytes
A, B, C, D = "client-1", "client-2", "client-3", "client-4"
GARBAGE = "the total does not count its clients"


@pytest.fixture
def federation(federate):
    return federate()


def total_of(federation, *payloads):
    """What a server that adds as it likes gets."""
    running = OneTimeAdder(federation.keys.public).start(federation.n_values)
    for payload in payloads:
        running = running.plus(payload)
    return running.total()


def collected(federation, *names):
    """An honest request, and the payloads that it is the sum of, by client."""
    arriving, payloads = federation.server.start(1, federation.spec), {}
    for name in names or federation.clients:
        message = federation.message(name)
        _, payloads[name] = split_message(message, 2**20)
        arriving.receive(message)
    return arriving.request(), payloads


def listing(federation, listed, *added):
    """The honest signatures of those listed over the sum of other messages of the same round."""
    request, payloads = collected(federation)
    signed = tuple(of for of in request.signed if of.header.sender in listed)
    total = total_of(federation, *(payloads[name] for name in added))
    return dataclasses.replace(request, total=total, signed=signed)


def opened_by(federation, opener, sealed, precision_bits):
    """The sum of these clients' messages, opened without an authority around the opener."""
    nonces = {name: of.nonce for name, of in sealed.items()}
    total = total_of(federation, *(of.payload for of in sealed.values()))
    return opener.open(total, federation.expected().about, nonces, precision_bits)


def assert_refused_anew(federation, request, refusal=OpeningRefused, match=None):
    """Refused by an authority that was asked for nothing before."""
    assert_refused(federation, request, refusal, match, federation.authority_of())


def assert_refused(federation, request, refusal=OpeningRefused, match=None, authority=None):
    """Refused with a typed error, and one line of the log says why; it names no stranger."""
    n_lines = len(federation.log)
    with pytest.raises(SecureFLError, match=match) as caught:
        (authority or federation.authority).open(request)
    assert caught.type is refusal
    assert len(federation.log) == n_lines + 1
    entry = federation.log[-1]
    assert entry.refused == str(caught.value)
    assert entry.n_clients == 0
    assert (entry.round, entry.name) == (request.expected.round, request.expected.name)
    senders = [signed.header.sender for signed in request.signed]
    assert entry.signers == tuple(name for name in senders if name in federation.clients)


def assert_opened(federation, request, *names):
    opened = federation.authority.open(request)
    np.testing.assert_allclose(opened.values, federation.mean(*names), rtol=0, atol=1e-7)
    assert opened.n_clients == len(names)
    entry = federation.log[-1]
    assert (entry.refused, entry.n_clients, entry.signers) == ("", len(names), names)
    return opened


@pytest.mark.parametrize("names", [(A, B, C, D), (A, B, C), (D, B, A)])
def test_a_total_of_enough_clients_is_opened_and_logged(federation, names):
    """Any three of four clients get their weighted mean, and the log names them."""
    assert_opened(federation, federation.collect(*names).request(), *names)


@pytest.mark.parametrize("names", [(A,), (A, B)])
def test_too_few_signatures_are_refused(federation, names):
    """One or two clients' honest contributions are not opened."""
    assert_refused(federation, federation.collect(*names).request(), TooFewContributions)


def test_no_signature_at_all_is_refused(federation):
    """A total without signatures is not opened, whatever it counts."""
    request = dataclasses.replace(federation.collect().request(), signed=())
    assert_refused(federation, request, TooFewContributions)


@pytest.mark.parametrize("min_clients", [3, 4, 5])
def test_min_clients_is_the_least_number(federate, min_clients):
    """Four clients are opened where three or four are needed, and not where five are."""
    federation = federate()
    authority = federation.authority_of(Policy(min_contributions=min_clients))
    request = federation.collect().request()
    if min_clients > 4:
        assert_refused(federation, request, TooFewContributions, authority=authority)
    else:
        assert authority.open(request).n_clients == 4


@pytest.mark.parametrize("names", [(A,), (B,), (A, B), (C, D), (A, A)])
def test_a_sum_of_fewer_ciphertexts_than_signatures_is_refused(federation, names):
    """The server cannot open one or two clients' values with everybody's signatures."""
    request = listing(federation, federation.clients, *names)
    assert_refused(federation, request, TotalRefused, GARBAGE)


@pytest.mark.parametrize(
    "names", [(A, B, C), (A, A, A), (A, B, C, D, D), (A, B, C, D, A, B), (A, A, A, A), (A, A, B, B)]
)
def test_a_sum_of_other_ciphertexts_than_are_signed_is_refused(federation, names):
    """Those left out or added twice make noise of it, also if there are as many as signatures."""
    request = listing(federation, federation.clients, *names)
    assert_refused(federation, request, TotalRefused, GARBAGE)


@pytest.mark.parametrize("names", [(A, A, A), (A, A, B), (A, B, D)])
def test_one_client_does_not_stand_in_for_others(federation, names):
    """A server that adds one ciphertext again in place of another's is not served."""
    request = listing(federation, (A, B, C), *names)
    assert_refused(federation, request, TotalRefused, GARBAGE)


def test_the_same_messages_added_once_each_are_opened(federation):
    """So that the refusals above are of what is added, and not of how it is added here."""
    assert_opened(federation, listing(federation, federation.clients, D, C, B, A), A, B, C, D)


def test_too_few_signatures_for_the_ciphertexts_are_refused(federation):
    """A sum of four that three have signed is not opened either."""
    request = federation.collect().request()
    fewer = dataclasses.replace(request, signed=request.signed[:3])
    assert_refused(federation, fewer, TotalRefused, GARBAGE)


@pytest.mark.parametrize("count", [0.0, 2.0, 3.0, 100.0])
def test_a_client_that_does_not_count_as_one_is_refused(federation, count):
    """A ciphertext that counts its client three times, or not at all, spoils the total."""
    slots = np.zeros(2048)
    slots[-2:] = 0.1, count
    arriving = federation.collect(A, B, C)
    arriving.receive(federation.signed(D, federation.sealed_slots(D, slots)))
    assert_refused(federation, arriving.request(), TotalRefused, GARBAGE)


@pytest.mark.parametrize("count", [-1.0, -3.0, -50.0])
def test_a_negative_count_is_refused(federation, count):
    """A client that takes away from the count makes a total of too few, or of none."""
    slots = np.zeros(2048)
    slots[-2:] = 0.1, count
    arriving = federation.collect(A, B, C)
    arriving.receive(federation.signed(D, federation.sealed_slots(D, slots)))
    assert_refused(federation, arriving.request(), TotalRefused)


@pytest.mark.parametrize("count", [0.5, 1.002, 0.998, 2**-8])
def test_a_broken_count_is_refused(federation, count):
    """Counts are whole numbers."""
    slots = np.zeros(2048)
    slots[-2:] = 0.1, count
    arriving = federation.collect(A, B, C)
    arriving.receive(federation.signed(D, federation.sealed_slots(D, slots)))
    assert_refused(federation, arriving.request(), TotalRefused, "does not count its clients")


@pytest.mark.parametrize("weight", [-1.0, -10 / 64 - 1, 1.0, 50.0])
def test_a_total_weight_outside_its_range_is_refused(federation, weight):
    """Weights of clients sum to at most one and to more than nothing."""
    slots = np.zeros(2048)
    slots[-2:] = weight, 1.0
    arriving = federation.collect(A, B, C)
    arriving.receive(federation.signed(D, federation.sealed_slots(D, slots)))
    assert_refused(federation, arriving.request(), TotalRefused, "none that clients may send")


def test_one_malicious_client_does_not_open_another_alone(federation):
    """A client that counts as two, added to one other, makes no three of two signatures."""
    slots = np.zeros(2048)
    slots[-2:] = 0.1, 2.0
    arriving = federation.collect(A)
    arriving.receive(federation.signed(B, federation.sealed_slots(B, slots)))
    assert_refused(federation, arriving.request(), TooFewContributions)


def test_ciphertexts_of_one_message_count_the_same_clients(federate):
    """With several ciphertexts a message, none may be of other clients than the first."""
    federation = federate(n_values=3000)
    request, payloads = collected(federation)
    alone, four_times = payloads[A], total_of(federation, *[payloads[A]] * 4)
    one_with_all_weights = np.zeros((2, 2048))
    one_with_all_weights[:, -2:] = 10 / 64, 1.0
    crafted, _ = federation.sealed_slots(A, *one_with_all_weights)
    for other in (alone, four_times, crafted, request.total[::-1], bytes(len(alone))):
        for j in (0, 1):
            total = [request.total[:CIPHERTEXT_BYTES], request.total[CIPHERTEXT_BYTES:]]
            total[j] = other[j * CIPHERTEXT_BYTES :][:CIPHERTEXT_BYTES]
            fake = dataclasses.replace(request, total=b"".join(total))
            assert_refused_anew(federation, fake, TotalRefused)
    exchanged = request.total[CIPHERTEXT_BYTES:] + request.total[:CIPHERTEXT_BYTES]
    fake = dataclasses.replace(request, total=exchanged)
    assert_refused_anew(federation, fake, TotalRefused, GARBAGE)
    assert_opened(federation, request, A, B, C, D)


def forged(request, position=0, **changes):
    signed = list(request.signed)
    signed[position] = dataclasses.replace(signed[position], **changes)
    return dataclasses.replace(request, signed=tuple(signed))


def test_a_forged_list_of_signatures_is_refused(federation, federate):
    """One header with another's signature, another text or a stranger's name spoils the list."""
    request = federation.collect().request()
    stranger = federate().collect().request().signed[0]  # the same name, another identity
    nobody = request.signed[0].header.model_copy(update={"sender": "client-9"})
    for fake in (
        forged(request, signature=bytes(64)),
        forged(request, signature=b""),
        forged(request, signature=request.signed[1].signature),
        forged(request, signed=request.signed[0].signed + b" "),
        forged(request, 3, signature=stranger.signature, signed=stranger.signed),
        dataclasses.replace(request, signed=(*request.signed[1:], stranger)),
    ):
        assert_refused_anew(federation, fake, SignatureRefused, "not signed by")
    unknown = forged(request, header=nobody)
    assert_refused_anew(federation, unknown, OpeningRefused, "no card of client-9")
    sender = Sender("client-9", bytes(32))
    authority = federation.authority_of()
    cards = federation.keys.public.cards(federation.run, sender)
    authority.opener.take_cards(federation.run, sender.name, cards)
    assert_refused(federation, unknown, UnknownSender, "no client of this", authority)
    assert_opened(federation, request, A, B, C, D)


def test_signatures_count_each_client_once(federation):
    """A list in which a client stands twice is refused, in copy or with a second signature."""
    request, payloads = collected(federation, A, B)
    once_more, again = collected(federation, A)
    for signed, payload in (
        ((*request.signed, request.signed[0]), payloads[A]),
        ((*request.signed, *once_more.signed), again[A]),
    ):
        total = total_of(federation, *payloads.values(), payload)
        twice = SumRequest(request.expected, total, signed)
        assert_refused_anew(federation, twice, Duplicate, "a client stands in it twice")


def test_a_header_of_another_sender_does_not_hide_a_duplicate(federation):
    """A header relabelled after it was signed is not a second client."""
    request, payloads = collected(federation, A, B)
    relabelled = dataclasses.replace(
        request.signed[0], header=request.signed[0].header.model_copy(update={"sender": C})
    )
    total = total_of(federation, payloads[A], payloads[B], payloads[A])
    fake = SumRequest(request.expected, total, (*request.signed, relabelled))
    assert_refused(federation, fake, SignatureRefused, "not signed by")


def test_a_sum_is_opened_once(federation):
    """The difference of two totals would be one client's value."""
    assert_opened(federation, federation.collect().request(), A, B, C, D)
    for names in ((A, B, C), (A, B, C, D)):
        again = federation.collect(*names).request()
        assert_refused(federation, again, match="asked for once already")


def test_a_refusal_uses_up_the_one_answer(federation):
    """It tells of the total, too: whatever is asked of it again is refused, and not decrypted."""
    asked = noting_what_is_asked(federation.authority)
    request, payloads = collected(federation)
    false = dataclasses.replace(request, total=total_of(federation, payloads[A], payloads[B]))
    assert_refused(federation, false, TotalRefused, GARBAGE)
    assert len(asked) == 1
    assert_refused(federation, request, match="asked for once already")
    assert len(asked) == 1


def test_other_rounds_and_names_are_opened_on_their_own(federation):
    """The same sum of the next round, and another sum of this round, are no second opening."""
    other = MessageSpec("layer/variance", Kind.STATISTICS, federation.n_values)
    assert_opened(federation, federation.collect().request(), A, B, C, D)
    assert_opened(federation, federation.collect(round_number=2).request(), A, B, C, D)
    assert_opened(federation, federation.collect(spec=other).request(), A, B, C, D)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"round": 2}, Replayed),
        ({"name": "layer/variance"}, Relabelled),
        ({"run": "cd" * 32}, Replayed),
        ({"n_values": 4}, Relabelled),
    ],
)
def test_signatures_hold_for_what_they_name_alone(federation, changes, refusal):
    """Headers of this round do not open the same total as another round, name, run or size."""
    request = federation.collect().request()
    expected = dataclasses.replace(request.expected, **changes)
    relabelled = dataclasses.replace(request, expected=expected)
    authority = federation.authority_of()
    if expected.run != federation.run:
        assert_refused(federation, relabelled, OpeningRefused, "no card of", authority)
        cards = {
            name: client.send_cards(expected.run) for name, client in federation.clients.items()
        }
        assert not authority.take_cards(expected.run, cards)
    match = f"message of {next(iter(changes))}"
    assert_refused(federation, relabelled, refusal, match, authority)
    assert_opened(federation, request, A, B, C, D)


def test_headers_of_another_round_do_not_open_this_rounds_total(federation):
    """Old signatures lend nothing to a new total."""
    earlier = federation.collect(round_number=1).request()
    now = federation.collect(round_number=2).request()
    mixed = dataclasses.replace(now, signed=earlier.signed)
    assert_refused_anew(federation, mixed, Replayed, "message of round")
    mixed = dataclasses.replace(now, signed=(*now.signed[:3], earlier.signed[3]))
    assert_refused_anew(federation, mixed, Replayed, "message of round")


def test_signatures_over_messages_in_the_clear_open_no_ciphertext(federation):
    """Headers of a plain sum of the same round are no licence for a second, smaller total."""
    assert_opened(federation, federation.collect().request(), A, B, C, D)
    in_clear = federation.collect(A, B, C, spec=federation.plain_spec).request()
    smaller = federation.collect(A, B, C).request()
    fake = SumRequest(in_clear.expected, smaller.total, in_clear.signed)
    assert_refused(federation, fake, KeyMismatch)


def test_a_total_under_another_key_is_refused(federation, foreign_key_set):
    """All clients under a wrong key, with right labels, make a count that is none."""
    arriving = federation.server.start(1, federation.spec)
    for name in federation.clients:
        arriving.receive(federation.signed(name, federation.sealed(name, keys=foreign_key_set)))
    assert_refused(federation, arriving.request(), TotalRefused, GARBAGE)


def test_one_contribution_under_another_key_is_refused(federation, foreign_key_set):
    """A client that lies about its key adds garbage, and the authority sees that it is."""
    arriving = federation.collect(A, B, C)
    arriving.receive(federation.signed(D, federation.sealed(D, keys=foreign_key_set)))
    assert_refused(federation, arriving.request(), TotalRefused, GARBAGE)


@pytest.mark.parametrize(
    "cut", [0, 8, CIPHERTEXT_BYTES - 8, CIPHERTEXT_BYTES + 8, 2 * CIPHERTEXT_BYTES]
)
def test_a_total_of_another_length_is_refused(federation, cut):
    """The authority's parser too sees whole totals alone."""
    request = federation.collect().request()
    total = (request.total * 2)[:cut]
    cut_off = dataclasses.replace(request, total=total)
    assert_refused(
        federation, cut_off, TotalRefused, f"total of {len(total)} bytes, expected exactly"
    )


def test_a_total_that_is_no_ciphertext_is_refused(federation):
    """Random words, words out of the ring and zeros open to nothing."""
    request = federation.collect().request()
    modulus = ring().modulus
    words = np.random.default_rng(0).integers(0, modulus, (1, 1, 2048), dtype=np.uint64)
    too_large = words.copy()
    too_large[0, 0, 5] = modulus
    for content, match in (
        (too_large, "outside the ring"),
        (words, GARBAGE),
        (np.zeros_like(words), GARBAGE),
    ):
        fake = dataclasses.replace(request, total=packed(content, [modulus]))
        assert_refused_anew(federation, fake, TotalRefused, match)


@pytest.mark.parametrize("precision_bits", [8, 17, 26, 30])
def test_nothing_finer_than_the_declared_precision_is_released(federate, precision_bits):
    """Values have so many bits behind the leading one, the weight as many as noise leaves right."""
    federation = federate(n_values=2000)
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.05, 0.2, size=4)
    arriving = federation.server.start(1, federation.spec)
    for weight, name in zip(weights, federation.clients, strict=True):
        values = rng.normal(size=2000)
        arriving.receive(federation.signed(name, federation.sealed(name, values, weight)))
    policy = Policy(rules=(OpeningRule("*", precision_bits),))
    opened = federation.authority_of(policy).open(arriving.request())
    significant = np.ldexp(np.frexp(opened.values)[0], precision_bits + 1)
    weight_bits = TotalDecoder(SUMS, 4).weight_bits
    assert weight_bits == 25
    for scaled in (significant, np.ldexp(opened.weight, weight_bits)):
        np.testing.assert_array_equal(scaled, np.rint(scaled))
    assert abs(opened.weight - weights.sum()) <= 2.0 ** -(weight_bits + 1) + 1e-8
    assert opened.n_clients == 4


def test_a_coarse_precision_costs_no_more_than_it_says(federation):
    """With 8 bits behind the leading one, equal values of 1000 open to the next multiple of 2."""
    values = np.full(federation.n_values, 1000.0)
    weights = {A: 100 / 512, B: 101 / 512, C: 102 / 512}
    sealed = {name: federation.sealed(name, values, weight) for name, weight in weights.items()}
    opened = opened_by(federation, federation.authority.opener, sealed, precision_bits=8)
    np.testing.assert_allclose(opened.values, values, rtol=0, atol=1)


def test_a_total_in_the_clear_is_none_of_the_authoritys(federation):
    """The authority opens ciphertext; a plain sum is not what it takes for one."""
    request = federation.collect(spec=federation.plain_spec).request()
    match = "sent as 'plain/float64' under key none of epoch 0; the authority opens"
    assert_refused(federation, request, KeyMismatch, match)


def test_what_is_opened_is_what_the_clients_sent(federation):
    """A client's own tensors, through seal, sign, receive, add and open, come back as the mean."""
    values = torch.linspace(-8000, 8000, federation.n_values, dtype=torch.float64)
    arriving = federation.server.start(7, federation.spec)
    for client in federation.clients.values():
        assert isinstance(client, Client)
        arriving.receive(client.contribute(federation.run, 7, federation.spec, {"x": values}))
    opened = federation.authority.open(arriving.request())
    np.testing.assert_allclose(opened.values, values.numpy(), rtol=1e-7, atol=1e-7)


def test_the_opener_alone_refuses_with_a_typed_error(federation):
    """`OneTimeOpener.open` raises MessageRefused on what is no total of so many values."""
    opener, request = federation.authority.opener, federation.collect().request()
    nonces = {signed.header.sender: signed.header.nonce for signed in request.signed}
    total, about = request.total, request.expected.about
    for n_values in (4, 2047, 5000):
        with pytest.raises(MessageRefused):
            opener.open(total, dataclasses.replace(about, n_values=n_values), nonces, 26)
    for wrong in (b"", total[:-1], total + b"\x00", bytes(len(total)), b"\xff" * len(total)):
        with pytest.raises(MessageRefused):
            opener.open(wrong, about, nonces, 26)
    assert opener.open(total, about, nonces, 26).n_clients == 4


@pytest.mark.parametrize("lie", [-0.5 + 2.0**-25, -0.5 + 2.0**-20, -0.25])
def test_a_client_that_lies_about_its_weight_gets_no_unrounded_digits(federation, lie):
    """Whatever the weight is, nothing finer than the noise in a slot is released."""
    n_values = federation.n_values
    sealed = {name: federation.sealed(name, np.full(n_values, 1e-3), 0.25) for name in (A, B)}
    slots = np.zeros(2048)
    slots[-2:] = lie, 1.0
    sealed[C] = federation.sealed_slots(C, slots)
    try:
        opened = opened_by(federation, federation.authority.opener, sealed, precision_bits=24)
    except MessageRefused:
        assert lie == -0.5 + 2.0**-25  # less than a weight's last bit is no weight
        return
    finest_bits = Digits.of(SUMS, n_values).finest_bits + TotalDecoder(SUMS, 3).slot_bits
    finest = 2.0**-finest_bits
    in_sums = opened.values * 2.0 ** np.floor(np.log2(opened.weight)) / finest
    np.testing.assert_array_equal(in_sums, np.rint(in_sums))
    np.testing.assert_allclose(opened.values, 5e-4 / opened.weight, rtol=2.0**-24)


def test_a_refusal_does_not_say_which_bound_a_total_breaks(monkeypatch):
    """A server that adds to a total, and has it refused in any case, would read it bit by bit.

    A refused total holds no other list back, so it would read two of them. Nor does the time say
    which: all is looked at before it is refused.
    """
    spoilt, last = {}, Mock(wraps=decode_total.are_in_range)
    monkeypatch.setattr(decode_total, "are_in_range", last)
    for what, place in {"values": (0, 0), "empty": (0, 1500), "weight": (0, -2)}.items():
        slots = np.zeros((1, 2048))
        slots[:, -2:] = 1.0, 3.0
        slots[place] = 1e7 if what == "values" else 1.5
        with pytest.raises(MessageRefused) as caught:
            TotalDecoder(SUMS, 3).decode(slots, 200, 24)
        spoilt[what] = str(caught.value)
    assert set(spoilt.values()) == {SPOILT}
    assert last.call_count == len(spoilt)


@pytest.mark.parametrize("count", [1, 2, 4, 10_426, 3.002, np.nan])
def test_a_refusal_of_a_false_count_does_not_depend_on_what_else_is_in_the_total(count):
    """A server that adds one to the count, and so much to the weight, would read the weight."""
    refused = set()
    for what in (0.0, 0.3, 5.0):
        slots = np.zeros((1, 2048))
        slots[0] = what
        slots[0, -1] = count
        with pytest.raises(MessageRefused) as caught:
            TotalDecoder(SUMS, 3).decode(slots, 200, 24)
        refused.add(str(caught.value))
    assert refused == {UNCOUNTED}


def test_a_false_weight_is_refused_in_the_words_of_a_false_value(federate):
    """The request says what its clients weigh, and the server may say what it likes."""
    federation = federate()
    arriving = federation.server.start(1, federation.spec)
    for client in federation.clients.values():
        values = {"x": torch.zeros(federation.spec.n_values)}
        arriving.receive(client.contribute(federation.run, 1, federation.spec, values))
    lying = dataclasses.replace(arriving.request(), due=DueWeight(5.0))
    with pytest.raises(TotalRefused, match=re.escape(SPOILT)):
        federation.authority.open(lying)


def test_a_total_that_wraps_is_not_released(federation):
    """Clients whose weighted values overflow the ring are refused, and nothing is shown."""
    slots = np.full(2048, 7000.0)
    slots[-2:] = 0.2, 1.0
    sealed = {name: federation.sealed_slots(name, slots) for name in (A, B, C)}
    with pytest.raises(MessageRefused, match="a client sent rubbish"):
        opened_by(federation, federation.authority.opener, sealed, 24)


def test_no_ciphertext_of_a_message_may_count_or_weigh_otherwise(federate):
    """A client whose second ciphertext counts twice, or weighs more, spoils the total."""
    federation = federate(n_values=3000)
    slots = np.zeros((2, 2048))
    slots[:, -2:] = 0.1, 1.0
    for column, value, match in ((-1, 1.0, ""), (-1, 2.0, GARBAGE), (-2, 0.2, "weights")):
        slots[1, -2:] = 0.1, 1.0
        slots[1, column] = value
        sealed = {name: federation.sealed(name) for name in (A, B)}
        sealed[C] = federation.sealed_slots(C, *slots)
        if not match:
            opened = opened_by(federation, federation.authority_of().opener, sealed, 24)
            assert opened.n_clients == 3
            continue
        with pytest.raises(MessageRefused, match=match):
            opened_by(federation, federation.authority_of().opener, sealed, 24)


def test_a_run_begun_anew_without_a_client_is_refused(federate):
    """The same settings and seeds without one or two of them: the difference would be theirs."""
    history = OpeningHistory("settings")
    for run, names, opens in (
        ("aa" * 32, (A, B, C, D), True),
        ("bb" * 32, (A, B, C, D), True),
        ("cc" * 32, (A, B, C), False),
    ):
        federation = federate(run=run)
        opener = federation.authority.opener
        authority = Authority(opener, federation.roster, Policy(), federation.log.append, history)
        asked = noting_what_is_asked(authority)
        request = federation.collect(*names).request()
        if opens:
            assert authority.open(request).n_clients == len(names)
            assert len(asked) == 1
            continue
        match = "would show the values of client-4 .* begin with another run.seed"
        assert_refused(federation, request, match=match, authority=authority)
    assert asked == []


HERE = "aa" * 32, 1, "x/mean"
ELSEWHERE = "bb" * 32, 1, "x/mean"


@pytest.mark.parametrize(
    ("before", "now", "opens"),
    [
        ("abcde", "abcde", True),
        ("abcde", "abcd", False),
        ("abcd", "abcde", False),
        ("abcde", "abcxe", False),
        ("abcde", "abcxy", True),
        ("abcde", "abfgh", True),
        ("abcdef", "abc", True),
    ],
)
def test_lists_of_two_runs_differ_by_min_clients_or_not_at_all(before, now, opens):
    """Fewer than three names could be worked out of the difference."""
    history = OpeningHistory()
    history.release(HERE, on_terms(before))
    if opens:
        history.require_alike(ELSEWHERE, on_terms(now), 3)
    else:
        with pytest.raises(OpeningRefused, match="would show the values of"):
            history.require_alike(ELSEWHERE, on_terms(now), 3)


@pytest.mark.parametrize(
    ("opened", "now", "shown"),
    [
        (("abcdef", "abcghi"), "defjkl", ""),
        (("abcdef", "defghi"), "abcghi", ""),
        (("abcdef", "abcghi"), "defghx", ""),
        (("abcdef", "abc"), "defg", "g"),
        (("abcd", "abef", "cdgh"), "efghx", "x"),
        (("abcdefg", "abchijk", "defhijkl"), "abcdefhijkl", "g, l"),  # with a coefficient of 2
    ],
)
def test_sums_and_differences_of_many_lists_show_min_clients_or_nobody(opened, now, shown):
    """Each pair of lists differs by three names or more, and all together by fewer."""
    history = OpeningHistory()
    for number, names in enumerate(opened):
        history.release((f"{number:064x}", 1, "x/mean"), on_terms(names))
    if not shown:
        history.require_alike(ELSEWHERE, on_terms(now), 3)
        return
    with pytest.raises(OpeningRefused, match=f"show the values of {shown} "):
        history.require_alike(ELSEWHERE, on_terms(now), 3)


def test_no_combination_that_is_refused_to_nobody_shows_fewer():
    """All rational combinations of random lists, against those that are looked at."""
    rng = np.random.default_rng(0)
    n_shown = 0
    for _ in range(200):
        member = rng.random((int(rng.integers(2, MOST_LISTS + 1)), 7)) < 0.6
        lists = {frozenset(np.array(list("abcdefg"))[row].tolist()) for row in member if row.any()}
        rows = np.array([[name in of for name in "abcdefg"] for of in lists], dtype=float)
        n_fewest = next(
            size
            for size in range(1, 8)
            for few in map(list, combinations(range(7), size))
            if np.linalg.matrix_rank(rows) > np.linalg.matrix_rank(np.delete(rows, few, axis=1))
        )
        assert len(fewest(lists)) == n_fewest
        n_shown += n_fewest < 3
    assert 20 < n_shown < 180


@pytest.mark.parametrize("changed", [Terms(times=2, since=3), Terms(times=1, since=2)])
def test_no_client_counts_on_other_terms_in_another_run(changed):
    """Twice, it would show its values; from another round, what that changes in them."""
    rows = []
    history, terms = OpeningHistory("", rows.append), dict.fromkeys("abcdef", Terms(1, 3))
    history.release(HERE, terms)
    again = OpeningHistory("")
    again.take_up(json.loads(json.dumps(rows)))
    again.require_alike(ELSEWHERE, terms, 3)
    with pytest.raises(
        OpeningRefused, match="in them b counted another number of times, or went on"
    ):
        again.require_alike(ELSEWHERE, terms | {"b": changed}, 3)


def test_the_rows_of_an_older_release_still_count():
    """They have names without terms."""
    history = OpeningHistory("one")
    history.take_up([(*HERE, "one", list("abcd"))])
    history.require_alike(ELSEWHERE, dict.fromkeys("abcd", Terms(2, 5)), 3)
    with pytest.raises(OpeningRefused, match="show the values of d"):
        history.require_alike(ELSEWHERE, on_terms("abc"), 3)


def test_a_total_has_four_lists_at_most():
    """More are not compared."""
    history = OpeningHistory()
    for i, names in enumerate(("abcdef", "ghijkl", "mnopqr", "stuvwx")):
        history.require_alike((f"{i:064x}", 1, "x/mean"), on_terms(names), 3)
        history.release((f"{i:064x}", 1, "x/mean"), on_terms(names))
    history.require_alike(("f" * 64, 1, "x/mean"), on_terms("ghijkl"), 3)
    with pytest.raises(OpeningRefused, match="at this model, and 4 lists at most may be opened"):
        history.require_alike(("f" * 64, 1, "x/mean"), on_terms("123456"), 3)


@pytest.mark.parametrize("lie", [Terms(times=2, since=4), Terms(times=1, since=3)])
def test_the_authority_is_told_the_terms_that_a_client_has_signed(federate, lie):
    """A server that says others is refused, by the client's own signature."""
    federation = federate()
    told, terms = "ab" * 32, dict.fromkeys((A, B, C), Terms(times=1, since=4))
    request = federation.collect(A, B, C, told=told, terms=terms).request()
    assert_refused(
        federation,
        dataclasses.replace(request, terms=terms | {B: lie}),
        OtherModel,
        match="message of state",
    )
    assert federation.authority_of().open(request).n_clients == 3


def test_no_client_counts_more_than_once_in_a_sealed_total(federate):
    """Of three that count 20, 1 and 1 times the total would be the first one's, by nine tenths."""
    federation, told = federate(), "ab" * 32
    for number, times in enumerate(({A: 20}, {B: 2}, {C: 0}), 1):
        terms = {name: Terms(times.get(name, 1)) for name in (A, B, C)}
        request = federation.collect(A, B, C, told=told, terms=terms, round_number=number).request()
        assert_refused(federation, request, OpeningRefused, match="each client counts once")


def on_terms(names):
    """Each counts once."""
    return dict.fromkeys(names, Terms())


@pytest.mark.parametrize("first", ["update/parameters", "1/gradient", "0/mean"])
def test_a_rounds_totals_are_of_the_same_clients(first):
    """What one sends in one of them may follow from the other, as SCAFFOLD's control variate."""
    rows = []
    history, run = OpeningHistory("one", rows.append), "aa" * 32
    parameters, control = (run, 1, first), (run, 1, "update/control")
    history.release(parameters, on_terms("abcde"))
    again = OpeningHistory("one", rows.append)
    again.take_up(rows)
    for of in (history, again):
        of.require_alike(control, on_terms("abcde"), 3)
        with pytest.raises(
            OpeningRefused, match="another total of this round was of other clients"
        ):
            of.require_alike(control, on_terms("abcd"), 3)
        with pytest.raises(OpeningRefused, match="would show the values of e"):
            of.require_alike(("bb" * 32, 1, "update/control"), on_terms("abcd"), 3)
        of.require_alike((run, 2, "update/control"), on_terms("abcd"), 3)
        of.require_alike((run, 1, "score/mean"), on_terms("abcd"), 3)
        with pytest.raises(OpeningRefused, match="was of other clients"):
            of.require_alike((run, 1, "score/gradient"), on_terms("abcd"), 3)


def test_other_settings_rounds_and_names_have_lists_of_their_own():
    """With another seed, all values are others."""
    rows = []
    history = OpeningHistory("one", rows.append)
    history.release(HERE, on_terms("abcd"))
    other = OpeningHistory("other", rows.append)
    other.take_up(rows)
    other.require_alike(ELSEWHERE, on_terms("abc"), 3)
    for run, number, name in ((ELSEWHERE[0], 2, "x/mean"), (ELSEWHERE[0], 1, "score/mean")):
        history.require_alike((run, number, name), on_terms("abc"), 3)


M, N = "5e" * 32, "5f" * 32
"""Digests of two models."""


def at(model, *rounds, rows=None, most_lists=MOST_LISTS):
    """A history in which one total of each of these rounds was opened, of these names."""
    history = OpeningHistory("one", (rows if rows is not None else []).append)
    for number, names in enumerate(rounds, 1):
        asked, terms = ("aa" * 32, number, "update/parameters"), on_terms(names)
        history.require_alike(asked, terms, 3, most_lists, model)
        history.release(asked, terms, model)
    return history


@pytest.mark.parametrize("name", ["update/parameters", "1/mean"])
@pytest.mark.parametrize(("run", "number"), [("aa" * 32, 2), ("aa" * 32, 9), ("bb" * 32, 4)])
def test_rounds_and_sessions_at_one_model_are_held_against_each_other(run, number, name):
    """After a passed round the next one has the same model, and what draws nothing is the same."""
    rows = []
    at(M, "abcdef", rows=rows)
    history = OpeningHistory("one")
    history.take_up(json.loads(json.dumps(rows)))
    asked = run, number, name
    with pytest.raises(OpeningRefused, match=r"or at this model, .* show the values of f"):
        history.require_alike(asked, on_terms("abcde"), 3, model=M)
    for names in ("abcdef", "abc", "abcghi"):
        history.require_alike(asked, on_terms(names), 3, model=M)
    for more in ({"model": N}, {"model": ""}):
        history.require_alike(asked, on_terms("abcde"), 3, **more)
    history.require_alike((run, number, "score/mean"), on_terms("abcde"), 3, model=M)
    other = OpeningHistory("other settings")
    other.take_up(rows)
    with pytest.raises(OpeningRefused, match=r"or at this model, .* show the values of f"):
        other.require_alike(asked, on_terms("abcde"), 3, model=M)  # settings as wait_s change none
    other.require_alike(asked, on_terms("abcde"), 3, model=N)


def test_lists_at_one_model_and_those_of_one_round_are_held_against_each_other_together():
    """Each differs by three from the new one, and one and the other less it are one client."""
    history = at(M, "abcdefg")
    elsewhere = ("bb" * 32, 5, "update/parameters"), on_terms("abcd")
    history.release(*elsewhere, N)
    history.require_alike(("cc" * 32, 5, "x/mean"), on_terms("efg"), 3, model=N)
    with pytest.raises(OpeningRefused, match="show the values of h"):
        history.require_alike(("cc" * 32, 5, "x/mean"), on_terms("efgh"), 3, model=M)


@pytest.mark.parametrize("changed", [Terms(times=2), Terms(since=1)])
def test_no_client_counts_on_other_terms_at_one_model(changed):
    """Nor in one session: the difference would be its values, or what that changes in them."""
    history = at(M, "abcdef")
    asked, terms = ("aa" * 32, 2, "update/parameters"), on_terms("abcdef") | {"b": changed}
    with pytest.raises(OpeningRefused, match="in them b counted another number of times, or went"):
        history.require_alike(asked, terms, 3, model=M)
    history.require_alike(asked, terms, 3, model=N)


def test_of_officers_who_may_be_away_all_totals_at_a_model_have_one_list():
    history = at(M, "abcdef", "abcdef", most_lists=1)
    with pytest.raises(OpeningRefused, match="at this model, and 1 list at most"):
        at(M, "abcdef", "abc", most_lists=1)
    history.require_alike(("aa" * 32, 3, "1/mean"), on_terms("abc"), 3, 1, N)


def test_a_model_has_four_lists_at_most():
    history = at(M, "abcdef", "ghijkl", "mnopqr", "stuvwx", "ghijkl")
    with pytest.raises(OpeningRefused, match="at this model, and 4 lists at most"):
        history.require_alike(("aa" * 32, 6, "1/mean"), on_terms("yz1234"), 3, model=M)


def test_a_total_that_was_refused_holds_no_other_back_at_its_model():
    """Nobody has seen its values. One that was opened in the same round still does."""
    rows = []
    history = at(M, "abcdef", rows=rows)
    mean = ("aa" * 32, 2, "1/mean"), on_terms("abcxyz")
    update = ("aa" * 32, 2, "update/parameters"), on_terms("abcxyz")
    for total in (mean, update):
        history.require_alike(*total, 3, model=M)
        history.release(*total, M)
    again, fewer = OpeningHistory("one"), (("aa" * 32, 3, "1/mean"), on_terms("abcxy"))
    for total, held in ((update, True), (mean, False)):
        history.refuse(*total, M)
        again.take_up(json.loads(json.dumps(rows)))
        for of in (history, again):
            if held:
                with pytest.raises(OpeningRefused, match="show the values of z"):
                    of.require_alike(*fewer, 3, model=M)
            else:
                of.require_alike(*fewer, 3, model=M)
        again = OpeningHistory("one")
    with pytest.raises(OpeningRefused, match="show the values of z"):  # its round, elsewhere
        history.require_alike(("bb" * 32, 2, "1/mean"), on_terms("abcxy"), 3, model=N)


@pytest.mark.parametrize("needed", [1, 3])
def test_the_authority_forgets_refused_totals_and_officers_do_not(federate, needed):
    """These have told the sum of keys, by which whoever asks reads what it likes."""
    keys = KeySet.ephemeral(Quorum(needed, needed))
    federation, rows = federate(keys=keys), []
    history = OpeningHistory("one", rows.append)
    about = federation.roster, Policy(), federation.log.append, history
    cards = {name: of.send_cards(federation.run) for name, of in federation.clients.items()}
    arriving = federation.server.start(1, federation.spec, model=M)
    for name in federation.clients:
        about_1 = federation.run, 1, federation.spec, {"x": torch.zeros(5)}
        arriving.receive(federation.clients[name].contribute(*about_1, model=M))
    request = arriving.request()
    spoilt = dataclasses.replace(request, total=bytes(len(request.total)))
    if needed == 1:
        authority = Authority(keys.opener(), *about)
        authority.take_cards(federation.run, cards)
        with pytest.raises(TotalRefused):
            authority.open(spoilt)
    else:
        officer = CheckingOfficer(keys.officers()[0], *about)
        officer.take_cards(federation.run, cards)
        officer.key_sums(spoilt)
    assert [row[-1] for row in rows if len(row) == 7] == ([False, True] if needed == 1 else [False])
    three = (federation.run, 2, federation.spec.name), on_terms((A, B, C))
    if needed == 1:
        history.require_alike(*three, 3, model=M)
    else:
        with pytest.raises(OpeningRefused, match="show the values of client-4"):
            history.require_alike(*three, 3, model=M)


@pytest.mark.parametrize("field", ["state", "model"])
def test_a_header_that_names_another_model_is_refused(federate, field):
    """By the server and by the authority: all of a total began with the same."""
    federation = federate()
    honest = {"state": M, "model": M}
    arriving = federation.server.start(1, federation.spec, Terms().bind(M), model=M)
    message = federation.signed(
        A, federation.sealed(A), **(honest | {"state": Terms().bind(Terms().bind(M)), field: N})
    )
    with pytest.raises(OtherModel, match=f"message of {field}"):
        arriving.receive(message)
    request = federation.collect().request()
    expected = dataclasses.replace(request.expected, **{field: M})
    other = dataclasses.replace(request, expected=expected)
    assert_refused(federation, other, OtherModel, "expected")


def test_noise_that_hides_clients_is_opened_in_eight_sessions():
    """The mean over n of them has an n-th of its variance. Rounds of one session are in ε."""
    rows, noisy = [], Policy(noise_hides_clients=True)
    assert noisy.noise_hides_clients
    for session in range(MOST_SESSIONS):
        history = OpeningHistory("one", rows.append)
        history.take_up(list(rows))
        for number in (1, 2):
            asked = f"{session:064x}", number, "update/parameters"
            history.require_sessions_left(asked, M, MOST_SESSIONS)
            history.release(asked, on_terms("abcd"), M)
    history.require_sessions_left((f"{3:064x}", 3, "update/parameters"), M, MOST_SESSIONS)
    for number, model in ((3, M), (2, N), (1, M)):
        with pytest.raises(OpeningRefused, match="opened in 8 runs of the same settings"):
            history.require_sessions_left(("f" * 64, number, "x/mean"), model, MOST_SESSIONS)
    history.require_sessions_left(("f" * 64, 3, "x/mean"), N, MOST_SESSIONS)


@pytest.mark.parametrize(("needed", "n_officers"), [(1, 1), (2, 3), (3, 5), (4, 5), (4, 7)])
@pytest.mark.parametrize("what", ["scores", "totals"])
def test_officers_together_answer_in_eight_sessions(needed, n_officers, what):
    """A server that asks them by turns has no more: each counts for itself."""
    histories = [OpeningHistory("one") for _ in range(n_officers)]
    most, n_opened, asked_of = MOST_SESSIONS * needed // n_officers, 0, [0] * n_officers
    for session in range(60):
        run = f"{session:064x}"
        by_use = sorted(range(n_officers), key=asked_of.__getitem__)[:needed]
        try:
            for officer in by_use:
                history, asked = histories[officer], (run, 1, "update/parameters")
                if what == "scores":
                    history.claim_scores(run, 1, "5e", ["a"], most)
                else:
                    history.require_sessions_left(asked, M, most)
                    history.release(asked, on_terms("abcd"), M)
                asked_of[officer] += 1
        except OpeningRefused:
            break
        n_opened += 1
    assert MOST_SESSIONS // 2 <= n_opened <= MOST_SESSIONS


def test_each_client_has_one_score_a_round_also_after_a_restart():
    """And where one of a list was opened before, none of the others' is used up."""
    rows = []
    history = OpeningHistory("one", rows.append)
    history.claim_scores("aa", 1, "5e", ["b", "a"])
    for _ in range(2):
        with pytest.raises(OpeningRefused, match=r"opened once already, of a, b$"):
            history.claim_scores("aa", 1, "5e", ["c", "b", "a"])
        written = list(rows)
        assert written == [("aa", 1, "profile/score", "one", "5e", ["a", "b"])]
        history = OpeningHistory("other settings", rows.append)
        history.take_up(written)
    history.claim_scores("aa", 1, "5e", ["c"])
    history.claim_scores("aa", 2, "5f", ["a"])
    history.claim_scores("bb", 1, "5f", ["a"])
    history.claim(("aa", 1, "x/mean"))
    assert history.n_asked("aa") == 1  # scores are no totals of the run


def test_scores_of_a_round_are_of_profiles_under_one_model_also_after_a_restart():
    """Else the server chooses for each client what is profiled of it."""
    rows = []
    history = OpeningHistory("one", rows.append)
    history.claim_scores("aa", 1, "5e", ["a"])
    again = OpeningHistory("one", rows.append)
    again.take_up(list(rows))
    for of in (history, again):
        with pytest.raises(OpeningRefused, match="were made under another model"):
            of.claim_scores("aa", 1, "5f", ["b"])
    assert len(rows) == 1
    again.claim_scores("aa", 1, "5e", ["b"])


def test_a_clients_score_of_a_round_is_opened_in_eight_runs_of_the_same_settings():
    """Each is another number of the same profile; the restart of a process forgets none."""
    rows = []
    for number in range(MOST_SESSIONS):
        history = OpeningHistory("one", rows.append)
        history.take_up(list(rows))
        history.claim_scores(f"{number:064x}", 1, "5e", ["a", "b"])
    with pytest.raises(OpeningRefused, match="opened in 8 runs of the same settings, of a: begin"):
        history.claim_scores("f" * 64, 1, "5e", ["a", "c"])
    history.claim_scores("f" * 64, 1, "5e", ["c"])
    history.claim_scores("f" * 64, 2, "5e", ["a"])
    OpeningHistory("other", rows.append).claim_scores("e" * 64, 1, "5e", ["a"])


def test_a_history_is_taken_up_with_rows_of_every_release():
    """Those of before know no signers; all are claimed."""
    rows = []
    history = OpeningHistory("one", rows.append)
    history.claim(HERE)
    history.release(HERE, on_terms("dcba"))
    assert rows == [HERE, (*HERE, "one", [(name, 1, 0) for name in "abcd"], "", False)]
    again = OpeningHistory("one")
    scores = ("dd", 1, "profile/score", ["a"])
    without_a_model = (*HERE, "one", [(name, 1, 0) for name in "abcd"])
    again.take_up([("cc" * 32, 3, "y/mean"), scores, HERE, without_a_model])
    with pytest.raises(OpeningRefused, match="opened once already, of a"):
        again.claim_scores("dd", 1, "5e", ["a"])
    for asked in (HERE, ("cc" * 32, 3, "y/mean")):
        with pytest.raises(OpeningRefused, match="asked for once already"):
            again.claim(asked)
    with pytest.raises(OpeningRefused, match="show the values of d"):
        again.require_alike(ELSEWHERE, on_terms("abc"), 3)

"""Each way to misuse a signed contribution has its own error, at the server and at the authority.

The server gets the message itself; the authority gets its header in a server's list, beside those
of three honest clients and the sum of all four.
"""

from __future__ import annotations

import dataclasses
import inspect
from functools import partial

import pytest
from asked_officers import noting_what_is_asked
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefl import errors
from securefl.errors import (
    Duplicate,
    KeyMismatch,
    MessageRefused,
    OtherModel,
    Relabelled,
    Replayed,
    SecureFLError,
    SenderExpired,
    SenderRevoked,
    SignatureRefused,
    TooFewContributions,
    UnknownSender,
)
from securefl.exchange.sums import Sender
from securefl.federation.message import Roster, encode_message, header_for, split_message
from securefl.federation.server import ServerSum

HONEST, FAULTY = ("client-1", "client-2", "client-3"), "client-4"


class Attempt:
    """What the faulty client sends, and what server and authority believe of clients."""

    def __init__(self, federation):
        self.federation = federation
        self.clients = federation.clients
        self.keys = {name: client.identity for name, client in self.clients.items()}
        self.gone = {}
        self.sealed = federation.sealed(FAULTY)

    def message(self, identity=None, /, **changes):
        header = header_for(self.federation.expected(), FAULTY, self.sealed)
        signer = identity or self.clients[FAULTY].signing_key
        return encode_message(header.model_copy(update=changes), self.sealed.payload, signer)

    @property
    def roster(self):
        known = {name: key for name, key in self.keys.items() if name not in self.gone}
        by_reason = {
            reason: [name for name, why in self.gone.items() if why == reason]
            for reason in ("expired", "revoked")
        }
        return Roster(known, **by_reason)


def forgotten(attempt, why=None):
    """A message as it should be, of a client that may not take part."""
    if why is None:
        del attempt.keys[FAULTY]
    else:
        attempt.gone[FAULTY] = why
    return attempt.message()


ATTEMPTS = {
    "of another round": (Replayed, lambda a: a.message(round=2)),
    "of the round before": (Replayed, lambda a: a.message(round=0)),
    "of another run": (Replayed, lambda a: a.message(run="cd" * 32)),
    "of another name": (Relabelled, lambda a: a.message(name="layer/variance")),
    "of another size": (Relabelled, lambda a: a.message(n_values=6)),
    "of another model": (OtherModel, lambda a: a.message(state="ef" * 32)),
    "of another form": (Relabelled, lambda a: a.message(form="plain/float64")),
    "of another client": (UnknownSender, lambda a: a.message(sender="client-9")),
    "of a client that nobody knows": (UnknownSender, forgotten),
    "of an expired client": (SenderExpired, partial(forgotten, why="expired")),
    "of a revoked client": (SenderRevoked, partial(forgotten, why="revoked")),
    "in an absent client's name": (SignatureRefused, lambda a: a.message(sender="client-5")),
    "signed by a stranger": (SignatureRefused, lambda a: a.message(Ed25519PrivateKey.generate())),
    "under another key": (KeyMismatch, lambda a: a.message(key_id="ef" * 32)),
    "under no key": (KeyMismatch, lambda a: a.message(key_id="", epoch=0)),
    "of the next epoch": (KeyMismatch, lambda a: a.message(epoch=2)),
    "of the epoch before": (KeyMismatch, lambda a: a.message(epoch=0)),
}


@pytest.fixture
def attempt(federate):
    return Attempt(federate(n_clients=5))


def at_the_server(attempt, message):
    """The honest messages are added, then this one; what is refused changes nothing."""
    federation = attempt.federation
    start = federation.server.start(1, federation.spec)
    arriving = ServerSum(attempt.roster, start._expected, start._n_bytes, start._running)
    for name in HONEST:
        arriving.receive(federation.message(name))
    before = arriving.request()
    try:
        arriving.receive(message)
    except MessageRefused:
        assert arriving.request() == before
        raise


def at_the_authority(attempt, message):
    """A server that checks nothing adds all four, and passes the headers on as they are."""
    federation = attempt.federation
    arriving = federation.collect(*HONEST)
    header, payload = split_message(message, len(attempt.sealed.payload))
    honest, total = arriving.request(), arriving._running.plus(payload).total()
    request = dataclasses.replace(honest, total=total, signed=(*honest.signed, header))
    asked_of(federation, request, attempt.roster)


def asked_of(federation, request, roster=None):
    """Refused by an authority, which logs why, asks no officer and opens nothing.

    It has cards of all that are listed, whoever they are: what refuses is the signature.
    """
    authority = federation.authority_of(federation.authority.policy, roster)
    run, opener = request.expected.run, authority.opener
    for name in opener.without_card(run, request.signers):
        cards = federation.keys.public.cards(run, Sender(name, bytes(32)))
        opener.take_cards(run, name, cards)
    asked = noting_what_is_asked(authority)
    try:
        authority.open(request)
    except SecureFLError as error:
        why = str(error)
        assert asked == []
        assert (federation.log[-1].refused, federation.log[-1].n_clients) == (why, 0)
        raise


@pytest.mark.parametrize("ask", [at_the_server, at_the_authority])
@pytest.mark.parametrize("kind", ATTEMPTS)
def test_each_misuse_is_refused_with_its_own_error(attempt, kind, ask):
    """By the server, and by an authority whose server has let it through."""
    refusal, misuse = ATTEMPTS[kind]
    message = misuse(attempt)
    with pytest.raises(MessageRefused) as caught:
        ask(attempt, message)
    assert caught.type is refusal


@pytest.mark.parametrize("again", ["the same bytes", "another message"])
def test_a_duplicate_is_refused_as_one(attempt, again):
    """A client that contributes twice counts once at the server, and spoils a list of signers."""
    federation = attempt.federation
    first = federation.message("client-1")
    second = first if again == "the same bytes" else federation.message("client-1")
    arriving = federation.collect(*HONEST[1:])
    arriving.receive(first)
    before = arriving.request()
    with pytest.raises(MessageRefused) as caught:
        arriving.receive(second)
    assert caught.type is Duplicate
    assert arriving.request() == before
    header, _ = split_message(second, len(attempt.sealed.payload))
    twice = dataclasses.replace(before, signed=(*before.signed, header))
    with pytest.raises(MessageRefused) as caught:
        asked_of(federation, twice)
    assert caught.type is Duplicate


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"round": 2}, Replayed),
        ({"run": "cd" * 32}, Replayed),
        ({"name": "layer/variance"}, Relabelled),
        ({"n_values": 6}, Relabelled),
        ({"state": "ef" * 32}, OtherModel),
        ({"form": "match/linear"}, KeyMismatch),
        ({"key_id": "ef" * 32}, KeyMismatch),
        ({"epoch": 2}, KeyMismatch),
    ],
    ids=str,
)
def test_a_server_that_relabels_a_sum_is_refused_by_the_authority(attempt, changes, refusal):
    """Honest headers open the total for nothing but what they name."""
    request = attempt.federation.collect().request()
    expected = dataclasses.replace(request.expected, **changes)
    with pytest.raises(MessageRefused) as caught:
        asked_of(attempt.federation, dataclasses.replace(request, expected=expected))
    assert caught.type is refusal


def test_without_any_misuse_both_accept(attempt):
    """So the tests above can fail."""
    message = attempt.message()
    at_the_server(attempt, message)
    at_the_authority(attempt, message)
    assert attempt.federation.log[-1].n_clients == 4


def test_who_is_gone_does_not_make_up_the_number(attempt):
    """Of three signers one whose certificate was revoked leaves two, and the total stays shut."""
    attempt.gone["client-3"] = "revoked"
    request = attempt.federation.collect(*HONEST).request()
    with pytest.raises(SenderRevoked):
        asked_of(attempt.federation, request, attempt.roster)
    fewer = dataclasses.replace(request, signed=request.signed[:2])
    with pytest.raises(TooFewContributions):
        asked_of(attempt.federation, fewer, attempt.roster)


def test_the_tree_of_errors_is_as_it_is_drawn():
    """In the module's docstring: every error with its parent, in the order of the file."""
    drawn, parents = {}, []
    for line in inspect.getdoc(errors).splitlines():
        name = line.lstrip("│ ├└─").split(" ")[0]
        if (
            name.isidentifier()
            and hasattr(errors, name)
            and isinstance(getattr(errors, name), type)
        ):
            depth = (len(line) - len(line.lstrip("│ ├└─"))) // 4
            parents[depth:] = [name]
            drawn[name] = parents[depth - 1] if depth else "Exception"
    classes = {
        name: found
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, SecureFLError)
    }
    assert drawn == {name: found.__bases__[0].__name__ for name, found in classes.items()}

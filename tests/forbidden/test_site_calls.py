"""What a site says is refused by its kind and length, whatever has carried it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from securefl.algorithms.algorithm import update_messages
from securefl.errors import PeerError
from securefl.exchange.plain import PlainChannel
from securefl.federation.client import Client
from securefl.federation.clients_round import RoundContext
from securefl.federation.message import Roster
from securefl.federation.query import Query
from securefl.federation.round import ServerRound
from securefl.federation.server import Server
from securefl.federation.site import Answers, Ask, Begin, Counted, Done, Kept
from securefl.federation.transport import Lost
from securefl.network import bodies
from securefl.network.frames import SMALL, Frame
from securefl.network.site_calls import SiteCalls
from securefl.types import Kind, Plan, State

RUN, NAME = "ab" * 32, "alice"
PLAIN = PlainChannel("float64")
STATE = State(
    0,
    {
        kind: {"w": torch.zeros(100, dtype=torch.float64)}
        for kind in (Kind.PARAMETERS, Kind.STATISTICS)
    },
)
PLAN = Plan(update=update_messages(STATE.tensors))
CLIENT = Client(NAME, 1.0, dict.fromkeys(Kind, PLAIN))
SERVER = Server(RUN, Roster({NAME: CLIENT.identity}), dict.fromkeys(Kind, PLAIN), plain=PLAIN)
BEGIN = Begin(RUN, STATE, {NAME: 1}, {NAME: 0})
LEFT = bodies.reason("no more")


def ongoing():
    return ServerRound(SERVER, RoundContext(RUN, STATE, PLAN, {NAME: 1}))


def training(now=None):
    return SiteCalls(SERVER).of({NAME: BEGIN}, now or ongoing())[NAME]


def question(size):
    asks = Ask(RUN, Query("loss", 1.0), STATE, [NAME], {NAME: 0})
    return SiteCalls(SERVER, lambda *_: size).of({NAME: asks}, None)[NAME]


def message(now, spec):
    values = {"w": torch.ones(100, dtype=torch.float64)}
    about = RUN, 1, spec, values, 1, now.received_by(NAME)
    return CLIENT.contribute(*about, model=now.context.model)


def begins(call, frame, start, n_bytes):
    return call.begins((bytes([frame]), start), 1 + n_bytes)


@pytest.mark.parametrize("call", [training, lambda: question(8)], ids=["training", "a question"])
@pytest.mark.parametrize(
    ("kind", "n_bytes", "why"),
    [
        (Frame.LEAVE, SMALL + 1, "LEAVE of 4097 bytes, at most 4096 fit"),
        (Frame.DONE, 1, "DONE of 1 bytes, at most 0 fit"),
        (Frame.MESSAGE, 2**20, "MESSAGE of 1048576 bytes, at most"),
        (Frame.ROUND, 0, "sent a frame of kind 3, expected MESSAGE or LEAVE or DONE"),
        (255, 0, "sent a frame of kind 255, expected MESSAGE or LEAVE or DONE"),
    ],
)
def test_a_frame_is_refused_by_its_beginning(call, kind, n_bytes, why):
    with pytest.raises(PeerError, match=f"{NAME}: {why}"):
        begins(call(), kind, b"", n_bytes)


def test_a_question_takes_as_many_bytes_as_its_answer_has():
    call = question(8)
    assert begins(call, Frame.MESSAGE, bytes(8), 8) is None
    assert call.read((bytes([Frame.MESSAGE]), bytes(8))) == Answers({NAME: bytes(8)})


def test_who_leaves_says_why():
    call = training()
    assert begins(call, Frame.LEAVE, LEFT, len(LEFT)) is None
    said = call.read((bytes([Frame.LEAVE]), LEFT))
    assert said == Lost("alice: leaves the round: no more")


def test_messages_of_an_update_are_one_reply_and_nothing_of_them_is_held():
    now = ongoing()
    call, sent = training(now), [message(now, spec) for spec in PLAN.update]
    for body in sent[:-1]:
        begins(call, Frame.MESSAGE, body, len(body))
        assert call.read((bytes([Frame.MESSAGE]), body)) is None
    begins(call, Frame.MESSAGE, sent[-1], len(sent[-1]))
    assert call.read((bytes([Frame.MESSAGE]), sent[-1])) == Done({NAME: sent})
    assert not any(held is body for held in gc.get_referents(call.messages.sent) for body in sent)


def says_nothing(call, kind):
    begins(call, kind, b"", 0)
    call.read((bytes([kind]), b""))


@pytest.mark.parametrize("kind", [Frame.MESSAGE, Frame.DONE])
def test_an_update_of_nothing_is_another_message(kind):
    call = training()
    with pytest.raises(PeerError, match="alice: sent another message"):
        says_nothing(call, kind)


def test_a_request_goes_once_and_nothing_of_it_is_held():
    call = training()
    encode = weakref.ref(call.encode)
    kind, _, tensors = call.request("this connection")
    assert (kind, len(tensors) > 1600) == (bytes([Frame.ROUND]), True)
    assert encode() is None
    with pytest.raises(RuntimeError, match="sent once"):
        call.request("another")


def test_whose_contribution_counts_is_said_and_not_answered():
    call = SiteCalls(SERVER).of({NAME: Counted(1, [NAME])}, None)[NAME]
    assert call.request("this connection") == (bytes([Frame.COUNTED]),)
    assert call.unanswered == Kept()


def test_a_site_on_another_connection_is_sent_the_whole_model():
    """On the same one, what has changed; the sites that are called at once share the bytes."""
    calls = SiteCalls(SERVER)
    first = calls.of({NAME: BEGIN}, ongoing())[NAME].request("one")[2]
    again = calls.of({NAME: BEGIN}, ongoing())[NAME].request("one")[2]
    other = calls.of({NAME: BEGIN}, ongoing())[NAME].request("two")[2]
    assert first == other
    assert len(again) < 100

"""Whatever bytes come over a connection: they are what was sent, or they are refused.

Ten thousand changed copies of every kind. What is signed, or held against what the receiver knows,
is accepted unchanged or not at all; where something is only parsed, the test's name says so.
"""

import asyncio
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from consortium_files import PASSPHRASE
from mutations import mutated, mutated_json, try_all
from securefl.network.round import _claimed_name, _claimed_sender

from securefl.errors import KeyFileError, MessageRefused, OpeningRefused, PeerError
from securefl.exchange.base import OpenedSum
from securefl.exchange.ckks import CkksAdder
from securefl.exchange.ckks_open import CkksOpener
from securefl.exchange.plain import PlainChannel
from securefl.exchange.policy import Policy
from securefl.exchange.releases import MemoryCount
from securefl.federation import message as wire
from securefl.network import bodies
from securefl.network.frames import SMALL, Frame, Link
from securefl.network.members import Members
from securefl.types import Kind, State
from securefl_keys.keeper import FolderKeeper
from securefl_keys.sound_bundle import SoundBundle

STATE = State(
    3,
    {
        Kind.PARAMETERS: {"weight": torch.randn(2, 3), "bias": torch.zeros(2)},
        Kind.STATISTICS: {"mean": torch.randn(2, dtype=torch.float64)},
    },
    {"private": torch.ones(5)},
)
RUN, SIGNED = "ab" * 32, bodies.Signed.model_construct(header=b"{}", signature=b"x" * 64)
BODIES = [
    bodies.Hello(settings=RUN, age=(1, 2)),
    bodies.Ready(run=RUN, round=3, known=(1, 2), needed=2048, scores=7),
    bodies.News(bundles={"client": "{}", "server": "{}"}),
    bodies.Welcome(run=RUN),
    bodies.RoundBegins(round=7),
    bodies.Reason(reason="näh"),
    bodies.Refusal(too_few=True, reason="two"),
    SIGNED,
    bodies.OpenRequest.model_construct(
        run=RUN,
        round=1,
        name="1/mean",
        form="ckks",
        key_id=RUN,
        epoch=1,
        n_values=5,
        state=RUN,
        signed=[SIGNED],
    ),
    bodies.OpenScoresRequest.model_construct(
        run=RUN,
        round=1,
        name="profile",
        form="match/linear",
        key_id=RUN,
        epoch=1,
        n_values=16,
        state="",
        signed=[SIGNED],
        sizes=[98305],
    ),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_changed_bodies_are_parsed_as_their_kind_or_refused(body):
    """They have no signature of their own: within its bounds, a peer may say what it likes."""
    kind, content = type(body), body.to_bytes()
    assert bodies.parsed(kind, content, "peer") == bodies.parsed(kind, content, "peer")
    found = try_all(
        content, lambda c: bodies.parsed(kind, c, "peer"), PeerError, mutate=mutated_json
    )
    for _, accepted in found:
        assert bodies.parsed(kind, accepted.to_bytes(), "peer") == accepted


def test_the_bodies_are_all_that_there_are():
    kinds = {kind for kind in vars(bodies).values() if isinstance(kind, type)}
    assert {type(body) for body in BODIES} == {
        kind for kind in kinds if issubclass(kind, bodies.Body) and kind is not bodies.Body
    }


def test_the_longest_reason_fits_into_a_small_frame():
    """Whatever is in it: a path may be no UTF-8."""
    for character in ("x", "\0", "\U0001f600", '"', "\udcff", "\n"):
        assert len(bodies.reason(character * 5000)) <= SMALL
        assert len(bodies.refusal(OpeningRefused(character * 5000))) <= SMALL


def test_one_bundle_alone_is_no_news():
    with pytest.raises(PeerError, match="one role alone"):
        bodies.parsed(bodies.News, b'{"bundles": {"client": "{}"}}', "authority")


def test_a_frame_larger_than_allowed_is_refused_before_its_body_is_read():
    async def scenario():
        reader = asyncio.StreamReader()
        reader.feed_data(struct.pack(">BI", Frame.MODEL, 101))
        with pytest.raises(PeerError, match="MODEL of 101 bytes, at most 100 fit"):
            await Link("server", reader, None).receive({Frame.MODEL: 100})

    asyncio.run(scenario())


def test_changed_frames_are_parsed_within_their_bounds_or_refused():
    allowed = {Frame.MESSAGE: 40, Frame.LEAVE: SMALL}
    content = struct.pack(">BI", Frame.MESSAGE, 40) + bytes(range(40))

    def parse(changed):
        reader = asyncio.StreamReader(loop=loop)
        reader.feed_data(changed)
        reader.feed_eof()
        return loop.run_until_complete(Link("peer", reader, None).receive(allowed))

    loop = asyncio.new_event_loop()
    try:
        found = try_all(content, parse, PeerError)
    finally:
        loop.close()
    assert found
    for changed, received in found:
        assert len(received.body) <= allowed[received.frame]
        assert changed[5 : 5 + len(received.body)] == received.body


def test_the_global_tensors_arrive_to_the_last_bit_and_nothing_private_with_them():
    found = bodies.read_state(bodies.state_bytes(STATE), STATE, 3)
    assert found.round == 3
    assert found.private == {}
    assert [list(named) for named in found.tensors.values()] == [["weight", "bias"], ["mean"]]
    for kind, named in STATE.tensors.items():
        assert all(torch.equal(found.tensors[kind][name], value) for name, value in named.items())
    assert len(bodies.state_bytes(STATE)) <= bodies.max_state_bytes(STATE)


def test_changed_models_are_parsed_with_the_same_layout_or_refused():
    content = bodies.state_bytes(STATE)
    for _, found in try_all(content, lambda c: bodies.read_state(c, STATE, 3), PeerError):
        for kind, named in STATE.tensors.items():
            for name, value in named.items():
                assert found.tensors[kind][name].shape == value.shape
                assert found.tensors[kind][name].dtype == value.dtype


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_changed_totals_are_parsed_finite_and_of_their_length_or_refused(precision):
    content = bodies.total_bytes(OpenedSum(np.arange(5.0), 0.5, 4), precision)
    assert bodies.n_total_bytes(5, precision) == len(content)
    read = lambda c: bodies.read_total(c, 5, precision, "server")  # noqa: E731
    assert read(content).values.tolist() == [0, 1, 2, 3, 4]
    for _, found in try_all(content, read, PeerError):
        assert np.isfinite(found.values).all()
        assert len(found.values) == 5
        assert found.weight > 0
        assert 0 < found.n_clients <= bodies.MAX_CLIENTS


@pytest.mark.parametrize("kind", ["ciphertext", "plaintext"])
def test_no_changed_contribution_is_accepted(federate, kind):
    """A client has signed its header, and that names the payload's digest."""
    federation = federate()
    spec = federation.spec if kind == "ciphertext" else federation.plain_spec
    message = federation.message("client-1", spec)
    federation.server.start(1, spec).admit(message)
    admit = lambda changed: federation.server.start(1, spec).admit(changed)  # noqa: E731
    assert try_all(message, admit, MessageRefused) == []
    header_first = lambda content, rng: mutated(content[:700], rng) + content[700:]  # noqa: E731
    assert try_all(message, admit, MessageRefused, n=2000, mutate=header_first) == []


def test_what_a_changed_message_claims_is_read_or_left_alone(federate):
    """Before its signature is verified, the server asks which sum it is for, and of whom."""
    federation = federate()
    message = federation.message("client-1", federation.plain_spec)
    assert _claimed_name(message) == federation.plain_spec.name
    start = len(wire.MAGIC) + 2

    def json_first(content, rng):
        end = start + int.from_bytes(content[start - 2 : start], "little")
        header = mutated_json(content[start:end], rng)
        return (
            content[: start - 2] + struct.pack("<H", len(header) % 2**16) + header + content[end:]
        )

    for mutate in (mutated, json_first):
        found = try_all(message, lambda m: (_claimed_name(m), _claimed_sender(m)), mutate=mutate)
        assert all(len(name) <= 500 and len(sender) <= 100 for _, (name, sender) in found)


def test_a_hello_of_any_bytes_ends_its_own_connection_alone():
    """Whatever the first frame is: welcomed, refused in words, or let go."""
    members = Members(RUN, RUN, ("peer",), 1.0, lambda _: None)
    body = bodies.Hello(settings=RUN, age=(1, 2)).to_bytes()
    content = struct.pack(">BI", Frame.HELLO, len(body)) + body

    def greet(changed):
        reader = asyncio.StreamReader(loop=loop)
        reader.feed_data(changed)
        reader.feed_eof()
        link = Link("peer", reader, _Nowhere())
        link._ended.set()  # nobody holds it
        members.links.clear()
        members._joined_at.clear()
        loop.run_until_complete(members.welcome(link))

    loop = asyncio.new_event_loop()
    try:
        found = try_all(content, greet, PeerError, n=10_000)
    finally:
        loop.close()
    assert found


class _Nowhere:
    """A writer."""

    def write(self, data):
        """Let it go."""

    async def drain(self):
        """Never full."""

    def is_closing(self):
        """Never."""
        return False

    def close(self):
        """Nothing to close."""


def test_changed_payloads_in_the_clear_are_parsed_finite_or_refused():
    """Which a client may sign: its own values are its own affair."""
    channel = PlainChannel("float32")
    payload = channel.seal(np.arange(5.0), 0.25)
    for _, found in try_all(payload, channel.start(5).plus, MessageRefused):
        assert np.isfinite(found.values).all()


@pytest.mark.slow
def test_changed_ciphertexts_are_parsed_as_such_or_refused(key_set, federate):
    """A client may sign any: what is added is a ciphertext of these parameters."""
    federation = federate()
    payload = federation.sealer.seal(np.arange(5.0), 0.25)
    adder = CkksAdder(key_set.adding)
    found = try_all(payload, lambda c: adder.start(5).plus(c).total(), MessageRefused)
    assert {len(total) for _, total in found} == {adder.n_bytes(5)}


@pytest.mark.slow
def test_changed_sums_open_as_sums_of_as_many_clients_or_are_refused(key_set, federate):
    """No signature is over a sum: the ones that it carries are counted."""
    total = federate().collect().request().total

    def opened(changed):  # a refusal may use a key up
        return CkksOpener(key_set.secret, MemoryCount(), None, 4).open(changed, 5, 24)

    for _, found in try_all(total, opened, MessageRefused):
        assert found.n_clients == 4
        assert np.isfinite(found.values).all()


def test_no_changed_request_is_opened(federate):
    """All of it is signed by the clients or held against what they have signed."""
    federation = federate()
    request = federation.collect().request()
    content = bodies.open_request(request)

    def parse(changed):
        body = bodies.parsed(bodies.OpenRequest, changed, "server")
        asked = bodies.sum_request(body, request.total)
        federation.authority_of(Policy()).open(asked)
        return asked

    assert parse(content) == request
    refusals = (PeerError, MessageRefused, OpeningRefused)
    for changed, asked in try_all(content, parse, *refusals, mutate=mutated_json):
        assert asked.expected == request.expected
        signed = {(one.signed, one.signature) for one in asked.signed}
        assert signed == {(one.signed, one.signature) for one in request.signed}, changed


@pytest.mark.slow
@pytest.mark.parametrize("role", ["client", "server"])
def test_no_changed_bundle_is_taken_up(made_consortium, role):
    """The consortium's authority has signed every byte of its files; JSON's own spaces are free."""
    files = FolderKeeper(made_consortium.keys, PASSPHRASE).now(0).bundles[role]
    bundle = SoundBundle.load(made_consortium.bundle(role), role)
    assert bundle.newer(files).age == bundle.age
    take = lambda changed: bundle.newer(changed.decode(errors="replace"))  # noqa: E731
    wanted = json.loads(files)
    for changed, _ in try_all(files.encode(), take, KeyFileError, mutate=mutated_json):
        assert json.loads(changed) == wanted


def test_a_request_arrives_as_it_was(federate):
    request = federate().collect().request()
    body = bodies.parsed(bodies.OpenRequest, bodies.open_request(request), "server")
    assert bodies.sum_request(body, request.total) == request
    broken = tuple(replace(one, signed=b"{}") for one in request.signed)
    asked = bodies.open_request(replace(request, signed=broken))
    with pytest.raises(MessageRefused):
        bodies.sum_request(bodies.parsed(bodies.OpenRequest, asked, "server"), b"")

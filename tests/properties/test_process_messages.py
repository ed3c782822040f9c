"""Whatever bytes come over a connection: they are what was sent, or they are refused.

Thousands of changed copies of every kind, ten thousand in `make test-all`. What is signed, or held
against what the receiver knows, is accepted unchanged or not at all; where something is only
parsed, the test's name says so.
"""

import asyncio
import base64
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from consortium_files import PASSPHRASE
from mutations import mutated, mutated_json, try_all

from securefl.errors import (
    BlindTotalRefused,
    KeyFileError,
    MessageRefused,
    OpeningRefused,
    PeerError,
)
from securefl.exchange.blind import BlindTotal
from securefl.exchange.one_time import OneTimeAdder
from securefl.exchange.plain import PlainChannel
from securefl.exchange.policy import Policy
from securefl.exchange.sums import MessageId, OpenedSum, Sender
from securefl.federation.message import MAGIC, claimed_name
from securefl.federation.server import DueWeight
from securefl.federation.total import (
    MAX_CLIENTS,
    Terms,
    n_total_bytes,
    read_total,
    state_digest,
    total_bytes,
)
from securefl.network import bodies
from securefl.network.frames import SMALL, Frame, Link
from securefl.network.members import Members
from securefl.types import Kind, State
from securefl_keys.authority_keys import FolderKeeper
from securefl_keys.bundle import VerifiedBundle

COPIES = pytest.mark.parametrize("n", [2_500, pytest.param(10_000, marks=pytest.mark.full)])
STATE = State(
    3,
    {
        Kind.PARAMETERS: {"weight": torch.randn(2, 3), "bias": torch.zeros(2)},
        Kind.STATISTICS: {"mean": torch.randn(2, dtype=torch.float64)},
    },
    {"private": torch.ones(5)},
)
ABOUT, ALICE = MessageId("ab" * 32, 1, "1/mean", 5), Sender("alice", bytes(32))
RUN, SIGNED = "ab" * 32, bodies.Signed.model_construct(header=b"{}", signature=b"x" * 64)
BODIES = [
    bodies.Hello(settings=RUN, age=(1, 2)),
    bodies.Ready(run=RUN, settings=RUN, round=3, known=(1, 2), needed=2048, scores=7),
    bodies.LogRequest(run=RUN, known=12),
    bodies.CardsGiven(run=RUN, cards={"alice": base64.b64encode(b"a card")}),
    bodies.CardsTaken(refused={"alice": "it does not open"}),
    bodies.News(bundles={"client": "{}", "server": "{}"}),
    bodies.Welcome(run=RUN, job=RUN),
    bodies.RoundBegins(round=7, times=2, since=6, whole=True),
    bodies.QuestionBody(round=7, name="selection/loss", unit=0.5, since=6, whole=False),
    bodies.Reason(reason="näh", round=7),
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
        model=RUN,
        signed=[SIGNED],
    ),
    bodies.OpenRequest.model_construct(
        run=RUN,
        round=1,
        name="profile",
        form="one-time/profile/2",
        key_id=RUN,
        epoch=1,
        n_values=16,
        state="",
        model="",
        signed=[SIGNED],
    ),
]


@COPIES
@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_changed_bodies_are_parsed_as_their_kind_or_refused(body, n):
    """They have no signature of their own: within its bounds, a peer may say what it likes."""
    kind, content = type(body), body.to_bytes()
    assert bodies.parsed(kind, content, "peer") == bodies.parsed(kind, content, "peer")
    found = try_all(
        content, lambda c: bodies.parsed(kind, c, "peer"), PeerError, n=n, mutate=mutated_json
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
        given = Given(struct.pack(">BI", Frame.ROUND, 101), bytes(101))
        with pytest.raises(PeerError, match="ROUND of 101 bytes, at most 100 fit"):
            await Link("server", given, None).receive({Frame.ROUND: 100})
        assert given.chunks == [bytes(101)]

    asyncio.run(scenario())


def test_changed_frames_are_parsed_within_their_bounds_or_refused():
    allowed = {Frame.MESSAGE: 40, Frame.LEAVE: SMALL}
    content = struct.pack(">BI", Frame.MESSAGE, 40) + bytes(range(40))

    def parse(changed):
        cut = len(changed) // 2
        given = Given(changed[:cut], changed[cut:])
        return loop.run_until_complete(Link("peer", given, None).receive(allowed))

    loop = asyncio.new_event_loop()
    try:
        found = try_all(content, parse, PeerError)
    finally:
        loop.close()
    assert found
    for changed, received in found:
        assert len(received.body) <= allowed[received.frame]
        assert changed[5 : 5 + len(received.body)] == received.body


LATER = replace(
    STATE,
    round=4,
    tensors=STATE.tensors | {Kind.STATISTICS: {"mean": torch.randn(2, dtype=torch.float64)}},
)
"""A state of which the parameters are those of the one before."""


def same(found, wanted):
    """Whether two states hold the same tensors, in the same order."""
    assert [list(named) for named in found.tensors.values()] == [
        list(named) for named in wanted.tensors.values()
    ]
    return all(
        torch.equal(found.tensors[kind][name], value)
        for kind, named in wanted.tensors.items()
        for name, value in named.items()
    )


def test_the_global_tensors_arrive_to_the_last_bit_and_nothing_private_with_them():
    found = bodies.read_state(bodies.state_bytes(STATE, None), STATE, None, 3)
    assert found.round == 3
    assert found.private == {}
    assert same(found, STATE)
    head = bodies.RoundBegins(round=4, since=3, whole=True)
    whole = bodies.headed(head) + bodies.state_bytes(STATE, None)
    assert len(whole) <= bodies.max_state_bytes(STATE)


def test_of_a_model_that_is_known_only_what_differs_is_sent():
    """It is laid over the one before; the result is the new one to the last bit."""
    content = bodies.state_bytes(LATER, STATE)
    assert set(safetensors.torch.load(content)) == {f"{Kind.STATISTICS}/mean"}
    found = bodies.read_state(content, STATE, STATE, 4)
    assert found.round == 4
    assert same(found, LATER)
    assert safetensors.torch.load(bodies.state_bytes(LATER, LATER)) == {}
    with pytest.raises(PeerError, match="another one than this client's settings make"):
        bodies.read_state(content, STATE, None, 4)


@pytest.mark.parametrize("name", ["bias", "of no dimension"])
def test_a_zero_that_has_changed_its_sign_is_sent(name):
    """A sealed total of zeros is 0.0 or -0.0, and clients sign a digest of the bits."""
    zeros = {"bias": torch.zeros(2), "of no dimension": torch.zeros(())}
    before = State(3, {Kind.PARAMETERS: zeros})
    after = State(4, {Kind.PARAMETERS: zeros | {name: -zeros[name]}})
    assert state_digest(after) != state_digest(before)
    found = bodies.read_state(bodies.state_bytes(after, before), before, before, 4)
    assert state_digest(found) == state_digest(after)


@pytest.mark.parametrize("known", [None, STATE], ids=["whole", "part"])
def test_changed_models_are_parsed_with_the_same_layout_or_refused(known):
    content = bodies.state_bytes(LATER, known)
    read = lambda c: bodies.read_state(c, STATE, known, 3)  # noqa: E731
    for _, found in try_all(content, read, PeerError):
        for kind, named in STATE.tensors.items():
            assert found.tensors[kind].keys() == named.keys()
            for name, value in named.items():
                assert found.tensors[kind][name].shape == value.shape
                assert found.tensors[kind][name].dtype == value.dtype


HEADS = [
    bodies.RoundBegins(round=7, since=6, whole=True),
    bodies.QuestionBody(round=7, name="selection/loss", unit=0.5, since=6, whole=True),
]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
def test_changed_requests_are_parsed_as_their_kind_or_refused(head):
    """Their heads by the JSON's own rules; whatever is left over is for the model's parser."""
    content = bodies.headed(head) + bytes(40)
    kind = type(head)
    parse = lambda c: bodies.apart(kind, c, "server")  # noqa: E731
    assert parse(content) == (head, bytes(40))
    for changed, (found, tensors) in try_all(content, parse, PeerError):
        n = int.from_bytes(changed[:4], "little")
        assert (len(changed), changed[4 + n :]) == (4 + n + len(tensors), tensors)
        assert bodies.apart(kind, bodies.headed(found) + tensors, "server")[0] == found


@pytest.mark.parametrize("length", [0, 1, 60, 10**4, 2**31, 2**32 - 1])
def test_a_request_whose_head_is_of_another_length_is_refused(length):
    """Longer than all that came, longer than a head can be, or cut."""
    content = (bodies.headed(HEADS[0]) + bytes(2 * SMALL))[4:]
    with pytest.raises(PeerError, match="bad RoundBegins"):
        bodies.apart(bodies.RoundBegins, struct.pack("<I", length) + content, "server")


@pytest.mark.parametrize("content", [b"", b"\1", b"\1\0\0", bytes(4)], ids=len)
def test_a_request_too_short_for_a_head_is_refused(content):
    with pytest.raises(PeerError, match="bad Question"):
        bodies.apart(bodies.QuestionBody, content, "server")


PATHS = [
    "",
    "..",
    "../" * 21 + "x",
    "/" + "a" * 63,
    "AB" * 32,
    "ab" * 32 + "\n",
    "ab" * 33,
    "é" * 64,
]


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("field", ["run", "job"])
def test_ids_that_name_files_are_64_hex_digits(field, name):
    """Of sessions and runs: a client makes a folder and a file of these names."""
    body = json.dumps({"run": RUN, "job": RUN} | {field: name}).encode()
    with pytest.raises(PeerError, match="bad Welcome"):
        bodies.parsed(bodies.Welcome, body, "server")


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_changed_totals_are_parsed_finite_and_of_their_length_or_refused(precision):
    content = total_bytes(OpenedSum(np.arange(5.0), 0.5, 4), precision)
    assert n_total_bytes(5, precision) == len(content)
    read = lambda c: read_total(c, 5, precision, "server")  # noqa: E731
    assert read(content).values.tolist() == [0, 1, 2, 3, 4]
    for _, found in try_all(content, read, PeerError):
        assert np.isfinite(found.values).all()
        assert len(found.values) == 5
        assert found.weight > 0
        assert 0 < found.n_clients <= MAX_CLIENTS


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
    """Before its signature is verified, the server asks which sum it is for."""
    federation = federate()
    message = federation.message("client-1", federation.plain_spec)
    assert claimed_name(message) == federation.plain_spec.name
    start = len(MAGIC) + 2

    def json_first(content, rng):
        end = start + int.from_bytes(content[start - 2 : start], "little")
        header = mutated_json(content[start:end], rng)
        return (
            content[: start - 2] + struct.pack("<H", len(header) % 2**16) + header + content[end:]
        )

    for mutate in (mutated, json_first):
        found = try_all(message, claimed_name, mutate=mutate)
        assert all(len(name) <= 500 for _, name in found)


def test_a_hello_of_any_bytes_ends_its_own_connection_alone():
    """Whatever the first frame is: welcomed, refused in words, or let go."""
    members = Members(RUN, RUN, RUN, {}, ("peer",), 1.0, lambda _: None)
    body = bodies.Hello(settings=RUN, age=(1, 2)).to_bytes()
    content = struct.pack(">BI", Frame.HELLO, len(body)) + body

    def greet(changed):
        given = Given(changed)
        given.closed.set()  # nobody holds it
        link = Link("peer", given, None)
        members.links.clear()
        members._joined_at.clear()
        loop.run_until_complete(members.welcome(link))

    loop = asyncio.new_event_loop()
    try:
        found = try_all(content, greet, PeerError, n=10_000)
    finally:
        loop.close()
    assert found


class Given:
    """A stream on which these chunks have come, and nothing else will; what goes is let go."""

    def __init__(self, *chunks):
        self.chunks = [chunk for chunk in chunks if chunk]
        self.closed = asyncio.Event()
        self.over = False

    async def read(self):
        if not self.chunks:
            raise PeerError("has closed the connection")
        return self.chunks.pop(0)

    async def write(self, chunk):
        """Let it go."""

    def close(self):
        """Nobody hears of it."""


def test_changed_payloads_in_the_clear_are_parsed_finite_or_refused():
    """Which a client may sign: its own values are its own affair."""
    channel = PlainChannel("float32")
    payload = channel.seal(np.arange(5.0), 0.25, ABOUT, ALICE).payload
    for _, found in try_all(payload, channel.start(5).plus, MessageRefused):
        assert np.isfinite(found.values).all()


@pytest.mark.slow
def test_changed_ciphertexts_are_parsed_as_such_or_refused(key_set, federate):
    """A client may sign any: what is added is a ciphertext of these parameters."""
    federation = federate()
    payload = federation.sealer.seal(np.arange(5.0), 0.25, ABOUT, ALICE).payload
    adder = OneTimeAdder(key_set.public)
    found = try_all(payload, lambda c: adder.start(5).plus(c).total(), MessageRefused)
    assert {len(total) for _, total in found} == {adder.n_bytes(5)}


@pytest.mark.slow
@COPIES
def test_no_changed_sum_opens(federate, n):
    """No signature is over a sum: any word of it that is changed spreads over all slots."""
    federation = federate()
    request = federation.collect().request()
    nonces = {one.header.sender: one.header.nonce for one in request.signed}

    def opened(changed):
        return federation.authority.opener.open(changed, request.expected.about, nonces, 24)

    assert opened(request.total).n_clients == 4
    for changed, _ in try_all(request.total, opened, MessageRefused, n=n):
        assert changed == request.total


@COPIES
@pytest.mark.parametrize("blind", [False, True])
def test_no_changed_request_is_opened(federate, blind, n):
    """All of it is signed by the clients or held against what they have signed.

    What a server asks to read is sealed for clients where the authority's settings say so.
    """
    federation = federate()
    terms = dict.fromkeys(federation.clients, Terms(1, 3))
    request = federation.collect(told="cd" * 32, terms=terms).request(blind=blind)
    content = bodies.open_request(request)
    policy = Policy(read=frozenset() if blind else None)

    def parse(changed):
        body = bodies.parsed(bodies.OpenRequest, changed, "server")
        asked = bodies.sum_request(body, request.total)
        opened = federation.authority_of(policy).open(asked)
        assert isinstance(opened, BlindTotal) is blind
        return asked

    assert parse(content) == request
    refusals = (PeerError, MessageRefused, OpeningRefused)
    for changed, asked in try_all(content, parse, *refusals, n=n, mutate=mutated_json):
        assert asked.expected == request.expected
        assert asked.signers == {name: terms[name] for name in asked.signers}
        signed = {(one.signed, one.signature) for one in asked.signed}
        assert signed == {(one.signed, one.signature) for one in request.signed}, changed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "n"),
    [
        ("client", 2000),
        ("server", 3000),
        pytest.param("client", 10_000, marks=pytest.mark.full),
        pytest.param("server", 10_000, marks=pytest.mark.full),
    ],
)
@pytest.mark.full
def test_no_changed_bundle_is_taken_up(made_consortium, role, n):
    """The consortium's authority has signed every byte of its files; JSON's own spaces are free."""
    files = FolderKeeper(made_consortium.keys, PASSPHRASE).now().bundles[role]
    bundle = VerifiedBundle.load(made_consortium.bundle(role), role)
    assert bundle.newer(files).age == bundle.age
    take = lambda changed: bundle.newer(changed.decode(errors="replace"))  # noqa: E731
    wanted = json.loads(files)
    for changed, _ in try_all(files.encode(), take, KeyFileError, n=n, mutate=mutated_json):
        assert json.loads(changed) == wanted


@pytest.mark.parametrize("due", [None, DueWeight(0.5), DueWeight(0.5, told=False)])
@pytest.mark.parametrize("blind", [False, True])
def test_a_request_arrives_as_it_was(federate, blind, due):
    request = replace(federate().collect().request(blind=blind), due=due)
    body = bodies.parsed(bodies.OpenRequest, bodies.open_request(request), "server")
    assert bodies.sum_request(body, request.total) == request
    broken = tuple(replace(one, signed=b"{}") for one in request.signed)
    asked = bodies.open_request(replace(request, signed=broken))
    with pytest.raises(MessageRefused):
        bodies.sum_request(bodies.parsed(bodies.OpenRequest, asked, "server"), b"")


def test_an_answer_that_was_changed_is_a_total_of_the_same_clients_or_none():
    """Their number stands in front; what is sealed, clients alone can check."""
    names = ["alice", "bob", "carol"]
    honest = BlindTotal(b"sealed", {name: name.encode().ljust(48) for name in names})
    read = lambda changed: BlindTotal.from_bytes(changed, names)  # noqa: E731
    assert read(honest.as_bytes()) == honest
    for _, total in try_all(honest.as_bytes(), read, BlindTotalRefused):
        assert [*total.wraps] == names
        assert {len(wrap) for wrap in total.wraps.values()} == {48}

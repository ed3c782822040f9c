"""Whatever bytes come over a connection: they are what was sent, or they are refused."""

import asyncio
import random
import struct

import numpy as np
import pytest
import torch

from securefl.errors import MessageRefused, PeerError
from securefl.exchange.base import OpenedSum
from securefl.net import bodies
from securefl.net.frames import SMALL, Frame, Link
from securefl.types import Kind, State

N_MUTATIONS = 10_000
STATE = State(
    3,
    {
        Kind.PARAMETERS: {"weight": torch.randn(2, 3), "bias": torch.zeros(2)},
        Kind.STATISTICS: {"mean": torch.randn(2, dtype=torch.float64)},
    },
    {"private": torch.ones(5)},
)


def mutated(content, rng):
    """One to three bytes changed, taken out or put in."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed))
        match rng.randrange(3):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at : at + rng.randint(1, 8)]
            case 2:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
        if not changed:
            changed = bytearray(b"\0")
    return bytes(changed)


def test_the_global_tensors_arrive_to_the_last_bit_and_nothing_private_with_them():
    found = bodies.read_state(bodies.state_bytes(STATE), STATE, 3)
    assert found.round == 3
    assert found.private == {}
    assert [list(named) for named in found.tensors.values()] == [["weight", "bias"], ["mean"]]
    for kind, named in STATE.tensors.items():
        assert all(torch.equal(found.tensors[kind][name], value) for name, value in named.items())
    assert len(bodies.state_bytes(STATE)) <= bodies.max_state_bytes(STATE)


def test_mutated_models_are_of_the_same_layout_or_refused():
    content, rng = bodies.state_bytes(STATE), random.Random(0)
    for _ in range(N_MUTATIONS):
        try:
            found = bodies.read_state(mutated(content, rng), STATE, 3)
        except PeerError:
            continue
        assert found.tensors[Kind.PARAMETERS]["weight"].shape == (2, 3)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_mutated_totals_are_finite_and_of_their_length_or_refused(precision):
    total, rng = OpenedSum(np.arange(5.0), 0.5, 4), random.Random(0)
    content = bodies.total_bytes(total, precision)
    assert bodies.n_total_bytes(5, precision) == len(content)
    assert bodies.read_total(content, 5, precision, "server").values.tolist() == [0, 1, 2, 3, 4]
    for _ in range(N_MUTATIONS):
        try:
            found = bodies.read_total(mutated(content, rng), 5, precision, "server")
        except PeerError:
            continue
        assert np.isfinite(found.values).all()
        assert found.weight > 0


BODIES = [
    bodies.Hello(settings="ab" * 32, key_id=""),
    bodies.Welcome(run="ab" * 32),
    bodies.RoundBegins(round=7),
    bodies.Reason(reason="näh"),
    bodies.Refusal(too_few=True, reason="two"),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_mutated_bodies_are_of_their_kind_or_refused(body):
    content, rng = body.to_bytes(), random.Random(0)
    assert bodies.parsed(type(body), content, "peer") == body
    for _ in range(N_MUTATIONS):
        try:
            bodies.parsed(type(body), mutated(content, rng), "peer")
        except PeerError:
            continue


def test_mutated_requests_are_requests_or_refused(federate):
    request, rng = federate().collect().request(), random.Random(0)
    content = bodies.open_request(request)
    body = bodies.parsed(bodies.OpenRequest, content, "server")
    assert bodies.sum_request(body, request.total) == request
    for _ in range(N_MUTATIONS):
        try:
            bodies.sum_request(bodies.parsed(bodies.OpenRequest, mutated(content, rng), "s"), b"")
        except (PeerError, MessageRefused):
            continue


def test_the_longest_reason_fits_into_a_small_frame():
    for character in ("x", "\0", "\U0001f600", '"'):
        assert len(bodies.reason(character * 5000)) <= SMALL


def test_a_frame_larger_than_allowed_is_refused_before_its_body_is_read():
    async def scenario():
        reader = asyncio.StreamReader()
        reader.feed_data(struct.pack(">BI", Frame.MODEL, 101))
        with pytest.raises(PeerError, match="MODEL of 101 bytes, at most 100 fit"):
            await Link("server", reader, None).receive({Frame.MODEL: 100})

    asyncio.run(scenario())

"""What crosses between a run's processes arrives as it was."""

from __future__ import annotations

import multiprocessing
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from securefl.errors import PeerError
from securefl.simulation.processes import worker
from securefl.simulation.processes.ipc import (
    Gone,
    framed,
    packed,
    receive,
    send,
    unframed,
    unpacked,
)
from securefl.simulation.workspace import ALIGNED
from securefl.types import ClientState, Kind

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@st.composite
def tensors(draw):
    """Of any type and shape, also laid out in another order, or part of a larger one."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    tensor = torch.arange(int(np.prod(shape)) or 1).remainder(5)[: int(np.prod(shape))]
    tensor = tensor.reshape(shape).to(draw(st.sampled_from(DTYPES)))
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    if shape and draw(st.booleans()):
        tensor = tensor[: tensor.shape[0] // 2]
    return tensor.transpose(0, -1) if shape and draw(st.booleans()) else tensor


def require_same(one, other):
    assert other.dtype == one.dtype
    assert other.shape == one.shape
    assert torch.equal(other, one)
    if one.numel():
        assert other.stride() == one.stride()


@settings(deadline=None, max_examples=50)
@given(st.lists(tensors(), max_size=3), st.binary(max_size=200))
def test_a_pipe_gives_tensors_as_they_lie(values, text):
    """Names, bytes, and tensors with their types, shapes and strides; a copy, to be written to."""
    before = [value.clone() for value in values]
    sent = {
        "text": text,
        "client_state": ClientState(own=dict(enumerate(values))),
        "kind": Kind.CONTROL,
    }
    here, there = multiprocessing.Pipe()
    with here, there:
        send(here, packed(sent))  # less than a pipe holds
        got = unpacked(receive(there))
    assert (got["text"], got["kind"]) == (text, Kind.CONTROL)
    for i, value in enumerate(values):
        require_same(value, got["client_state"].own[i])
        got["client_state"].own[i].zero_()
        assert torch.equal(value, before[i])


@settings(deadline=None, max_examples=50)
@given(st.lists(tensors(), max_size=3), st.binary(max_size=200))
def test_a_frame_gives_tensors_as_they_lie(values, text):
    """Also where the carrier lets nobody write to it: what is in it is copied, to be written to."""
    frame = framed(packed({"text": text, "values": values, "array": np.arange(3.0)}))
    before = frame.copy()
    got = unpacked(unframed(frame))
    assert got["text"] == text
    assert np.array_equal(got["array"], np.arange(3.0))
    for value, other in zip(values, got["values"], strict=True):
        require_same(value, other)
        if other.numel():
            assert other.untyped_storage().data_ptr() % ALIGNED == 0
        other.zero_()
    assert np.array_equal(frame, before)


def test_a_pipe_gives_what_was_sent():
    """Arrays, empty ones too, and a model, whose parameters that are one stay one."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Conv2d(2, 3, 3))
    model[2].to(memory_format=torch.channels_last)
    model.append(model[0])
    sent = {"values": np.arange(5.0), "none": np.zeros(0), "model": model}
    here, there = multiprocessing.Pipe()
    thread = threading.Thread(target=send, args=(here, packed(sent)))
    thread.start()
    got = unpacked(receive(there))
    thread.join()
    assert np.array_equal(got["values"], sent["values"])
    assert got["none"].shape == (0,)
    assert got["model"][3] is got["model"][0]
    for (name, one), (_, other) in zip(
        model.state_dict().items(), got["model"].state_dict().items(), strict=True
    ):
        assert torch.equal(one, other), name
        assert one.stride() == other.stride(), name
    assert all(p.data_ptr() % ALIGNED == 0 for p in got["model"].parameters())


def test_what_is_refused_by_its_beginning_is_left_in_the_pipe():
    """Its first part and the length of all are enough to tell."""
    here, there = multiprocessing.Pipe()

    def refuse(beginning, n_bytes):
        raise PeerError(f"{bytes(beginning[0])!r} and {n_bytes} bytes in all")

    with here, there:
        send(here, [b"head", b"rest"])
        with pytest.raises(PeerError, match="b'head' and 8 bytes in all"):
            receive(there, refuse)
        assert there.recv_bytes() == b"rest"


@pytest.mark.parametrize("way", ["pipe", "frame"])
def test_a_part_that_is_held_holds_no_other(way):
    """A worker keeps its clients' data, and not the model that came with them."""
    here, there = multiprocessing.Pipe()
    message = [b"head", bytes(1000), bytes(30)]
    with here, there:
        send(here, message)
        got = receive(there) if way == "pipe" else unframed(framed(message))
    assert [bytes(part) for part in got] == message
    assert [part.obj.nbytes for part in got] == [4, 1000, 30]


def test_functions_and_classes_that_no_module_has_cross_too():
    """A closure, and a class that was made in a function."""

    class Doubling(nn.Module):
        def forward(self, x):
            return factor * x

    factor = 2
    here, there = multiprocessing.Pipe()
    with here, there:
        send(here, packed((Doubling(), lambda x: x + factor)))
        module, function = unpacked(receive(there))
    assert (module(torch.ones(1)), function(3)) == (2, 5)


def test_who_speaks_to_nobody_is_told_so():
    """At both ends."""
    here, there = multiprocessing.Pipe()
    there.close()
    with pytest.raises(Gone):
        send(here, [b"hello"])
    with pytest.raises(Gone):
        receive(here)


def test_a_message_that_cannot_be_taken_in_is_a_failure_and_no_missing_guard(monkeypatch):
    """Such as one for which a worker has no memory: it says so, and ends."""

    def no_room(_pipe):
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(worker, "receive", no_room)
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    here, there = multiprocessing.Pipe()
    with here, there:
        worker.work(there, lambda: None)
        told = unpacked(receive(here))
    assert str(told.error) == "not enough memory"

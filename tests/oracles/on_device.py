"""Runs on a device that a test names, and what crosses between it and the main memory."""

from __future__ import annotations

import re
from collections import Counter

import torch
from side_by_side import SMALL, vector
from torch.profiler import ProfilerActivity, profile

import securefl
from securefl.build.simulation import simulated

MEMCPY = re.compile(r"Memcpy (HtoD|DtoH)\b")
"""As torch's profiler names what a GPU's copy engines do: "Memcpy HtoD (Pageable -> Device)"."""


def configured(device, *settings):
    return securefl.load_config(None, [*SMALL, f"run.device={device}", *settings])


def trained(device, job, *settings):
    """What a run leaves; the task's model stays where it is."""
    return securefl.run(configured(device, *settings), job)


def require_same(one, other):
    """The same run on two devices, in float64.

    Sums have another order on a GPU, so values differ by some 1e-16 of the largest term; few rounds
    of training make at most a million times as much of it. TF32 rounds at 5e-4, and a step or a
    batch that is another's is off by more: either would show.
    """
    torch.testing.assert_close(vector(one.model), vector(other.model), rtol=1e-7, atol=1e-9)
    for a, b in zip(one.metrics, other.metrics, strict=True):
        assert abs(a.loss - b.loss) <= 1e-7 * abs(a.loss)
        assert (a.dropped, a.upload_bytes) == (b.dropped, b.upload_bytes)
    assert set(one.ledger.entries) == set(other.ledger.entries)


def require_rounded_alone(exact, other):
    """The same run in float32, whose model is off by the rounding of its values and no more.

    On a CPU the models of the grid are off by at most 1.7 steps of float32 at their length, and
    TF32 is 8,192 times as coarse.
    """
    assert {value.dtype for value in other.model.parameters()} == {torch.float32}
    one, rounded = vector(exact.model), vector(other.model)
    assert (one - rounded).norm() <= 10 * torch.finfo(torch.float32).eps * one.norm()


def memcpys(names):
    """How many of these profiled events copy to the GPU, and from it."""
    found = (MEMCPY.match(name) for name in names)
    return Counter(match[1] for match in found if match)


def copies_of_a_round(device, job, *settings):
    """Of the second: in the first, libraries load and memory is found."""
    rounds = simulated(configured(device, *settings), job, None, None)
    rounds.step()
    on_gpu = torch.device(device).type == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=kinds) as watched:
        rounds.step()
        if on_gpu:
            torch.cuda.synchronize()
    rounds.close()
    return memcpys(event.name for event in watched.events())

"""A public set is nobody's: carved out of training, and compared by content."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from securefl.data.digits import load_digits
from securefl.data.public import carve_public, check_disjoint
from securefl.data.samples import samples
from securefl.data.split import Split
from securefl.errors import DataError


def some_split(n=60):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 6, generator=rng), torch.arange(n) % 3
    return Split(x[:-12], y[:-12], x[-12:], y[-12:])


def parts(public, rest):
    return samples(public, "public"), {
        "the clients": samples((rest.train_x, rest.train_y), "clients"),
        "the test data": samples((rest.test_x, rest.test_y), "test"),
    }


@settings(deadline=None)  # the first example imports scikit-learn
@given(st.integers(3, 45), st.integers(0, 2**32 - 1))
def test_what_is_carved_is_nobody_elses(n_public, seed):
    """So many samples, gone from training, the test data untouched, the same for the same seed."""
    split = some_split()
    public, rest = carve_public(split, n_public, seed)
    check_disjoint(*parts(public, rest))
    assert len(public[1]) == n_public == len(split.train_y) - len(rest.train_y)
    assert rest.test_x is split.test_x
    assert torch.equal(public[0], carve_public(split, n_public, seed)[0][0])
    both = torch.cat([public[0], rest.train_x])
    assert torch.equal(both.sort(0).values, split.train_x.sort(0).values)


def test_every_class_is_public_in_its_share():
    """180 of the digits: 17 to 19 of each class."""
    public, _ = carve_public(load_digits(), 180, 0)
    assert set(public[1].bincount().tolist()) <= {17, 18, 19}


def test_a_sample_with_a_double_is_never_public():
    """Whichever of the two were taken, somebody would hold the other."""
    split = some_split()
    x = split.train_x.clone()
    x[:10] = x[10:20]  # within training
    x[20:26] = split.test_x[:6]
    for seed in range(10):
        public, rest = carve_public(replace(split, train_x=x), 12, seed)
        check_disjoint(*parts(public, rest))


@pytest.mark.parametrize("n_public", [0, 2, 46, 48, 1000])
def test_a_public_set_too_small_or_too_large_is_refused(n_public):
    """Each class needs a sample, and somebody must keep some to train on."""
    with pytest.raises(DataError, match=f"{n_public} public samples of 48 .*take 3 to 45"):
        carve_public(some_split(), n_public, 0)


def test_coinciding_samples_are_counted_by_owner():
    """Content counts, not label, shape, precision or the sign of zero."""
    x = torch.randn(8, 1, 2, 2)
    x[0, 0, 0, 0] = 0.0
    public = samples((x, torch.zeros(8, dtype=torch.int64)), "public")
    again = x[:3].flatten(1).double()
    again[0, 0] = -0.0
    others = {
        "client-1": samples((torch.cat([again, torch.rand(4, 4)]), torch.ones(7).long()), "one"),
        "client-2": samples((torch.rand(5, 4), torch.ones(5).long()), "two"),
        "the test data": samples((x[5:], torch.ones(3).long()), "test"),
    }
    message = "6 samples are also public: 3 of client-1, 3 of the test data"
    with pytest.raises(DataError, match=message):
        check_disjoint(public, others)
    del others["client-1"], others["the test data"]
    check_disjoint(public, others)

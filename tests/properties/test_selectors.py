"""What holds of every selection, whatever the clients and the random state."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from securefl.selection.afl import Afl
from securefl.selection.cfcfm import Cfcfm
from securefl.selection.data_share import ByDataShare
from securefl.selection.draw import Replacement
from securefl.selection.fairness import FairnessFloor
from securefl.selection.fedprof import FedProf
from securefl.selection.selector import Standing
from securefl.selection.uniform import Random
from securefl.settings.axes import clients_per_round

pytestmark = pytest.mark.shapes

SELECTORS = [
    Random(),
    ByDataShare(),
    FedProf(alpha=10.0),
    FedProf(alpha="theorem1"),
    Afl(),
    Cfcfm(),
    FairnessFloor(FedProf(alpha=25.0), 3),
]
seeds = st.integers(0, 2**32)


@st.composite
def standings(draw, least=0):
    clients = tuple(f"client-{i}" for i in range(1, draw(st.integers(least, 12)) + 1))

    def by_client(values):
        return draw(st.fixed_dictionaries(dict.fromkeys(clients, values)))

    return Standing(
        clients,
        divergence=by_client(st.floats(0, 1e6)),
        n_samples=by_client(st.integers(1, 10**6)),
        loss=by_client(st.floats(0, 1e3)),
        time_s=by_client(st.floats(0.001, 1e6)),
        rounds_waited=by_client(st.integers(0, 8)),
    )


def generator(seed):
    return torch.Generator().manual_seed(seed)


@given(standings(), st.integers(1, 15), seeds, st.sampled_from(SELECTORS))
def test_a_round_has_as_many_different_clients_as_it_asks_for(known, n, seed, selector):
    """Or all of them, or none; in the federation's order, and the same for the same seed."""
    chosen = selector.select(known, n, generator(seed))
    assert len(chosen) == min(n, len(known.clients))
    assert chosen == tuple(client for client in known.clients if client in set(chosen))
    assert chosen == selector.select(known, n, generator(seed))


@given(standings(), st.integers(1, 12), seeds, st.sampled_from(Replacement))
def test_without_a_penalty_fedprof_selects_as_random_does(known, n, seed, replacement):
    """α = 0 makes exactly the same draws, round after round."""
    first, second = generator(seed), generator(seed)
    for _ in range(3):
        fedprof = FedProf(alpha=0.0, replacement=replacement).select(known, n, first)
        assert fedprof == Random(replacement=replacement).select(known, n, second)


@given(standings(), st.integers(1, 12), st.floats(0, 1e300), seeds)
def test_equal_divergences_select_as_random_does(known, n, divergence, seed):
    """No rounding tells equal scores apart, however small they are."""
    equal = Standing(known.clients, divergence=dict.fromkeys(known.clients, divergence))
    fedprof = FedProf(alpha=10.0).select(equal, n, generator(seed))
    assert fedprof == Random().select(known, n, generator(seed))


@given(standings(), st.integers(1, 12), seeds, st.sampled_from(Replacement))
def test_under_theorem_1_fedprof_selects_by_data_share(known, n, seed, replacement):
    """Its penalty factors take the divergence out of the score."""
    theorem = FedProf(alpha="theorem1", replacement=replacement).select(known, n, generator(seed))
    assert theorem == ByDataShare(replacement=replacement).select(known, n, generator(seed))


@given(standings(least=1), st.integers(1, 20), seeds)
def test_with_replacement_there_are_as_many_draws_as_asked_for(known, n, seed):
    """Also more than there are clients."""
    chosen = FedProf(alpha=1.0, replacement="with").select(known, n, generator(seed))
    assert len(chosen) == n
    assert set(chosen) <= set(known.clients)


@given(standings(least=2), st.integers(1, 12), st.integers(1, 5), seeds)
def test_no_client_waits_longer_than_the_floor_and_one_turn(known, n, rounds, seed):
    """Even the client whose profile is infinitely far in all but name."""
    clients = known.clients
    floor, rng = FairnessFloor(FedProf(alpha=25.0), rounds), generator(seed)
    waited = dict.fromkeys(clients, 1)
    for _ in range(2 * (rounds + len(clients))):
        now = Standing(clients, divergence=known.divergence, rounds_waited=waited)
        chosen = floor.select(now, n, rng)
        waited = {c: 0 if c in chosen else waited[c] + 1 for c in clients}
        assert max(waited.values()) <= rounds + math.ceil(len(clients) / n)


@given(st.floats(1e-6, 1.0), st.integers(1, 10**4))
def test_a_round_has_one_client_at_least_and_all_at_most(fraction, n_clients):
    """And never more than half a client away from C · N, but for that."""
    n = clients_per_round(fraction, n_clients)
    assert 1 <= n <= n_clients
    assert n == 1 or abs(n - fraction * n_clients) <= 0.5 + 1e-6

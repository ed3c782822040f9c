"""From sums alone each client learns whether it is among the lowest, and no more."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from securefl.algorithms.lowest import TieBreak, among_lowest, histogram, places
from securefl.errors import MessageRefused
from securefl.types import Total

N_LEVELS, N_FINER = 6, 40


@dataclass
class Sums:
    """An exchange for clients that run one after the other: first they are heard, then answered."""

    heard: dict = field(default_factory=dict)
    answers: bool = False
    weight: float = 1.0

    def sum(self, name, values):
        if not self.answers:
            self.heard.setdefault(name, []).append(values["levels"])
        heard = self.heard[name]
        return Total({"levels": sum(heard) / len(heard)}, 1.0, len(heard))


def lowest(standings, n_places):
    """Each client's answer, by client, and all that was sent."""
    sums = Sums()
    for level, _ in standings:
        histogram(sums, "levels", N_LEVELS, level)
    counts = histogram(Sums(sums.heard, answers=True), "levels", N_LEVELS, None)

    def ask(sums, level, finer):
        return among_lowest(sums, n_places, counts, level, TieBreak("finer", N_FINER, finer))

    for level, finer in standings:
        ask(sums, level, finer)
    answering = Sums(sums.heard, answers=True)
    return [ask(answering, level, finer) for level, finer in standings], sums.heard


@st.composite
def some_standings(draw):
    """Levels with many ties, finer levels without."""
    finer = draw(st.lists(st.integers(0, N_FINER - 1), min_size=2, max_size=12, unique=True))
    return [(draw(st.integers(0, N_LEVELS - 1)), f) for f in finer]


@given(some_standings(), st.integers(1, 11))
def test_the_lowest_are_those_that_sorting_finds(standings, n_places):
    """By level, then by finer level: exactly `n_places` clients, the same as in the clear."""
    n_places = min(n_places, len(standings) - 1)
    found, _ = lowest(standings, n_places)
    expected = sorted(standings)[:n_places]
    assert [s for s, isin in zip(standings, found, strict=True) if isin] == [
        s for s in standings if s in expected
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=12))
def test_a_tie_that_nothing_breaks_gives_nobody_a_place(standings):
    """Never more than the places, and whoever has one is lower than everyone who has none."""
    n_places = len(standings) // 2
    found, _ = lowest(standings, n_places)
    assert sum(found) <= n_places
    inside = [s for s, isin in zip(standings, found, strict=True) if isin]
    outside = [s for s, isin in zip(standings, found, strict=True) if not isin]
    assert all(one < other for one in inside for other in outside)


@given(some_standings(), st.integers(0, 2**32))
def test_the_sums_do_not_tell_who_has_which_level(standings, seed):
    """Clients that swap their levels leave every total as it was; untied ones send zeros."""
    order = torch.randperm(len(standings), generator=torch.Generator().manual_seed(seed))
    n_places = len(standings) // 2
    _, one = lowest(standings, n_places)
    _, other = lowest([standings[i] for i in order], n_places)
    for name, sent in one.items():
        assert torch.equal(sum(sent), sum(other[name]))
    assert sum(map(torch.sum, one["finer"])) <= max(
        sum(level == at for level, _ in standings) for at in range(N_LEVELS)
    )


@pytest.mark.parametrize(
    "lie", [[0, -1, 0, 0, 2, 0], [0, 0, 0, -2, 3, 0], [0, 0, -1, 0, 1, 1], [2, 0, 0, 0, 0, 0]]
)
def test_a_client_that_moves_others_is_found_out(lie):
    """Beside levels 1, 3, 3, 5: a one taken away, a count below zero, more ones than clients."""
    levels, sums = [1, 3, 3, 5], Sums()
    for level in levels:
        histogram(sums, "levels", N_LEVELS, level)
    sums.heard["levels"].append(torch.tensor(lie).double())
    answering = Sums(sums.heard, answers=True)
    with pytest.raises(MessageRefused, match="a client sent rubbish"):
        [histogram(answering, "levels", N_LEVELS, level) for level in levels]


@given(st.integers(1, 200), st.integers(1, 99))
def test_places_are_those_of_the_decimal_that_was_written(n_clients, percent):
    """29 % of 100 clients are 29, though 0.29 · 100 is less in binary."""
    assert places(percent / 100, n_clients) == n_clients * percent // 100

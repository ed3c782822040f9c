"""Whoever spoils every total is found, and nobody else is named."""

import random
from itertools import combinations

import pytest

from securefl.federation.left_out import Suspects

LEAST = 3


def resumed(search):
    """The search that goes on from a checkpoint."""
    again = Suspects(search.least)
    again.go_on_from(search.numbers())
    assert again == search
    return again


def played(n, liars, n_rounds=60):
    """The search over so many rounds; how many of them were passed."""
    everyone = [f"client-{i}" for i in range(n)]
    search, n_passed = Suspects(LEAST), 0
    for _ in range(n_rounds):
        search = resumed(search)
        among = search.taking_part(everyone)
        assert len(among) >= LEAST
        if liars & set(among):
            assert search.refused(among)
            n_passed += 1
        else:
            search.opened(among)
    assert search.taking_part(everyone) == [name for name in everyone if name not in liars]
    return search, n_passed


@pytest.mark.parametrize("n", range(4, 21))
def test_one_liar_is_found_wherever_it_stands(n):
    for i in range(n):
        liars = {f"client-{i}"}
        search, n_passed = played(n, liars)
        assert search.guilty == liars
        assert n_passed <= 9


@pytest.mark.parametrize("n", range(5, 10))
def test_two_liars_are_found_and_no_one_else(n):
    """Where they can be left out at once; a search may take long, and ends."""
    for pair in combinations(range(n), 2):
        liars = {f"client-{i}" for i in pair}
        search = Suspects(LEAST)
        everyone = [f"client-{i}" for i in range(n)]
        for _ in range(60):
            search = resumed(search)
            among = search.taking_part(everyone)
            if not liars & set(among):
                search.opened(among)
            elif not search.refused(among):
                break
        assert search.guilty <= liars


@pytest.mark.parametrize("seed", range(100))
def test_nobody_else_is_named_where_clients_are_away_from_some_rounds(seed):
    """Lost, late or not selected: whoever is found has spoiled every total that it was in."""
    rng, everyone = random.Random(seed), [f"client-{i}" for i in range(8)]
    search = Suspects(LEAST)
    for _ in range(80):
        among = [name for name in search.taking_part(everyone) if rng.random() < 0.8]
        if len(among) < LEAST:
            continue
        if "client-5" not in among:
            search.opened(among)
        elif not search.refused(among):
            break
    assert search.guilty <= {"client-5"}


def test_with_no_more_than_the_fewest_nobody_can_be_left_out():
    assert not Suspects(LEAST).refused(["a", "b", "c"])


def test_who_joins_during_a_search_waits_for_its_end():
    search = Suspects(LEAST)
    search.refused(["a", "b", "c", "d"])
    assert "late" not in search.taking_part(["a", "b", "c", "d", "late"])

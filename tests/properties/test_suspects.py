"""Whoever spoils every total is found, and nobody else is named."""

import json
import random
from dataclasses import asdict
from itertools import combinations

import pytest
from pydantic import TypeAdapter

from securefl.errors import RunFolderError
from securefl.federation.left_out import ListsOfModel, Suspects, next_list
from securefl.federation.opening_history import MOST_LISTS, fewest
from securefl.federation.total import Terms
from securefl.io.json import parsed
from securefl.runs.session import InFlight

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


def under_the_rule(n, spoilers, most_lists=MOST_LISTS):
    """A search where totals of each round are opened before one is refused; how it ends."""
    everyone, turn, n_moved = [f"client-{i:02d}" for i in range(n)], 0, 0
    search, lists = Suspects(LEAST), ListsOfModel(LEAST, most_lists)
    lists.at("0")
    for turn in range(60):
        taking = search.taking_part(everyone)
        listed = next_list(lists, search, dict.fromkeys(taking, Terms()), turn)
        if listed is None:
            assert spoilers & set(search.suspected)
            return "ends"
        lists.note(dict.fromkeys(listed, Terms()))
        at_model = {frozenset(name for name, *_ in one) for one in lists.as_rows()}
        assert frozenset(listed) in at_model
        assert len(at_model) <= most_lists
        assert len(fewest(at_model)) >= LEAST
        if spoilers & set(listed):
            if not search.refused(listed):
                return "ends"
        else:
            search.opened(listed, [name for name in taking if name not in listed])
            lists.at(str(n_moved := n_moved + 1))
        if search.guilty:
            assert search.guilty == spoilers
            return "found"
    return "goes on"


@pytest.mark.parametrize("n", range(4, 17))
def test_a_search_shows_nobody_by_the_lists_of_one_model(n):
    """Of eight and more it finds whoever spoils; of fewer it may end, and names the group."""
    ends = [under_the_rule(n, {f"client-{i:02d}"}) for i in range(n)]
    assert set(ends) <= {"found", "ends"}
    if n > 7:
        assert set(ends) == {"found"}
    if n < 6:
        assert set(ends) == {"ends"}


def test_where_officers_may_be_away_a_search_ends():
    """All totals at a model are of one list, which a spoiler is on."""
    assert under_the_rule(12, {"client-03"}, most_lists=1) == "ends"


def noted(*lists, most_lists=MOST_LISTS):
    """Lists of a model at which totals of these were opened."""
    made = ListsOfModel(LEAST, most_lists)
    made.at("5e")
    for names in lists:
        assert made.note(dict.fromkeys(names, Terms()))
    return made


def chosen(lists, present, **more):
    return "".join(lists.chosen({name: Terms() for name in present}, **more) or "none")


@pytest.mark.parametrize(
    ("before", "present", "found"),
    [
        ((), "abc", "abc"),
        (("abcde",), "abcde", "abcde"),
        (("abcde",), "abcdef", "abcde"),
        (("abcde",), "abcdefgh", "abcdefgh"),
        (("abcde",), "abcd", "none"),
        (("abcde",), "abcdfg", "abcdfg"),
        (("abcdefgh",), "abcdefg", "cdefg"),
        (("abcdef",), "abcde", "cde"),
        (("abcdef", "cde"), "abcdef", "abcdef"),
        (("abcdef", "cde"), "abcde", "cde"),
        (("abcdef", "cde"), "bcdf", "none"),
        (("abcdef", "abcghi", "defghi", "abcdefghijklm"), "abcdefghijkl", "abcdef"),
    ],
)
def test_the_next_list_at_a_model_is_the_same_or_leaves_out_enough(before, present, found):
    assert chosen(noted(*before), present) == found


def test_those_who_are_left_out_change_and_some_are_kept():
    lists = noted("abcdefgh")
    assert chosen(lists, "abcdefg", turn=1) == "adefg"
    assert chosen(lists, "abcdefg", keep="a") == "adefg"
    assert chosen(lists, "abcdefg", keep="abcdef") == "none"
    assert chosen(noted("abcdefgh", most_lists=1), "abcdefg") == "none"
    assert lists.missing("abcd") == list("efgh")
    assert noted().missing("abcd") == []


def test_who_would_send_other_values_than_before_is_on_no_list():
    """Twice what it sent, or from another state: the difference would be its own."""
    lists = noted("abcdef")
    for terms in (Terms(times=2), Terms(since=3)):
        changed = dict.fromkeys("abcde", Terms()) | {"f": terms}
        assert not lists.allow(changed)
        assert lists.chosen(changed) == ["c", "d", "e"]
    assert lists.allow(dict.fromkeys("abcdef", Terms()))
    assert lists.allow(dict.fromkeys("abcghi", Terms()))
    assert not lists.allow(dict.fromkeys("abcde", Terms()))


def test_lists_are_forgotten_with_the_model_and_taken_up_by_the_next_session():
    lists = noted("abcdef")
    in_flight = InFlight(4, tuple("abcdef"), "5e", lists.as_rows())
    again = parsed(TypeAdapter(InFlight), json.dumps(asdict(in_flight)).encode(), RunFolderError)
    assert again == in_flight
    resumed = noted()
    resumed.take_up(again.lists_at("5e", 9, {}))
    assert chosen(resumed, "abcde") == "cde"
    assert again.lists_at("5f", 9, {}) == ()
    assert again.lists_at("5f", 4, {}) == in_flight.lists  # the same round, as it was before
    older = InFlight(4, ("a", "b", "c"))
    assert older.lists_at("5e", 4, {"b": 2}) == ((("a", 1, 0), ("b", 1, 2), ("c", 1, 0)),)
    assert older.lists_at("5e", 5, {}) == ()
    lists.forget(dict.fromkeys("abcdef", Terms()))
    assert chosen(lists, "abcde") == "abcde"
    assert lists.note(dict.fromkeys("abcdef", Terms()))
    assert not lists.note(dict.fromkeys("abcdef", Terms()))
    assert not lists.note(dict.fromkeys("ab", Terms()))  # of which nothing is opened
    lists.at("5e")
    assert lists.as_rows()
    lists.at("5f")
    assert lists.as_rows() == ()

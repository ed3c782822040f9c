"""Clients that interrupt rounds: each time they sit out longer, and a run goes on."""

from __future__ import annotations

from securefl.federation.interruptions import MOST_OUT, Interruptions

EVERYONE = ["a", "b", "c", "d"]


def resumed(rounds):
    """Return the record as a run that was stopped takes it up."""
    again = Interruptions(rounds.least)
    again.go_on_from(rounds.numbers())
    return again


def sat_out(rounds, after):
    """Return the number of rounds that "d" sits out after this one."""
    number = after + 1
    while "d" not in rounds.taking_part(number, EVERYONE):
        number += 1
    return number - after - 1


def test_a_client_sits_out_twice_as_long_each_time():
    """None, one, two, four, and never more than the most."""
    rounds, number, found = Interruptions(3), 1, []
    for _ in range(9):
        rounds.note(number, ["d"])
        rounds = resumed(rounds)
        found.append(sat_out(rounds, number))
        number += found[-1] + 1
    assert found == [0, 1, 2, 4, 8, 16, MOST_OUT, MOST_OUT, MOST_OUT]


def test_a_client_that_fails_in_each_round_costs_one_in_thirty_three():
    """Of a long run, and the first seven."""
    rounds, passed = Interruptions(3), 0
    for number in range(1, 1001):
        if "d" in rounds.taking_part(number, EVERYONE):
            rounds.note(number, ["d"])
            passed += 1
    assert passed <= 7 + 1000 / (MOST_OUT + 1)


def test_nobody_sits_out_where_too_few_would_be_left():
    """Of those that are there, who may be fewer than there were."""
    rounds = Interruptions(3)
    rounds.note(1, ["c", "d"])
    rounds.note(2, ["d"])
    assert rounds.taking_part(3, EVERYONE) == ["a", "b", "c"]
    assert rounds.taking_part(3, ["a", "b", "d"]) == ["a", "b", "d"]
    assert "d: sits out until round 3: 2 rounds" in rounds.words("d")

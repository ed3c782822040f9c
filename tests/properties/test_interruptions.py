"""Clients that interrupt rounds: each time they sit out longer, and a run goes on."""

from __future__ import annotations

import random

import pytest

from securefl.federation.left_out import FORGOTTEN, MOST_OUT, Interruptions

EVERYONE = ["a", "b", "c", "d"]


def sat_out(rounds, after):
    """Return the number of rounds that "d" sits out after this one."""
    number = after + 1
    while "d" in rounds.out_of(number, EVERYONE):
        number += 1
    return number - after - 1


def test_a_client_sits_out_twice_as_long_each_time():
    """None, one, two, four, and never more than the most."""
    rounds, number, found = Interruptions(3), 1, []
    for _ in range(9):
        rounds.note(number, ["d"])
        found.append(sat_out(rounds, number))
        number += found[-1] + 1
    assert found == [0, 1, 2, 4, 8, 16, MOST_OUT, MOST_OUT, MOST_OUT]


def played(fails, n_rounds=2000):
    """Return the numbers of rounds that "d" interrupts, and that it sits out."""
    rounds, lost, out, n_in = Interruptions(3), 0, 0, 0
    for number in range(1, n_rounds + 1):
        if "d" in rounds.out_of(number, EVERYONE):
            out += 1
            rounds.counted(EVERYONE[:3])
        elif fails(n_in := n_in + 1):
            lost += 1
            rounds.note(number, ["d"])
        else:
            rounds.counted(EVERYONE)
    return lost, out


@pytest.mark.parametrize("every", [1, 2, 5, FORGOTTEN, FORGOTTEN + 1, 40])
def test_a_client_that_fails_on_purpose_has_one_round_in_seventeen_pass(every):
    """At most, and the first ten: however often it fails, where the count is known to it."""
    lost, _ = played(lambda i: i % every == 0)
    assert lost <= 10 + 2000 / (FORGOTTEN + 1)


@pytest.mark.parametrize(("share", "most"), [(0.005, 40), (0.01, 80), (0.03, 400)])
def test_a_line_that_breaks_now_and_then_costs_few_rounds(share, most):
    """Of two thousand: interruptions of long ago are forgotten."""
    rng = random.Random(0)
    _, out = played(lambda _: rng.random() < share)
    assert out <= most


def test_a_run_that_is_resumed_has_all_back_and_forgets_nothing_else():
    rounds = Interruptions(3)
    for number in (1, 2, 4):
        rounds.note(number, ["d"])
    again = Interruptions(3)
    again.go_on_from(rounds.numbers())
    assert (sat_out(rounds, 4), sat_out(again, 4)) == (2, 0)
    again.note(5, ["d"])
    assert sat_out(again, 5) == 4
    assert "d: sits out until round 9: 4 rounds" in again.words("d")

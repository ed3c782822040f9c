"""What a run has released is composed, stored, continued and held against a budget."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefl.errors import ConfigError, RunFolderError
from securefl.privacy.events import Gaussian, Level, SampledGaussian, WithoutPrivacy
from securefl.privacy.history import History
from securefl.privacy.odometer import MARKS, Spending
from securefl.privacy.wording import epsilon_words

DELTA = 1e-5
ROUND = SampledGaussian(1.0, 0.02, 5)

noise = st.floats(0.01, 1e6) | st.integers(1, 100)
steps = st.integers(1, 10**6)
events = (
    st.builds(SampledGaussian, noise, st.floats(1e-9, 0.999), steps)
    | st.builds(Gaussian, noise, steps)
    | st.builds(WithoutPrivacy, st.text(min_size=1).filter(str.strip))
)


def made(*entries):
    history = History()
    for level, event in entries:
        history = history.plus(level, event)
    return history


@given(st.lists(st.tuples(st.sampled_from(Level), events)))
def test_a_stored_history_is_the_same_history(entries):
    """To the last bit of every number, and once more after it has gone on."""
    history = made(*entries)
    read = History.from_json(history.to_json())
    assert read == history
    assert read.plus(Level.RECORD, ROUND) == history.plus(Level.RECORD, ROUND)
    json.loads(history.to_json(), parse_constant=pytest.fail)


@pytest.mark.parametrize("level", Level)
def test_composition_over_a_restart_is_the_uninterrupted_value(level):
    """Bit for bit, wherever the run stopped, also in mid-stage and more than once."""
    rounds = [ROUND, ROUND, Gaussian(10.0), SampledGaussian(1.3, 0.02, 5), ROUND, Gaussian(10.0)]
    whole = made(*((level, event) for event in rounds)).epsilon(level, DELTA)
    for stop in (1, 3, 5):
        history = made(*((level, event) for event in rounds[:stop]))
        for event in rounds[stop:]:
            history = History.from_json(history.to_json()).plus(level, event)
        assert history.epsilon(level, DELTA) == whole


@settings(max_examples=4, deadline=None)
@given(st.permutations([ROUND, ROUND, SampledGaussian(2.0, 0.1), Gaussian(9.0), Gaussian(12.0)]))
def test_the_order_of_releases_does_not_matter(order):
    """Bit for bit: ε is a function of how often each happened."""
    found = made(*((Level.RECORD, event) for event in order)).epsilon(Level.RECORD, DELTA)
    expected = History(record=(*[SampledGaussian(2.0, 0.1), Gaussian(9.0), Gaussian(12.0)], ROUND))
    assert found == expected.plus(Level.RECORD, ROUND).epsilon(Level.RECORD, DELTA)


def test_levels_are_kept_apart():
    """A release at client level costs no record anything in this account, and the reverse."""
    history = made((Level.CLIENT, Gaussian(1.0)), (Level.RECORD, ROUND))
    assert history.events(Level.CLIENT) == (Gaussian(1.0),)
    assert history.events(Level.RECORD) == (ROUND,)
    alone = made((Level.RECORD, ROUND))
    assert history.epsilon(Level.RECORD, DELTA) == alone.epsilon(Level.RECORD, DELTA)
    assert History().epsilon(Level.CLIENT, DELTA) == 0


def test_steps_of_one_kind_in_a_row_are_one_event():
    """So that a history of a thousand rounds is a line, and a stage without noise is named once."""
    bare = WithoutPrivacy("warm-up")
    history = made(*[(Level.RECORD, event) for event in (ROUND, ROUND, bare, bare, ROUND)])
    assert history.record == (SampledGaussian(1.0, 0.02, 10), bare, ROUND)


def test_a_stage_without_privacy_makes_epsilon_infinite_in_words():
    """The stages are named, each once; the other level is as it was."""
    history = made(
        (Level.RECORD, ROUND),
        (Level.RECORD, WithoutPrivacy("stage I of FixBN")),
        (Level.RECORD, WithoutPrivacy("scores")),
        (Level.CLIENT, Gaussian(2.0)),
    )
    assert history.epsilon(Level.RECORD, DELTA) == math.inf
    assert epsilon_words(history, Level.RECORD, DELTA) == (
        "ε is infinite for one record of one client: stage I of FixBN, scores had no noise, so "
        "nothing is guaranteed, whatever the other stages add."
    )
    assert epsilon_words(history, Level.CLIENT, DELTA) == (
        "ε = 1.99 (PLD; RDP 2.17) at δ = 1e-05 for all that one client contributes."
    )


DAMAGES = {
    "not JSON": lambda text: text[:-20],
    "no object": lambda text: "[]",
    "another number": lambda text: text.replace("0.02", "0.03"),
    "a release less": lambda text: text.replace('"steps": 5', '"steps": 4'),
    "another version": lambda text: text.replace("history/1", "history/2"),
    "an unknown key": lambda text: text.replace('"stage"', '"stag"'),
    "an unknown kind": lambda text: text.replace('"gaussian"', '"laplace"'),
    "out of range": lambda text: text.replace("0.02", "2.0"),
    "not a number": lambda text: text.replace("0.02", "NaN"),
    "a text for a number": lambda text: text.replace("0.02", '"0.02"'),
    "no digest": lambda text: text.replace("sha256", "sha"),
    "bytes": lambda text: b"\xff\x00" + text.encode(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_history_is_refused(damage):
    """A run must not go on as if it had spent what a damaged file says."""
    history = made((Level.RECORD, ROUND), (Level.CLIENT, Gaussian(3.0)))
    text = history.plus(Level.CLIENT, WithoutPrivacy("stage I")).to_json()
    assert DAMAGES[damage](text) != text
    with pytest.raises(RunFolderError, match="privacy history: damaged"):
        History.from_json(DAMAGES[damage](text))


@given(st.integers(0, 400), st.integers(1, 255))
def test_any_changed_byte_is_found(place, change):
    """Or changes nothing but the white space."""
    history = made((Level.RECORD, ROUND), (Level.CLIENT, Gaussian(3.0)))
    content = bytearray(history.to_json().encode())
    content[place % len(content)] ^= change
    try:
        read = History.from_json(bytes(content))
    except RunFolderError:
        return
    assert read == history


def spending(level=Level.RECORD, rounds=60, budget=1.0, events=None):
    released = events or (Gaussian(12.0),)
    return Spending(level, DELTA, rounds, lambda done: released, budget)


def test_a_run_ends_with_the_last_round_within_its_budget():
    """The round after it would exceed it; nothing has been added yet."""
    run, history = spending(), History()
    last = run.last_round(history, 0)
    assert 0 < last < 60
    assert run.epsilon_after(history, 0, last) <= 1.0 < run.epsilon_after(history, 0, last + 1)
    for done in range(last):
        assert run.last_round(history, done) == last
        history = run.charged(history, done)
    assert run.last_round(history, last) == last
    assert spending(budget=None).last_round(History(), 0) == 60
    assert spending(budget=1e6).last_round(History(), 0) == 60


def test_a_round_that_was_run_twice_ends_a_run_earlier():
    """What an interrupted round released is spent, although it does not count as done."""
    run = spending()
    twice = run.charged(History(), 0)
    assert run.last_round(twice, 0) == run.last_round(History(), 0) - 1


def test_a_budget_counts_its_own_level():
    """What was released of clients costs a budget of records nothing."""
    history = made((Level.CLIENT, WithoutPrivacy("updates in the clear")))
    assert spending().last_round(history, 0) > 0
    assert spending(Level.CLIENT).last_round(history, 0) == 0


def test_a_history_that_lacks_a_round_covers_it_not():
    """In whatever order its releases stand; more than there were do no harm."""
    run = spending(events=(ROUND, Gaussian(12.0)))
    five = run.history(5)
    assert run.covers(five, 5)
    assert run.covers(five, 4)
    assert not run.covers(five, 6)
    assert not run.covers(made((Level.RECORD, replace(ROUND, steps=10**6))), 1)


def test_epsilon_between_two_marks_is_at_most_that_of_the_second():
    """Marks are rounds of the whole run, wherever it goes on; the last is its last round."""
    run = spending(rounds=205)
    marks = [run.next_mark(done) for done in range(206)]
    assert all(mark >= done for done, mark in enumerate(marks))
    assert len(set(marks)) <= MARKS + 1
    assert marks[-1] == 205
    assert {run.next_mark(mark) for mark in marks} == set(marks)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SampledGaussian(0.0, 0.1), "noise multiplier σ = 0.0: must be"),
        (lambda: SampledGaussian(math.nan, 0.1), "noise multiplier σ = nan"),
        (lambda: SampledGaussian(1.0, 1.0), "sample rate q = 1.0: must be above 0 and below 1"),
        (lambda: SampledGaussian(1.0, 0.0), "sample rate q = 0.0"),
        (lambda: SampledGaussian(1.0, 0.1, 0), "steps = 0: must be a whole number from 1"),
        (lambda: Gaussian(math.inf), "noise multiplier σ = inf"),
        (lambda: Gaussian(True), "noise multiplier σ = True"),
        (lambda: Gaussian(1.0, 1.5), "steps = 1.5"),
        (lambda: WithoutPrivacy(" "), "needs a name"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    """Before anything is composed of them."""
    with pytest.raises(ConfigError, match=message):
        make()

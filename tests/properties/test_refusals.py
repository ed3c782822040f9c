"""Lines on refused callers: few of each, none forgotten in the count, others not affected."""

import re

from hypothesis import given
from hypothesis import strategies as st

from securefl.network.refusals import MOST_LINES, WITHIN_S, Refusals
from securefl.network.saying import Warned


def refused(calls):
    """Lines by caller with their moments, of calls `(seconds since the one before, caller)`."""
    now, said, lines = 0.0, [], {}
    refusals = Refusals(said.append, lambda: now)
    for pause, caller in calls:
        now += pause
        refusals.refuse(caller, f"{caller}: has other settings")
        lines.setdefault(caller, []).extend((now, line) for line in said)
        said.clear()
    return lines


CALLS = st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["alice", "bob"])), max_size=80)


@given(CALLS)
def test_no_caller_has_more_lines_than_a_few_a_minute(calls):
    """Minutes count from a caller's first line, or from its first one after the minute before."""
    for lines in refused(calls).values():
        moments = [moment for moment, _ in lines]
        assert len(moments) <= MOST_LINES * (1 + (moments[-1] - moments[0]) // WITHIN_S)
        assert all(b - a >= WITHIN_S for a, b in zip(moments, moments[5:], strict=False))


@given(CALLS)
def test_each_refusal_is_said_or_counted_in_the_next_line(calls):
    """Once a caller has been quiet for a minute, and calls once more."""
    names = {caller for _, caller in calls}
    more = [(WITHIN_S, name) for name in sorted(names)]
    for name, lines in refused([*calls, *more]).items():
        counts = [re.search(r"and (\d+) times more before", line) for _, line in lines]
        counted = sum(int(count[1]) for count in counts if count)
        assert len(lines) + counted == sum(name == who for _, who in calls) + 1


@given(CALLS)
def test_a_caller_that_calls_all_the_time_hides_nobody_else(calls):
    quiet = [(0.0, "mallory")] * 1000
    with_mallory = refused([*quiet, *calls])
    alone = refused(calls)
    assert {name: with_mallory[name] for name in alone} == alone
    assert len(with_mallory["mallory"]) == MOST_LINES


def test_the_last_line_says_that_more_is_counted():
    (_, first), (_, _), (_, last) = refused([(0, "alice")] * 9)["alice"]
    assert first == "Refused: alice: has other settings"
    assert last == f"{first} (more from there within 60 s is counted alone)"
    assert isinstance(last, Warned)

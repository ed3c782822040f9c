"""Whatever happens to sites changes nothing but who takes part; docs/results has 150 hiccups."""

import random

import pytest


@pytest.mark.slow
@pytest.mark.full
def test_hiccups_change_nothing_but_who_takes_part_and_that_is_named(benchmark):
    """Real processes: killed, cut off, with stepped clocks and a full disk; one goes for good."""
    script = benchmark("hiccups")
    counts, pace = script.Counts(2, 2, 2, 1), script.Pace(rounds=10, steps=400, mean_s=0.1)
    about = script.WAYS["in the clear"], counts, random.Random(3), script.CLIENTS[:3], pace
    found = script.result_of(*about)
    assert sum(sum(job.hiccups.values()) for job in found.jobs) == 7
    for job in found.jobs:
        assert job.rounds == 10
        assert job.difference < 1e-12
        assert job.n_absences > 0
        assert (job.n_unnamed, job.n_repeated, job.n_tracebacks) == (0, 0, 0)

"""Parties that are killed and started again change nothing; docs/results has sixty kills."""

import pytest


@pytest.mark.full
@pytest.mark.slow
def test_killed_parties_change_neither_model_nor_ledger_and_no_total_is_opened_twice(
    benchmark, tmp_path
):
    """Real processes, of which the authority is killed: all others end, and start again, too."""
    script = benchmark("kill_and_resume")
    script.ceremony(tmp_path, script.CLIENTS)
    found = script.outcome(tmp_path, "sealed", [script.Kill(script.AUTHORITY, 0.3)], 6)
    assert found.killed == {script.AUTHORITY: 1}
    assert found.n_same_records == found.n_jobs
    assert found.largest_difference < 1e-6
    assert found.n_repeated == 0
    assert found.n_opened > 0
    assert found.n_opened_twice == 0

"""Parties that are killed and started again change nothing; docs/results has sixty kills."""

import pytest


@pytest.mark.slow
def test_killed_parties_change_neither_model_nor_ledger_and_no_total_is_opened_twice(
    benchmark, tmp_path
):
    """Real processes: the authority, the server and a client, each once."""
    script = benchmark("kill_and_resume")
    script.ceremony(tmp_path)
    pending = [script.Kill(party, 0.3) for party in (script.AUTHORITY, script.SERVER, "carol")]
    found = script.outcome(tmp_path, "sealed", pending, 8)
    assert found.killed == {script.AUTHORITY: 1, script.SERVER: 1, "carol": 1}
    assert found.n_same_records == found.n_jobs
    assert found.largest_difference < 1e-6
    assert found.n_repeated == 0
    assert found.n_opened > 0
    assert found.n_opened_twice == 0

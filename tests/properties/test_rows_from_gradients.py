"""The page on patients' rows out of gradients: its script at small effort, and what it says."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import rows_from_gradients as script  # noqa: E402  (docs are no package)


def test_a_gradient_of_one_patient_gives_every_reading_to_a_hundredth_of_a_deviation():
    """In the clear, whatever normalises it; who knows nothing is far away."""
    read = {(line[0], line[2]): line for line in script.of_gradients(script.SHORT, [1])}
    for way in ("constants", "all clients' batches"):
        assert float(read[way, "first layer"][5]) < script.NEAR
        assert read[way, "first layer"][6] == "100%"
        assert float(read[way, "no information"][4]) > 0.3


def test_sums_of_one_patient_of_each_client_give_most_rows_away():
    """Of 3, 5 and 10 clients, if constants normalise them; of eight each, none."""
    lines = script.of_sums(script.SHORT, [(1, 1), (1, 8)])
    shares = {tuple(line[:4]): line[-1] for line in lines if line[5] == "first layer"}
    assert all(int(shares["constants", n, "1", "1"][:-1]) > 50 for n in ("3", "5", "10"))
    assert shares["constants", "10", "1", "8"] == "0%"


def test_the_page_has_all_lines():
    """Else: python docs/rows_from_gradients.py docs/results/inversion-rows.md."""
    page = (DOCS / "results" / "inversion-rows.md").read_text()
    for clients in (3, 5, 10):
        for steps, batch in script.SHAPES:
            assert f"| constants | {clients} | {steps} | {batch} |" in page

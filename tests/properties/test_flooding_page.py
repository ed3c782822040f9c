"""The page on flooding says what its script prints, and what its commands name exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from securefl.exchange.policy import Policy

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import flooding

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "flooding.md").read_text()


def test_the_page_has_the_table_that_the_script_prints():
    """To the digit: of the default policy."""
    assert flooding.table(Policy().flooding) in PAGE


def test_the_table_is_of_the_formula():
    """σ = √(12 τ) 2^(s/2) 2 (N/6) √n / 2^scale, each number by hand."""
    _, _, two, one = flooding.table(Policy().flooding).splitlines()
    for row, scale_bits in ((two, 78), (one, 45)):
        _, *found = row.strip("| ").split(" | ")
        for sigma, n in zip(found, (5, 50, 500, 10_000), strict=True):
            by_hand = (12 * 2**30) ** 0.5 * 2**20 * 2 * (4096 / 6) * n**0.5 / 2**scale_bits
            assert sigma == f"{by_hand:.1e}"


def test_the_page_is_short_and_names_files_that_exist():
    """At most ninety lines; each path in it is a file of the repository."""
    assert len(PAGE.splitlines()) <= 90
    paths = re.findall(r"`((?:docs|tests|securefl|keys|benchmarks)/[\w./]+\.\w+)`", PAGE)
    assert paths
    for path in paths:
        assert (DOCS.parent / path).is_file(), path

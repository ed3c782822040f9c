"""The errors of a committee's openings, as docs/threshold.md has them."""

from __future__ import annotations

import re
import sys
from math import log2, sqrt
from pathlib import Path

import pytest

from securefl.exchange.decode_total import TotalDecoder

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from committee_noise import CLIENTS, OFFICERS, table  # noqa: E402


def test_the_table_in_the_docs_is_the_present_one():
    """docs/threshold.md has what docs/committee_noise.py prints."""
    assert table() in (ROOT / "docs/threshold.md").read_text(), "python docs/committee_noise.py"


def test_the_table_follows_from_the_formula():
    """By hand: n officers err by n √K times what one client under one authority does."""
    alone = sqrt(12 * 2**30) * 2**20 * 2 * (4096 / 6) / 2**78
    authority, *rows = table().splitlines()[2:]
    errors = [float(cell) for cell in authority.split("|")[2:-1]]
    assert errors == pytest.approx([alone * sqrt(k) for k in CLIENTS], rel=0.05)
    for n_officers, row in zip(OFFICERS, rows, strict=True):
        cells = re.findall(r"([0-9.e-]+); 2\^(\d+)", row)
        for k, (error, bits) in zip(CLIENTS, cells, strict=True):
            assert float(error) == pytest.approx(alone * n_officers * sqrt(k), rel=0.05)
            assert 2.0 ** -int(bits) > 2 * 6 * float(error) * 0.95


@pytest.mark.parametrize("deviation", [1e-12, 1e-9, 3.6e-9, 1e-6, 1e-4])
def test_a_weights_steps_are_the_finest_that_the_noise_leaves_right(deviation):
    """Half a step is six deviations at least, and never is a step finer than 2^-26."""
    bits = TotalDecoder(1.0, 1, deviation).weight_bits
    assert bits == 26 or 6 <= 2.0 ** -(bits + 1) / deviation < 12
    assert bits <= 26
    assert bits == 26 or -log2(12 * deviation) < bits + 1

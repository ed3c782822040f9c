"""The page on one-time keys says what its script prints, and what the parameters are."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from securefl.crypto.params import SUMS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "one-time-keys.md").read_text()


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    yield import_module("one_time_security")
    sys.modules.pop("one_time_security")


def test_the_table_of_attacks_is_the_scripts(script):
    """Line by line."""
    assert script.table() in PAGE


def test_an_attack_costs_more_against_wider_keys(script):
    """And less than any attack may: the estimate tells keys apart."""
    narrow, wide = script.cheapest(0.8)[0], script.cheapest(30.0)[0]
    assert narrow < script.cheapest(script.KEY_DEVIATION)[0] < wide


def test_the_page_has_the_parameters():
    """Of a ciphertext, its length, what it holds, and what a value errs by."""
    assert f"{SUMS.ciphertext_bytes:,} bytes, which hold {SUMS.values_per_ciphertext}" in PAGE
    assert f"of {SUMS.modulus_bits} bits, N = {SUMS.poly_degree}" in PAGE
    assert f"2^{SUMS.scale_bits}, the range of a total ±{SUMS.max_value:.0f}" in PAGE
    assert SUMS.noise(1) == pytest.approx(7.5e-10, rel=0.01)
    assert "7.5e-10 √n" in PAGE

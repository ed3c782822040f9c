"""The page on one-time keys says what its script prints, and what the parameters are."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from securefl.crypto import KEY_DEVIATION
from securefl.crypto.params import MATCHES, SUMS

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
    narrow, wide = (script.cheapest(SUMS, deviation)[0] for deviation in (0.8, 30.0))
    assert narrow < script.cheapest(SUMS, KEY_DEVIATION)[0] < wide


def test_the_page_has_the_parameters():
    """Of a ciphertext, its length, what it holds, and what a value errs by."""
    assert f"{SUMS.ciphertext_bytes:,} bytes, which hold {SUMS.values_per_ciphertext}" in PAGE
    assert f"of {SUMS.modulus_bits} bits, N = {SUMS.poly_degree}" in PAGE
    assert f"2^{SUMS.scale_bits}, the range of a total ±{SUMS.max_value:.0f}" in PAGE
    assert SUMS.noise(1) == pytest.approx(7.5e-10, rel=0.01)
    assert "7.5e-10 √n" in PAGE


def test_the_page_has_the_parameters_of_profiles():
    """Of a profile's ciphertext, its length, and what a score is divided by."""
    about = (
        f"N = {MATCHES.poly_degree}, q of {MATCHES.modulus_bits} bits, scale 2^{MATCHES.scale_bits}"
    )
    assert f"{about}: {MATCHES.ciphertext_bytes:,} bytes" in PAGE
    assert f"then by 2^{MATCHES.weight_bits}\n" in PAGE
    assert f"/ 2^{MATCHES.score_scale_bits} =" in PAGE
    share = 2 ** (MATCHES.modulus_bits - MATCHES.score_scale_bits - MATCHES.range_bits - 1)
    assert f"Rubbish passes one time in {share}" in PAGE

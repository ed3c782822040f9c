"""The check of docstrings finds each planted breach, and nothing in what keeps the rules."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import prose_check

GOOD = '''"""Sums over clients."""

BITS = 8
"""Bits of a digit."""


class Adder:
    """Server's side of a sum."""

    @property
    def total(self):
        """The running total."""

    def add(self, message):
        """Add a message; raises MessageRefused."""


def _whole(n):
    """Return True for a whole number."""
'''


def found(tmp_path, code):
    path = tmp_path / "module.py"
    path.write_text(code)
    return [line.split(": ", 1)[1] for line in prose_check.report(path)]


def test_what_keeps_the_rules_is_not_reported(tmp_path):
    assert found(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("good", "bad", "word"),
    [
        ("Sums over clients.", "What is added.", "'What'"),
        ("Sums over clients.", "Sums over clients", "full stop"),
        ("Sums over clients.", f"{'Sums ' * 20}over clients.", "113 characters"),
        ("Bits of a digit.", "Of a digit.", "'Of'"),
        ("Server's side of a sum.", "Holds a sum.", "'Holds'"),
        ("Server's side of a sum.", "Each server adds.", "'Each server adds'"),
        ("Add a message;", "A message more;", "'A'"),
        ("Add a message;", "Σ m;", "'Σ'"),
        ("The running total.", "How much it is.", "'How'"),
        ("Return True for a whole number.", "Whether it is whole.", "'Whether'"),
        ("Return True for a whole number.", "True for a whole number.", "'True'"),
    ],
)
def test_a_planted_breach_is_found(tmp_path, good, bad, word):
    """Once, by its own words."""
    (rule,) = found(tmp_path, GOOD.replace(good, bad))
    assert word in rule


def test_the_exit_code_says_whether_there_is_a_breach(tmp_path, capsys):
    path = tmp_path / "module.py"
    path.write_text('"""Whose it is."""\n')
    assert prose_check.main([str(path)]) == 1
    assert capsys.readouterr().out.startswith(f"{path}:1: begins with 'Whose'")
    path.write_text(GOOD)
    assert prose_check.main([str(path)]) == 0

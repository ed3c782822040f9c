"""Releases: each that is installed is pinned, and none with a known hole is in a range."""

from __future__ import annotations

import hashlib
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [
    Requirement(line)
    for line in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])
]
PINS = {
    canonicalize_name(name): release
    for name, release in (
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]
    )
}


def needed(requirements: list[Requirement], seen: set[str]) -> set[str]:
    """Every distribution that is installed for `requirements`, by its name."""
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        needed([Requirement(line) for line in distribution(name).requires or []], seen)
    return seen


def test_every_distribution_is_pinned():
    """constraints.txt names all that SecureFL and its tests are installed with, to the last one."""
    assert needed(ASKED, set()) - set(PINS) == set()


def test_each_pin_lies_in_its_range():
    """`make` installs nothing that pyproject.toml excludes."""
    outside = [r for r in ASKED if PINS[canonicalize_name(r.name)] not in r.specifier]
    assert outside == []


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("torch", "2.10.0"),
        ("cryptography", "49.0.0"),
        ("scikit-learn", "1.4.2"),
        ("pillow", "12.3.0"),
        ("jinja2", "3.1.5"),
        ("filelock", "4.2.0"),
    ],
)
def test_the_last_release_with_a_known_hole_is_excluded(name, release):
    """The CVEs stand beside the lower bound in pyproject.toml."""
    (asked,) = (requirement for requirement in ASKED if requirement.name == name)
    assert release not in asked.specifier


def test_the_licence_is_apache_2_unmodified():
    """LICENSE is the text of apache.org/licenses/LICENSE-2.0.txt."""
    assert PROJECT["license"] == "Apache-2.0"
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"

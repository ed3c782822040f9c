"""A key folder made once for several test files, and what is wrong with a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from securefl_keys import sealed_file
from securefl_keys.description import describe

PASSPHRASE = "correct horse battery staple"
SUMS_SECRET, MATCH_SECRET = "authority/secret.key", "authority/match.key"
RELEASES = "authority/match.releases"
SUMS_FILES = (
    SUMS_SECRET,
    "authority/parameters.json",
    "server/parameters.json",
    "clients/public.key",
)
MATCH_FILES = (MATCH_SECRET, RELEASES, "server/match.json", "clients/match-public.key")


@contextmanager
def cheap() -> Iterator[None]:
    """Guesses of a passphrase cost nothing in what is sealed meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield


def problems_of(directory: Path) -> dict[str, tuple[str, ...]]:
    """By file, of those that have some."""
    return {
        entry.path.as_posix(): entry.problems for entry in describe(directory) if entry.problems
    }

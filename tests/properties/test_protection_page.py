"""The page on protection says who opens what, and who together could open more."""

from __future__ import annotations

import pytest

from securefl import load_config
from securefl.privacy.history import History
from securefl.report.protection import opening_said, protection_page

PROFILES = ["selection.name=fedprof", "selection.alpha=1.0"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["exchange.encrypt=none"], "Nothing is sealed: the server reads whatever clients send."),
        ([], "The authority opens totals alone. Server and authority together could"),
        ([*PROFILES, "exchange.encrypt=profiles"], "The authority opens scores alone."),
        ([*PROFILES, "exchange.encrypt=statistics,profiles"], "opens totals and scores alone."),
        (["exchange.officers=3"], "The answers of 2 of 3 officers open totals;"),
        (
            [*PROFILES, "exchange.encrypt=profiles", "exchange.officers=3"],
            "The answers of 2 of 3 officers open scores;",
        ),
        (
            [*PROFILES, "exchange.encrypt=model", "exchange.officers=3"],
            "The answers of 2 of 3 officers open totals and scores;",
        ),
        (
            ["exchange.officers=3"],
            "1 officer with the server reads nothing more, and 1 may be away.",
        ),
        (["exchange.officers=5", "exchange.threshold=4"], "Server and 4 officers together could"),
    ],
)
def test_the_page_says_who_opens(settings, said):
    """One authority, or so many of the officers; by the settings that a run has."""
    config = load_config(settings=settings)
    assert said in opening_said(config)
    flowing = " ".join(protection_page(config, History()).split())
    assert opening_said(config) in flowing

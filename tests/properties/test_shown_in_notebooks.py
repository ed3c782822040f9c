"""Objects that a notebook shows: tables with figures, in which nothing from outside is markup."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

import pytest
from made_findings import FINDINGS

import securefl

CLIENTS = ["north", "<script>alert(1)", '"><img src=x onerror=alert(1)>']
OWN_BN = [
    *("run.rounds=3", "algorithm.name=fedbn", "exchange.encrypt=none", "data.clients=3"),
    "data.partition=classes:4",
]


@pytest.fixture(scope="module")
def result():
    """A run without a folder, whose clients are scored by themselves, and two of them hostile."""
    names = ", ".join(f"'{name}'" for name in CLIENTS)
    return securefl.run(securefl.load_config(settings=[*OWN_BN, f"data.names=[{names}]"]))


class Tags(HTMLParser):
    """Tags and attributes of a text, and tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.names, self.attributes, self.still_open = set(), set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.still_open.append(tag)

    def handle_endtag(self, tag):
        assert self.still_open.pop() == tag


@pytest.mark.parametrize("of", ["result", "ledger", "audit"])
def test_no_name_is_markup(result, of):
    """They carry their style, ask for nothing, and take colours from the page that they are on."""
    shown = {"result": result, "ledger": result.ledger, "audit": FINDINGS}[of]._repr_html_()
    tags = Tags(shown)
    assert not tags.still_open
    tables = {"h3", "table", "thead", "tbody", "tr", "th", "td"}
    assert tags.names <= {"div", "style", "p", "strong", "code", "span", "svg", "polyline", *tables}
    assert not {
        name for name in tags.attributes if name.startswith("on") or name in {"src", "href"}
    }
    assert "url(" not in shown
    assert "currentColor" in shown
    if of != "audit":
        assert all(name in unescape(shown) for name in CLIENTS)


def test_a_result_shows_its_figures(result):
    said = re.sub(r"<[^>]+>", " ", result._repr_html_())
    best = result.best
    assert f"{100 * best.compared:.1f}\N{NO-BREAK SPACE}%, round {best.round}" in said
    assert re.search(r"Rounds\s+3\s", said)
    assert "ε" not in said  # none was claimed


def test_an_audit_marks_what_leaks():
    (row,) = re.findall(r'<tr class="alarming">.*', FINDINGS._repr_html_())
    assert "LEAKS" in row
    assert "Gradient inversion" in row

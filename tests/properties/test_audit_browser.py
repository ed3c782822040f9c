"""The audit's report in a real browser: on a phone, on a desk, on paper, and without a network."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from browser import CHROMIUM, browser
from made_findings import FINDINGS, LEAK, LONG, NASTY, NUMBER

from securefl.audit.findings import Number, Section
from securefl.audit.page import html_page
from securefl.audit.rules import Verdict
from securefl.io.html import PageTable


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    if not CHROMIUM:
        pytest.skip("no chromium here: `apt-get install chromium` brings one")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page of all that is hard to fit: long words, many columns, wide pictures."""
    wide = PageTable(
        "Many columns",
        [f"column {i}" for i in range(8)],
        [[f"{10**9 + i:,}" for i in range(8)], ["a cell of some words"] * 8],
        frozenset({0}),
    )
    hard = Section(
        "hard",
        LONG,
        Verdict.WEAK,
        f"`{LONG}` {LONG}",
        (Number(LONG, 1e14, LONG, 2**31 - 1, -1e14, 1e14, "bytes"), NUMBER),
        (wide, PageTable(LONG, (LONG, "b"), ((LONG, "b"), ("a", LONG)))),
        LEAK.pictures,
        (LONG, *NASTY),
    )
    facts = {**FINDINGS.facts, LONG: LONG}
    found = replace(FINDINGS, run=LONG, facts=facts, sections=(*FINDINGS.sections, hard))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_bytes(html_page(found).encode())
    return path


@pytest.mark.parametrize("width", [360, 390, 1200])
def test_no_page_is_wider_than_its_window(tab, report, width):
    """Tables scroll inside their boxes; nothing is cut off there, either."""
    tab.open(report, width)
    assert tab.evaluate("innerWidth") == width
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    boxes = "[...document.querySelectorAll('.wide')]"
    assert tab.evaluate(f"{boxes}.every(box => box.getBoundingClientRect().right <= {width})")
    scrolls = tab.evaluate(f"{boxes}.map(b => b.scrollWidth > b.clientWidth)")
    assert not scrolls[0]
    assert any(scrolls)


def test_printed_nothing_is_cut_off_and_each_section_has_a_page(tab, report):
    """A4 with its margins is 182 mm wide; the verdicts have the first page to themselves."""
    width = int(182 / 25.4 * 96)
    tab.open(report, width, media="print")
    right = "Math.max(...[...document.querySelectorAll('main *')].map(e => e.%s.right))"
    assert tab.evaluate(right % "getBoundingClientRect()") <= width
    breaks = tab.evaluate(
        "[...document.querySelectorAll('section')].map(s => getComputedStyle(s).breakBefore)"
    )
    assert breaks == ["page"] * 5
    pages = len(re.findall(rb"/Type /Page\b", tab.pdf()))
    assert 1 + 5 <= pages <= 20


def test_the_page_asks_the_network_for_nothing(tab, report, tmp_path):
    """Itself and its pictures alone; the same watch does see a page that asks."""
    tab.open(report)
    assert {address.split(":")[0] for address in tab.requests} == {"file", "data"}
    assert tab.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
    assert tab.evaluate("document.scripts.length") == 0
    asking = tmp_path / "asking.html"
    asking.write_text('<img src="http://127.0.0.1:9/x.png">')
    tab.open(asking)
    assert "http://127.0.0.1:9/x.png" in tab.requests
    policy = re.search(r"<meta http-equiv[^>]*>", report.read_text())[0]
    asking.write_text(f'{policy}<img src="http://127.0.0.1:9/x.png">')
    tab.open(asking)
    assert any("Content Security Policy" in said for said in tab.requests)


CONTRASTS = """
(() => {
  const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') return colour;
    }
  };
  return [...document.querySelectorAll('main *')]
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .map(e => [light(getComputedStyle(e).color), light(behind(e))])
    .map(([a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
})()
"""


def test_all_text_stands_out_from_what_is_behind_it(tab, report):
    """WCAG's contrast of 4.5 and more, by its own formula; on paper, too."""
    for media in ("screen", "print"):
        tab.open(report, media=media)
        contrasts = tab.evaluate(CONTRASTS)
        assert len(contrasts) > 50
        assert min(contrasts) >= 4.5

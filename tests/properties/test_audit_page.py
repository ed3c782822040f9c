"""The audit's report: a page that holds every number and needs nothing, and a JSON beside it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_findings import FINDINGS, LEAK, findings

from securefl.audit.findings import Number, Section, holds_findings, page_differs
from securefl.audit.page import (
    BADGES,
    LEGEND,
    html_page,
    in_short,
    in_terminal,
    interval_said,
    value_said,
)
from securefl.audit.rules import Verdict
from securefl.io.text import printable

VOID = {"meta", "img", "br"}
ALLOWED = {"scope", "class", "id", "lang", "charset", "name", "content", "http-equiv"}
ALLOWED |= {"role", "tabindex", "aria-label", "href", "src", "alt"}


class Page(HTMLParser):
    """What a page holds; refuses one whose elements are not closed in order."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.cells, self.texts = [], [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), "an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag in {"th", "td"}:
            self.cells.append("")
        if tag == "br":
            self.handle_data("\n")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        if {"th", "td"} & set(self.open):
            self.cells[-1] += data
        self.texts.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return squeezed("".join(self.texts))


def squeezed(text):
    """As a browser shows it: any white space is one space."""
    return " ".join(text.split())


def seen(text):
    """What the page makes of a text: control characters are escapes."""
    return squeezed(printable(text))


def prose(text):
    """The same of words in which code may stand, between backticks that are not shown."""
    return seen(re.sub(r"`([^`]+)`", r"\1", text))


@settings(deadline=None, max_examples=150)
@given(findings)
def test_any_findings_give_a_page_that_holds_them_and_nothing_foreign(found):
    """It parses, holds all texts and numbers, and no text becomes markup or a reference."""
    html = html_page(found)
    page = Page(html)
    html.encode()
    assert html == html_page(found)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "base", "form"})
    assert all(attributes.keys() <= ALLOWED for _, attributes in page.tags)
    assert all(image["src"].startswith("data:image/") for image in page.of("img"))
    anchors = {attributes.get("id") for _, attributes in page.tags}
    assert all(a["href"][0] == "#" and a["href"][1:] in anchors for a in page.of("a"))
    styles = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert len(styles) == 1
    assert not re.search(r"url\(|@import|//", styles[0])
    text, in_cells = page.text, [squeezed(cell) for cell in page.cells]
    assert all(seen(t) in text for t in (found.run, *found.facts, *found.facts.values()))
    for section in found.sections:
        assert text.count(prose(section.words)) >= 2
        assert all(prose(note) in text for note in section.notes)
        assert {p.description for p in section.pictures} <= raw_alts(page, section.pictures)
        for table in section.tables:
            shown = [printable(c) for c in (*table.columns, *(c for r in table.rows for c in r))]
            assert all(any(squeezed(s) in cell for cell in in_cells) for s in shown)
        for number in section.numbers:
            name = squeezed(f"{printable(number.name)}\n{printable(number.method)}")
            at = [i for i, cell in enumerate(in_cells) if cell == name]
            value = squeezed(f"{value_said(number)} {interval_said(number)}")
            seed = "none" if number.seed is None else str(number.seed)
            assert any(in_cells[i + 1 : i + 3] == [value, seed] for i in at)


def raw_alts(page, pictures):
    """The descriptions whose escaped form is some picture's alternative text."""
    alts = {image["alt"] for image in page.of("img")}
    return {p.description for p in pictures if printable(p.description) in alts}


@settings(deadline=None, max_examples=50)
@given(findings, st.data())
def test_neither_page_nor_json_can_be_changed_alone(found, data):
    """Each has the other's digest: a byte of one, a field twice, or another form is seen."""
    html = html_page(found).encode()
    numbers = found.to_json(html)
    assert page_differs(html, numbers) == ""
    at = data.draw(st.integers(0, len(html) - 1))
    changed = html[:at] + bytes([html[at] ^ 1]) + html[at + 1 :]
    assert "page: not the one" in page_differs(changed, numbers)
    head = numbers[: numbers.index(b'"run"')]
    others = [
        numbers.replace(b'"effort": "', b'"effort": "no'),
        numbers.replace(head, head + b'"run": "another",\n ', 1),
        numbers.replace(b'"seed": ', b'"seed":  ', 1),
        numbers.replace(f'"seed": {found.seed}'.encode(), b'"seed": NaN', 1),
        found.to_json(html).replace(b'"chapters": {', b'"more": 1, "chapters": {', 1),
    ]
    for other in others:
        assert other != numbers
        assert "JSON: not the findings" in page_differs(html, other)
    assert "page: not the one" in page_differs(html, replace(found, seed=1 - found.seed).to_json())


@settings(deadline=None)
@given(findings)
def test_the_json_is_valid_repeats_and_gives_numbers_back(found):
    """Without NaN and Infinity, which JSON does not have; to the last bit otherwise."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = found.to_json()
    read = json.loads(text.decode(), parse_constant=refuse)
    assert text == found.to_json()
    assert list(read["chapters"]) == [section.key for section in found.sections]
    for section in found.sections:
        told = read["chapters"][section.key]
        assert [told["title"], told["verdict"], told["words"]] == [
            section.title,
            section.verdict,
            section.words,
        ]
        for number, kept in zip(section.numbers, told["numbers"], strict=True):
            assert (kept["name"], kept["method"]) == (number.name, number.method)
            assert (kept["seed"], kept["unit"]) == (number.seed, number.unit)
            for end in ("value", "low", "high"):
                value = getattr(number, end)
                same = value == kept[end] if kept[end] is None else str(value) == str(kept[end])
                assert same


def test_text_that_is_no_unicode_is_written_all_the_same(tmp_path):
    """A file's name of another encoding, in an error that a section tells of."""
    found = replace(
        FINDINGS, sections=(replace(LEAK, words="Not measured: /data/\udcff: damaged."),)
    )
    assert "/data/\\udcff" in html_page(found).encode().decode()
    words = json.loads(found.to_json())["chapters"]["inversion"]["words"]
    assert words == "Not measured: /data/\udcff: damaged."


def test_the_verdicts_come_first_and_the_worst_on_top():
    """Before any section: the run's verdict, then each section's in the order of alarm."""
    html = html_page(FINDINGS)
    first, *sections = html.split("<section")
    assert len(sections) == len(FINDINGS.sections)
    badges = re.findall(r'class="badge (\w+)">(\w+)<', first)
    assert badges == [(v.value, BADGES[v]) for v in (Verdict.LEAKS, *BADGES)]
    assert "could have learnt, what they should not: Gradient inversion." in first
    assert all(squeezed(c.words).split("`")[0] in first for c in FINDINGS.sections)
    assert [s.split('"')[1] for s in sections] == [c.key for c in FINDINGS.sections]


@pytest.mark.parametrize(
    ("verdicts", "worst", "sentence"),
    [
        ("", "open", "Nothing was promised"),
        ("open", "open", "Nothing was promised"),
        ("open holds", "open", "held (1 attacked, 0 checked), and these are open: open."),
        ("holds holds", "holds", "2 of 2 sections held (2 attacked, 0 checked)."),
        ("holds weak open", "weak", "or a claim rests on little: weak."),
        ("weak leaks leaks", "leaks", "should not: leaks, leaks."),
    ],
)
def test_the_worst_section_gives_the_run_its_verdict(verdicts, worst, sentence):
    found = replace(FINDINGS, sections=[Section(v, v, Verdict(v), "") for v in verdicts.split()])
    assert f'class="verdict is-{worst}"' in html_page(found)
    assert in_short(found).endswith(sentence) or in_short(found).startswith(sentence)


def test_logs_and_tables_are_checked_and_not_attacked():
    """By badge, legend, counts, terminal and JSON; what is no part of the run is called a trial."""
    checked = replace(FINDINGS.sections[1], attacked=False, trials="Had it sealed less: all.")
    found = replace(FINDINGS, sections=[checked])
    page = html_page(found)
    assert '<span class="badge holds">Checked</span>' in page
    assert "<strong>Trials, no part of this run.</strong> Had it sealed less: all." in page
    assert "Had it sealed less" not in page.partition("<section")[0]
    assert in_short(found) == "1 of 1 sections held (0 attacked, 1 checked)."
    told = in_terminal(found)
    assert told.startswith("CHECKED Encryption: Totals alone were opened.\n")
    assert told.endswith(f"CHECKED {LEGEND['Checked']}")
    assert "LEAKS" not in told
    read = json.loads(found.to_json())["chapters"]["encryption"]
    assert (read["verdict"], read["attacked"]) == ("checked", False)
    assert read["trials"] == checked.trials


def test_sections_that_were_not_measured_are_counted_and_are_no_good_news():
    held = Section("a", "A", Verdict.HOLDS, "Held.")
    missing = Section("b", "B", Verdict.OPEN, "Not measured: all public rows are alike.")
    found = replace(FINDINGS, sections=[held, missing])
    assert 'class="verdict is-open"' in html_page(found)
    assert in_short(found) == (
        "1 of 2 sections held (1 attacked, 0 checked), and these are open: B. Not measured: 1 of 2 "
        "sections."
    )
    leaking = replace(found, sections=[LEAK, missing])
    assert in_short(leaking).endswith(" Not measured: 1 of 2 sections.")


def test_code_is_marked_and_a_number_keeps_its_percent_sign():
    html = html_page(FINDINGS)
    assert html.count("<code>--encrypt model</code>") == 2
    assert html.count("50\N{NO-BREAK SPACE}% of the cases") == 2


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.123456, "", "0.1235"),
        (1234567, "", "1,234,567"),
        (0.5, "%", "50.0%"),
        (2048, "bytes", "2,048 bytes"),
        (36.79, "dB", "36.79 dB"),
        (math.inf, "", "∞"),
        (-math.inf, "dB", "-∞ dB"),
        (math.inf, "bytes", "∞ bytes"),
        (math.inf, "%", "∞ %"),
        (math.nan, "", "nan"),
    ],
)
def test_values_are_said_with_their_unit(value, unit, said):
    assert value_said(Number("", value, "", unit=unit)) == said


def test_the_page_can_be_heard_and_told_without_colours():
    """Language, headings in order, table heads with their scope, pictures and rows in words."""
    page = Page(html_page(FINDINGS))
    assert page.of("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    assert {head["scope"] for head in page.of("th")} == {"col", "row"}
    assert [image["alt"] for image in page.of("img")] == ["Nothing but a line."]
    flags = [span for span in page.of("span") if span.get("role") == "img"]
    assert [flag["aria-label"] for flag in flags] == ["alarming"]
    assert "!\N{NO-BREAK SPACE}RMIA" in page.cells


def test_findings_in_a_file_are_known_from_any_other(tmp_path):
    for name, content in {"a": FINDINGS.to_json(), "b": b"{}", "c": b"[", "d": b"\xff"}.items():
        (tmp_path / name).write_bytes(content)
    assert [holds_findings(tmp_path / name) for name in "abcde"] == [True, *[False] * 4]

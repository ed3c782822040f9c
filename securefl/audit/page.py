"""Report of an audit: findings as one HTML file that needs nothing else, its verdicts first."""

import math
from collections.abc import Iterator, Mapping

from securefl.audit.findings import CHECKED, Findings, Number, Section
from securefl.audit.glossary import used
from securefl.audit.rules import Verdict
from securefl.io.html import rendered
from securefl.io.text import printable

TEMPLATE = "audit/page.html.jinja"
BADGES = {
    Verdict.LEAKS: "Leaks",
    Verdict.WEAK: "Weak",
    Verdict.OPEN: "Open",
    Verdict.HOLDS: "Holds",
}
"""Badges of verdicts, in the order of alarm."""
LEGEND = {
    BADGES[Verdict.LEAKS]: "a claim is refuted, or somebody reads what nobody should.",
    BADGES[Verdict.WEAK]: "something is learnt, or a claim rests on little.",
    BADGES[Verdict.OPEN]: "nothing was claimed, or too little was there to measure; no good news.",
    BADGES[Verdict.HOLDS]: "attacked, and stood. An attack that fails is no proof.",
    CHECKED.capitalize(): "logs and tables agree with the settings and with each other. Nobody "
    "attacked them.",
}


def in_terminal(findings: Findings) -> str:
    """Return each section's verdict and words for a terminal, and what verdicts mean."""
    said = [
        printable(f"{section.said.upper():7} {section.title}: {section.words}")
        for section in findings.sections
    ]
    given = {section.said.capitalize() for section in findings.sections}
    meant = [f"{word.upper():7} {means}" for word, means in LEGEND.items() if word in given]
    return "\n".join(["\n\n".join(said), "", *meant])


def html_page(findings: Findings) -> str:
    """Return the whole report, fit for UTF-8; the same findings give the same text."""
    return rendered(
        TEMPLATE,
        findings=findings,
        badges=BADGES,
        by_alarm=by_alarm(findings),
        worst=worst(findings),
        todo=advice(findings),
        in_short=in_short(findings),
        means=first_uses(findings),
        legend=LEGEND,
        glossary=used(_texts(findings)),
        value=value_said,
        interval=interval_said,
    )


def by_alarm(findings: Findings) -> list[Section]:
    """Return the sections, the most alarming first; among equals as they stand."""
    return sorted(findings.sections, key=lambda section: list(BADGES).index(section.verdict))


def advice(findings: Findings) -> dict[str, list[Section]]:
    """Return what to do, each advice once with the sections that give it; most alarming first."""
    said: dict[str, list[Section]] = {}
    for section in by_alarm(findings):
        if section.do:
            said.setdefault(section.do, []).append(section)
    return said


def worst(findings: Findings) -> Verdict:
    """Return the verdict of the whole: that of the most alarming section."""
    return min((c.verdict for c in findings.sections), key=list(BADGES).index, default=Verdict.OPEN)


def in_short(findings: Findings) -> str:
    """Return one sentence on the whole run."""
    return f"{_worst_in_words(findings)}{_not_measured(findings)}"


def _worst_in_words(findings: Findings) -> str:
    leaking = _titles(findings, Verdict.LEAKS)
    weak = _titles(findings, Verdict.WEAK)
    still_open = _titles(findings, Verdict.OPEN)
    held, n = _listed(findings, Verdict.HOLDS), len(findings.sections)
    attacked = sum(section.attacked for section in held)
    how = f"({attacked} attacked, {len(held) - attacked} checked)"
    if leaking:
        return f"Somebody learnt, or could have learnt, what they should not: {leaking}"
    if weak:
        return f"No section leaks. Something is learnt, or a claim rests on little: {weak}"
    if held and len(held) == n:
        return f"{n} of {n} sections held {how}."
    if held:
        return f"{len(held)} of {n} sections held {how}, and these are open: {still_open}"
    return "Nothing was promised, or too little was there to measure."


def _not_measured(findings: Findings) -> str:
    """Return in words how many sections were not measured; nothing for none."""
    missing = [section for section in findings.sections if not section.measured]
    if not missing:
        return ""
    return f" Not measured: {len(missing)} of {len(findings.sections)} sections."


def first_uses(findings: Findings) -> dict[str, Mapping[str, str]]:
    """Return the words of the glossary that a place of the page is the first to use.

    Places in their order: a section's key behind `verdict `, `legend`, and each section's key.
    """
    places = {f"verdict {s.key}": [s.title, s.words, s.do] for s in by_alarm(findings)}
    places["legend"] = [*LEGEND.values()]
    places |= {section.key: [*_said_in(section)] for section in findings.sections}
    explained, found = set[str](), dict[str, Mapping[str, str]]()
    for place, texts in places.items():
        found[place] = {w: meaning for w, meaning in used(texts).items() if w not in explained}
        explained |= found[place].keys()
    return found


def _texts(findings: Findings) -> Iterator[str]:
    """Yield all that the report says, for its glossary."""
    yield from LEGEND.values()
    for section in findings.sections:
        yield from _said_in(section)


def _said_in(section: Section) -> Iterator[str]:
    yield from (section.title, section.words, section.do, section.trials, *section.notes)
    yield from (text for number in section.numbers for text in (number.name, number.method))
    for table in section.tables:
        yield from (table.title, *table.columns, *(cell for row in table.rows for cell in row))


def value_said(number: Number) -> str:
    """Return a number with its unit, as people read it."""
    return _said(number.value, number.unit)


def interval_said(number: Number) -> str:
    """Return a number's 95 % interval; empty where it has none."""
    if number.low is None or number.high is None:
        return ""
    return f"{_said(number.low, number.unit)} … {_said(number.high, number.unit)}"


def _said(value: float, unit: str) -> str:
    if math.isinf(value):
        return f"{'-' * (value < 0)}∞ {unit}".strip()
    match unit:
        case "%":
            return f"{value:.1%}"
        case "bytes":
            return f"{value:,.0f} bytes"
        case _:
            whole = abs(value) < 1e15 and float(value).is_integer()
            return f"{value:,.0f} {unit}".strip() if whole else f"{value:.4g} {unit}".strip()


def _titles(findings: Findings, verdict: Verdict) -> str:
    """Return the titles of these sections as the end of a sentence; nothing for none."""
    titles = ", ".join(section.title for section in _listed(findings, verdict))
    return f"{titles}." if titles and not titles.endswith("?") else titles


def _listed(findings: Findings, verdict: Verdict) -> list[Section]:
    return [section for section in findings.sections if section.verdict is verdict]

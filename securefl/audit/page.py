"""The report: findings as one HTML file that needs nothing else, its verdicts first."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from securefl.audit.findings import Chapter, Findings, Number, Verdict

TEMPLATE = "page.html.jinja"
BADGES = {
    Verdict.LEAKS: "Leaks",
    Verdict.WEAK: "Weak",
    Verdict.HOLDS: "Holds",
    Verdict.OPEN: "Open",
}
"""In the order of alarm."""


def html_page(findings: Findings) -> str:
    """The whole report; the same findings give the same text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"value": value_said, "interval": interval_said}
    template = environment.from_string(files(__package__).joinpath(TEMPLATE).read_text("utf-8"))
    return template.render(
        findings=findings,
        badges=BADGES,
        worst=worst(findings),
        in_short=in_short(findings),
    )


def worst(findings: Findings) -> Verdict:
    """The verdict of the whole: that of the most alarming chapter."""
    return next(v for v in BADGES if any(c.verdict is v for c in findings.chapters))


def in_short(findings: Findings) -> str:
    """One sentence on the whole run."""
    leaking = _titles(findings, Verdict.LEAKS)
    weak = _titles(findings, Verdict.WEAK)
    if leaking:
        return f"Somebody learnt what they should not: {leaking}."
    if weak:
        return f"Nothing that was promised is broken, and something is learnt: {weak}."
    if _titles(findings, Verdict.HOLDS):
        return "All that was attacked held."
    return "Nothing was promised, or too little was there to measure."


def value_said(number: Number) -> str:
    """A number with its unit, as people read it."""
    return _said(number.value, number.unit)


def interval_said(number: Number) -> str:
    """Its 95 % interval; empty where it has none."""
    if number.low is None or number.high is None:
        return ""
    return f"{_said(number.low, number.unit)} … {_said(number.high, number.unit)}"


def _said(value: float, unit: str) -> str:
    match unit:
        case "%":
            return f"{value:.1%}"
        case "bytes":
            return f"{value:,.0f} bytes"
        case _:
            whole = abs(value) < 1e15 and float(value).is_integer()
            return f"{value:,.0f} {unit}".strip() if whole else f"{value:.4g} {unit}".strip()


def _titles(findings: Findings, verdict: Verdict) -> str:
    found: list[Chapter] = [c for c in findings.chapters if c.verdict is verdict]
    return ", ".join(chapter.title for chapter in found)

"""Findings of an audit: sections of numbers with their methods, and a verdict in plain words."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from securefl.audit.rules import NOT_MEASURED, Verdict
from securefl.audit.statistics import Interval
from securefl.crypto.artefact import digest
from securefl.errors import RunFolderError
from securefl.io.files import read_bounded
from securefl.io.html import PageTable, Picture, notebook_html
from securefl.io.json import parsed

PAGE, FINDINGS = "audit.html", "audit.json"
"""Names of a report's files in the run's folder."""
MAX_BYTES = 2**26
_ON_PAGE = re.compile(rb'<code id="findings">([0-9a-f]{64})</code>')
"""Place of the findings' SHA-256 on the page."""
CHECKED = "checked"
"""Word in the place of `holds` for a section that nobody attacked."""


@dataclass(frozen=True, slots=True)
class Number:
    """Measured value, and how it came about."""

    name: str
    value: float
    method: str
    """Method and its source, in a few words."""
    seed: int | None = None
    """Seed of what was drawn for it; None where nothing was."""
    low: float | None = None
    high: float | None = None
    """Upper end of the 95 % interval; None where there is none."""
    unit: str = ""
    """Unit `dB`, `bits`, `bytes`, `%` (the value is then a share, 0..1); empty for pure numbers."""

    @classmethod
    def of(
        cls, name: str, found: Interval, method: str, seed: int | None = None, unit: str = ""
    ) -> "Number":
        """Return a value with its interval."""
        return cls(name, found.value, method, seed, found.low, found.high, unit)


@dataclass(frozen=True, slots=True)
class Section:
    """Section of the report: one audit of one run."""

    key: str
    """Name in the JSON, and anchor in the page."""
    title: str
    verdict: Verdict
    words: str
    """Meaning in plain words: one to three sentences for somebody who is no engineer."""
    numbers: Sequence[Number] = ()
    tables: Sequence[PageTable] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    """Assumptions, and what the audit cannot see."""
    do: str = ""
    """Advice on what to do; empty where there is nothing to do."""
    trials: str = ""
    """Sentences on trials of other runs than this one, such as one that seals less; or empty."""
    attacked: bool = True
    """False where logs and tables were checked, and nobody attacked."""
    pictures_of_records: bool = False
    """True where its pictures are records that attacks rebuilt."""

    @property
    def said(self) -> str:
        """Verdict in one word: `checked` where it holds and nobody attacked."""
        return _said(self.verdict, attacked=self.attacked)

    @property
    def measured(self) -> bool:
        """False where the audit could not measure what the section is about."""
        return not self.words.startswith(NOT_MEASURED)


@dataclass(frozen=True, slots=True, repr=False)
class Findings:
    """Findings of one run's audit, section by section."""

    run: str
    """Name of the run."""
    effort: str
    """Name of the effort: quick or full."""
    seed: int
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts about what was audited: settings, clients, rounds, versions."""
    sections: Sequence[Section] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Time, parties, keys, settings, sizes of data and digests of files: see `Provenance`."""
    tables: Sequence[PageTable] = ()
    """The same as tables, for the page."""

    def to_json(self, page: bytes | None = None) -> bytes:
        """Return everything but the pictures; the same findings give the same bytes.

        `page` is the report's page, whose SHA-256 the numbers then have; None where none is made.
        """
        found = {
            "run": self.run,
            "effort": self.effort,
            "seed": self.seed,
            "page": page and digest(page),
            "facts": dict(self.facts),
            "provenance": dict(self.provenance),
            "chapters": {section.key: _section(section) for section in self.sections},
        }
        return _written(found)

    def digest(self) -> str:
        """Return the SHA-256 of the findings, which their page has; the page's own is not in it."""
        return digest(self.to_json())

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{section.key}: {section.said}" for section in self.sections)
        return f"Findings({self.run}, {verdicts})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdict of each section, in words."""
        rows = [(section.said.upper(), section.title, section.words) for section in self.sections]
        bad = frozenset(i for i, of in enumerate(self.sections) if of.verdict is Verdict.LEAKS)
        table = PageTable("Verdicts", ("Verdict", "Section", "In words"), rows, bad)
        title = f"Privacy audit of {self.run} ({self.effort}, seed {self.seed})"
        return notebook_html(title, [], [table])


def verdict_said(section: Mapping[str, Any]) -> str:
    """Return the verdict of a section in the JSON in one word, as `Section.said`.

    The JSON of an older release says `holds` of a section that was checked.
    """
    return _said(section["verdict"], attacked=section.get("attacked", True))


def verdicts_in(findings: bytes) -> dict[str, str]:
    """Return the verdicts in a file that `Findings.to_json` has written, by section's title.

    Raises:
        RunFolderError: it has none.
    """
    found = parsed(TypeAdapter(dict[str, Any]), findings, RunFolderError)
    try:
        return {str(of["title"]): verdict_said(of) for of in found["chapters"].values()}
    except (LookupError, TypeError, AttributeError) as error:
        raise RunFolderError(f"no findings of an audit ({error}): audit the run anew") from error


def page_differs(html: bytes, findings: bytes) -> str:
    """Return in words which of page and JSON is not the other's; empty where they are one report.

    Each has the SHA-256 of the other, so that neither can be changed alone.

    Args:
        html: the page.
        findings: the file that `Findings.to_json` has written with it.

    Raises:
        RunFolderError: `findings` is no JSON.
    """
    found = parsed(TypeAdapter(dict[str, Any]), findings, RunFolderError)
    if found.get("page") != digest(html):
        return "the report's page: not the one that was written with these findings"
    of_page = [named.decode() for named in _ON_PAGE.findall(html)]
    try:
        same = of_page == [digest(_written(found | {"page": None}))]
        same = same and _written(found) == findings
    except ValueError:  # NaN, which no audit writes
        same = False
    return "" if same else "the report's JSON: not the findings that the page was made of"


def _written(found: Mapping[str, Any]) -> bytes:
    """Return the one form of the JSON file."""
    text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
    # A file's name that is no UTF-8 comes as lone surrogates: \udc80 is JSON's way to say so.
    return text.encode(errors="backslashreplace") + b"\n"


def _said(verdict: str, *, attacked: bool) -> str:
    return CHECKED if verdict == Verdict.HOLDS and not attacked else str(verdict)


def signature_of(page: Path, name: str) -> Path:
    """Return the place of a member's signature of a report."""
    return page.with_suffix(f".{name}.sig")


def is_of_report(name: str, page: str = PAGE) -> bool:
    """Return whether a file of this name is a report's page, its numbers, or a signature of it.

    An older release had one signature, `audit.sig`.
    """
    stem = Path(page).stem
    signature = name.startswith(f"{stem}.") and name.endswith(".sig") and "/" not in name
    return signature or name in {page, f"{stem}.json"}


def signatures(page: Path) -> list[Path]:
    """Return the files with signatures of a report that lie beside it."""
    beside = page.parent.iterdir() if page.parent.is_dir() else ()
    return sorted(p for p in beside if p.name.endswith(".sig") and is_of_report(p.name, page.name))


def holds_findings(path: Path) -> bool:
    """Return whether a file is one that `Findings.to_json` has written."""
    try:
        found = parsed(TypeAdapter(dict[str, Any]), read_bounded(path, MAX_BYTES), RunFolderError)
    except (OSError, RunFolderError):
        return False
    return {"run", "effort", "chapters"} <= found.keys()


def _section(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "verdict": section.said,
        "words": section.words,
        "do": section.do,
        "trials": section.trials,
        "attacked": section.attacked,
        "numbers": [
            {
                "name": number.name,
                "value": _finite(number.value),
                "low": _finite(number.low),
                "high": _finite(number.high),
                "unit": number.unit,
                "method": number.method,
                "seed": number.seed,
            }
            for number in section.numbers
        ],
        "tables": [
            {
                "title": t.title,
                "columns": list(t.columns),
                "rows": [list(row) for row in t.rows],
                "alarming": sorted(t.alarming),
            }
            for t in section.tables
        ],
        "notes": list(section.notes),
    }


def _finite(value: float | None) -> float | str | None:
    """Return a number as it is, and infinity, which JSON has not, as text."""
    return value if value is None or math.isfinite(value) else str(value)

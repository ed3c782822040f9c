"""What an audit finds: sections of numbers with their methods, and a verdict in plain words."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from securefl.audit.rules import Verdict
from securefl.audit.statistics import Interval
from securefl.errors import RunFolderError
from securefl.io.files import read_bounded
from securefl.io.json import parsed

MAX_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class Number:
    """One measured value, and how it came about."""

    name: str
    value: float
    method: str
    """What was computed of what, in a few words, with its source."""
    seed: int | None = None
    """Of what was drawn for it; None where nothing was."""
    low: float | None = None
    high: float | None = None
    """The 95 % interval; None where there is none."""
    unit: str = ""
    """`dB`, `bits`, `bytes`, `%` (the value is then a share, 0..1); empty for pure numbers."""

    @classmethod
    def of(
        cls, name: str, found: Interval, method: str, seed: int | None = None, unit: str = ""
    ) -> Number:
        """A value with its interval."""
        return cls(name, found.value, method, seed, found.low, found.high, unit)


@dataclass(frozen=True, slots=True)
class FindingsTable:
    """Rows under columns; cells are shown as they are."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    alarming: frozenset[int] = frozenset()
    """Rows that are shown in red."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing that the report carries inside itself."""

    title: str
    description: str
    """For those who cannot see it."""
    png: bytes = b""
    svg: str = ""
    """One of the two."""

    def source(self) -> str:
        """As an address that needs no request."""
        kind, content = ("svg+xml", self.svg.encode()) if self.svg else ("png", self.png)
        return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@dataclass(frozen=True, slots=True)
class Section:
    """One audit of one run."""

    key: str
    """Its name in the JSON, and its anchor."""
    title: str
    verdict: Verdict
    words: str
    """What it means, in plain words: one to three sentences for somebody who is no engineer."""
    numbers: Sequence[Number] = ()
    tables: Sequence[FindingsTable] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    """What was assumed, and what the audit cannot see."""


@dataclass(frozen=True, slots=True)
class Findings:
    """All sections of one run's audit."""

    run: str
    """The run's name."""
    effort: str
    """quick or full."""
    seed: int
    facts: Mapping[str, str] = field(default_factory=dict)
    """What was audited: settings, clients, rounds, versions."""
    sections: Sequence[Section] = ()

    def to_json(self) -> bytes:
        """Everything but the pictures; the same findings give the same bytes."""
        found = {
            "run": self.run,
            "effort": self.effort,
            "seed": self.seed,
            "facts": dict(self.facts),
            "chapters": {section.key: _section(section) for section in self.sections},
        }
        text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
        # A file's name that is no UTF-8 comes as lone surrogates: \udc80 is JSON's way to say so.
        return text.encode(errors="backslashreplace") + b"\n"


def holds_findings(path: Path) -> bool:
    """Whether a file is one that `Findings.to_json` has written."""
    try:
        found = parsed(TypeAdapter(dict[str, Any]), read_bounded(path, MAX_BYTES), RunFolderError)
    except (OSError, RunFolderError):
        return False
    return {"run", "effort", "chapters"} <= found.keys()


def _section(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "verdict": section.verdict,
        "words": section.words,
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
    """JSON has no infinity: in words there."""
    return value if value is None or math.isfinite(value) else str(value)

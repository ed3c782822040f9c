"""Pages: HTML files that need nothing else, and the tables and pictures that they carry."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from securefl.io.text import printable


@dataclass(frozen=True, slots=True)
class PageTable:
    """Table of rows under columns; cells are shown as they are."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    alarming: frozenset[int] = frozenset()
    """Indices of rows that are shown in red."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Drawing that a page carries inside itself."""

    title: str
    description: str
    """Content in words, for those who cannot see it."""
    png: bytes = b""
    svg: str = ""
    """Content as SVG; empty where it is a PNG."""

    def source(self) -> str:
        """Return the drawing as an address that needs no request."""
        kind, content = ("svg+xml", self.svg.encode()) if self.svg else ("png", self.png)
        return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@dataclass(frozen=True, slots=True)
class Curve:
    """Values one after the other, as a line 600 wide and 100 high."""

    values: Sequence[float]
    """Finite values, at least one."""
    description: str
    """Content in words, for those who cannot see it."""

    @property
    def points(self) -> str:
        """Corners of the line, as SVG has them."""
        low, last = min(self.values), max(1, len(self.values) - 1)
        span = (max(self.values) - low) or 1
        places = (
            (600 * i / last, 95 - 90 * (value - low) / span) for i, value in enumerate(self.values)
        )
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


NOTEBOOK = "report/notebook.html.jinja"


def notebook_html(
    title: str, words: Sequence[str], tables: Sequence[PageTable], curve: Curve | None = None
) -> str:
    """Return a part of a page that a notebook shows for an object; it brings its own style."""
    return rendered(NOTEBOOK, title=title, words=words, tables=tables, curve=curve)


def rendered(template: str, **values: Any) -> str:
    """Return a page, fit for UTF-8; the same values give the same text.

    Args:
        template: name of a file of this package, from its root on, as `report/run.html.jinja`.
        values: what the template names.
    """
    page = _environment().get_template(template).render(values)
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", page)


def spans(text: str) -> list[str]:
    """Split a text into text and code by turns: what stands between backticks is code."""
    return re.split(r"`([^`]+)`", text)


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_shown,
        loader=FunctionLoader(lambda name: files("securefl").joinpath(name).read_text("utf-8")),
    )
    environment.filters["spans"] = spans
    return environment


def _shown(value: Any) -> Any:
    """Return control characters, which a page cannot hold or a reader not see, as escapes."""
    return printable(value) if type(value) is str else value

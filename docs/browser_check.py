"""Look at pages in a real browser: python docs/browser_check.py AXE_JS PAGE ... [--run RUN ...].

AXE_JS is `axe.min.js` of the npm package axe-core; a PAGE is a file, or a folder of such. Of a RUN
it looks at the page of `securefl watch`, too. Each page is opened at 390 and 1280 pixels, in light
and dark, and as it is printed. Findings are printed, and the exit code is 1 where there is any:
a page that is wider than its window, an element that leaves the paper, a request that leaves this
machine, and what axe-core calls serious or critical. Chromium has to be installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import CHROMIUM, Browser, browser  # noqa: E402  (the tests' own)

from securefl.report.watching import FollowedRun, watching  # noqa: E402
from securefl.runs.folder_reader import read_run  # noqa: E402

WIDTHS = (390, 1280)
SCHEMES = ("light", "dark")
PAPER = int(182 / 25.4 * 96)
"""Width of A4 less its margins, in CSS pixels."""
WIDER = """
[...document.body.querySelectorAll('*')].filter(e => e.getClientRects().length
  && getComputedStyle(e).position !== 'fixed' && e.getBoundingClientRect().right > %d + 1)
  .slice(0, 3).map(e => e.outerHTML.slice(0, 100))
"""
FORGETS = "try { localStorage.clear() } catch {}"
"""Script that runs before a page's own: the site remembers light or dark."""
AXE = """
axe.run(document, {resultTypes: ['violations'], preload: false}).then(found => found.violations
  .filter(of => ['serious', 'critical'].includes(of.impact))
  .map(of => `${of.impact} ${of.id}, ${of.nodes.length} times: ${of.nodes[0].html.slice(0, 160)} `
    + of.nodes[0].any.concat(of.nodes[0].all).map(n => n.message).join('; ').slice(0, 200)))
"""


def findings(tab: Browser, address: str, axe: str) -> Iterator[str]:
    """Yield what is wrong with one page."""
    for width, scheme in product(WIDTHS, SCHEMES):
        at = f"{width} px, {scheme}"
        tab.visit(address, width, scheme=scheme)
        wide = tab.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            yield f"{at}: {wide} px wide: {tab.evaluate(WIDER % width)}"
        yield from (f"{at}: {said}" for said in _outside(tab, address))
        tab.evaluate(axe)
        yield from (f"{at}: {said}" for said in _awaited(tab, AXE))
    tab.visit(address, PAPER, media="print")
    wide = tab.evaluate("document.documentElement.scrollWidth")
    if wide > PAPER:
        yield f"in print: {wide} px of {PAPER}: {tab.evaluate(WIDER % PAPER)}"


def _outside(tab: Browser, address: str) -> list[str]:
    """Return the requests that went elsewhere than to files and the page's own server."""
    own = urlsplit(address)
    asked = [(asked, urlsplit(asked)) for asked in tab.requests]
    return [
        f"asks {asked:.200}"
        for asked, of in asked
        if of.scheme not in {"file", "data", "blob"} and of.netloc != (own.netloc or None)
    ]


def _awaited(tab: Browser, script: str) -> list[str]:
    found: dict[str, Any] = tab.tell(
        "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
    )
    return list(found["result"]["value"])


def _pages(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        found = sorted(path.rglob("*.html")) if path.is_dir() else [path]
        yield from (page for page in found if page.name != "404.html")  # a server's, with its root


def main(arguments: list[str]) -> int:
    """Print the findings of all pages; return the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("axe", type=Path)
    parser.add_argument("pages", type=Path, nargs="*")
    parser.add_argument("--run", type=Path, action="append", default=[])
    given = parser.parse_args(arguments)
    if not CHROMIUM:
        parser.error("no chromium here: `apt-get install chromium` brings one")
    axe = given.axe.read_text()
    n_pages = n_findings = 0
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        browser(Path(profile)) as tab,
    ):
        tab.tell("Page.addScriptToEvaluateOnNewDocument", source=FORGETS)

        def look(name: str, address: str) -> None:
            nonlocal n_pages, n_findings
            found = list(findings(tab, address, axe))
            n_pages, n_findings = n_pages + 1, n_findings + len(found)
            sys.stdout.writelines(f"{name}: {said}\n" for said in found)
            sys.stdout.flush()

        for page in _pages(given.pages):
            look(str(page), page.resolve().as_uri())
        for run in given.run:
            record = read_run(run)
            followed = FollowedRun(record.config.name, record.config.run.rounds)
            followed.seen.extend(record.metrics)
            with watching(followed) as address:
                look(f"watch {run}", address)
    sys.stdout.write(f"{n_pages} pages, {n_findings} findings\n")
    return int(n_findings > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

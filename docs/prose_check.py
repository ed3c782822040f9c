"""Check that docstrings follow the house's rules: python docs/prose_check.py [FILE ...].

A reader skims nouns and verbs, so a docstring begins with one. Each breach is printed as
`file:line: rule`, and the exit code is 1 where there is any. `make check` runs this.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("securefl", "keys", "cli", "benchmarks", "docs")
WIDTH = 100
NO_BEGINNING = re.compile(r"(What|Of|Who|Whose|How|Whether|By|As|That|Which|Why)\b", re.IGNORECASE)
NO_ACTION = re.compile(
    r"(The|A|An|Its|Their|Each|All|Every|Nothing|One|Within|True|False|Where|When|If|There|This"
    r"|These|Those|Such|Same|Some|Any|No|Not|Only|Just|For|From|In|On|At|To|With|Without)\b"
)
"""First words that no verb in the imperative, `Returns`, `Yields`, `Raises` or `See` can be."""
WORD = re.compile(r"[A-Z][a-z]+\b")
"""First word of a function's docstring: a symbol or an abbreviation is no verb."""
NO_NOUN = re.compile(
    r"(Adds|Applies|Asks|Builds|Calls|Carries|Checks|Does|Gives|Has|Holds|Is|Keeps|Knows|Lets"
    r"|Leaves|Makes|Opens|Puts|Reads|Returns|Runs|Says|Seals|Selects|Sends|Sets|Shows|Takes|Tells"
    r"|Trains|Turns|Under|Writes|Yields)\b|(Each|No) [a-z]+ [a-z]+s\b"
)
"""Beginnings of a sentence, which names no class."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Assignment = ast.Assign | ast.AnnAssign


def breaches(node: Documented) -> Iterator[str]:
    """Yield the rules that the docstring of `node` breaks, in words."""
    text = ast.get_docstring(node, clean=True)
    if text is None:
        return
    line = text.splitlines()[0]
    if found := NO_BEGINNING.match(line):
        yield f"begins with {found[0]!r}: begin with the noun or the verb that a reader looks for"
    if not line.endswith("."):
        yield "the first line ends without a full stop"
    if len(line) > WIDTH:
        yield f"the first line has {len(line)} characters: at most {WIDTH}"
    if isinstance(node, ast.ClassDef) and (found := NO_NOUN.match(line)):
        yield f"a class begins with {found[0]!r}: say what it is, as a noun phrase"
    if _is_function(node) and (NO_ACTION.match(line) or not WORD.match(line)):
        first = line.partition(" ")[0]
        yield f"a function begins with {first!r}: begin with a verb ('Build ...', 'Return ...')"


def _is_function(node: Documented) -> bool:
    """Return True for a function or a method; a property is a noun."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
        "property" in ast.unparse(each) for each in node.decorator_list
    )


def report(path: Path) -> list[str]:
    """Return the breaches in one file, as lines `file:line: rule`."""
    nodes = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, Documented)
    ]
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    found = [(node.body[0].lineno, rule) for node in nodes for rule in breaches(node)]
    found += [breach for node in nodes for breach in _of_attributes(node)]
    return [f"{shown}:{line}: {rule}" for line, rule in sorted(found)]


def _of_attributes(node: Documented) -> Iterator[tuple[int, str]]:
    """Yield line and rule of texts that stand behind an attribute, or a constant."""
    for before, text in pairwise(node.body):
        match text:
            case ast.Expr(value=ast.Constant(value=str(words))) if isinstance(before, Assignment):
                if found := NO_BEGINNING.match(words.strip()):
                    yield text.lineno, f"an attribute begins with {found[0]!r}: name the thing"


def _files() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))
    yield from sorted((ROOT / "tests").glob("*.py"))  # helpers; a test's own is a sentence


def main(names: list[str]) -> int:
    """Print the breaches of the named files, or of the whole repository; return the exit code."""
    paths = [Path(name).resolve() for name in names] or _files()
    lines = [line for path in paths for line in report(path)]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

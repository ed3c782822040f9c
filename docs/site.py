"""Pages of the documentation site: those of this folder, notebooks, and what is made of the code.

    python docs/site.py build/site-pages && mkdocs build --strict

Links that lead out of the pages, into the source, become text with the file's name.
"""

import ast
import base64
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

import securefl
from securefl import errors
from securefl.settings.schema import settings_schema
from securefl_cli.main import main

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "keys/FORMAT.md": "formats.md",
}
"""Pages that lie outside this folder, by their place in the repository."""
NOTEBOOKS = ROOT / "examples" / "notebooks"
"""Folder of notebooks, each of which is a page."""
MADE = (
    "results/index.md",
    *(f"reference/{name}.md" for name in ("commands", "settings", "api", "errors")),
)
"""Pages that are made from the others and from the code."""
START = """\
import torch
from torch import nn

import securefl

x = torch.randn(200, 4)
y = (x.sum(dim=1) > 0).long()
parts = {"north": slice(0, 40), "south": slice(40, 80), "east": slice(80, 120)}
clients = {name: (x[part], y[part]) for name, part in parts.items()}
test = x[120:], y[120:]
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

task = securefl.Task(model, clients, test)
config = securefl.load_config(settings=["run.rounds=2"])
result = securefl.run(config, task, out="runs/first")
"""
"""Code from which the examples in docstrings of public names go on."""
RESULTS = ROOT / "docs/results"
"""Folder of figures, which a source distribution lacks."""
STYLE = ("site.css", "site.js", "iframe-worker.js")
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")


def write_pages(out: Path) -> None:
    """Write all pages of the site into a folder, which is emptied before."""
    shutil.rmtree(out, ignore_errors=True)
    pages = {path: path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    pages |= {ROOT / name: Path(page) for name, page in ELSEWHERE.items()}
    notebooks = {path: Path("notebooks", f"{path.stem}.md") for path in NOTEBOOKS.glob("*.ipynb")}
    pages |= notebooks
    pictures = {path: path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.png")}
    known = pages | pictures | {ROOT / "docs" / page: Path(page) for page in MADE}
    for source, page in pages.items():
        written = _notebook(source, out / page) if source in notebooks else source.read_text()
        text = _LINK.sub(lambda m: _relinked(m, source, page, known), written)  # noqa: B023
        text = text.replace('<img src="docs/', '<img src="')  # of the README, with a width
        _write(out / page, text)
    for source, place in (pictures | {ROOT / "docs" / name: Path(name) for name in STYLE}).items():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, out / place)
    results = sorted(page for page in pages.values() if page.parts[0] == "results")
    _write(
        out / "results/index.md",
        "# Results\n\nWhat was measured, with the command that measures it.\n\n"
        + "".join(map(_entry, results)),
    )
    _write(
        out / "reference/commands.md",
        "# Commands\n\nAll commands, with their options.\n\n"
        + "\n".join(_commands(main, "securefl")),
    )
    _write(
        out / "reference/settings.md",
        "# Settings\n\nAll keys of a file of settings, by table and choice.\n\n"
        + "\n".join(_settings()),
    )
    _write(
        out / "reference/api.md",
        "# Python\n\nAll names of the package, with examples.\n\n" + "\n".join(_names()),
    )
    _write(
        out / "reference/errors.md",
        "# Errors and their cures\n\nAll refusals, each with its way out.\n\n"
        + "\n".join(_errors()),
    )
    _write(out / "llms.txt", "\n".join(_for_language_models(out)))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _relinked(link: re.Match[str], source: Path, page: Path, known: dict[Path, Path]) -> str:
    """Return a link as it leads from the page; a file that is no page stands as its name."""
    words, target, anchor = link.group(1), link.group(2), link.group(3) or ""
    if "://" in target or target.startswith("mailto:"):
        return link.group()
    place = (source.parent / target).resolve()
    if place in known:
        up = [".."] * (len(page.parts) - 1)
        return f"{words}({Path(*up, known[place]).as_posix()}{anchor})"
    in_results = place.is_relative_to(RESULTS)
    if not place.exists() and not (in_results and not RESULTS.exists()):
        raise FileNotFoundError(f"{source.relative_to(ROOT)}: nothing is at {target}")
    said = words.lstrip("!")[1:-1]
    path = place.relative_to(ROOT).as_posix()
    return said if path in said else f"{said} (`{path}`)"


def _entry(page: Path) -> str:
    return f"- [{page.stem.replace('_', ' ').replace('-', ' ')}]({page.name})\n"


def _notebook(source: Path, page: Path) -> str:
    """Return a notebook as a page, with the outputs that it keeps; write pictures beside it."""
    parts, where = [], source.relative_to(ROOT).as_posix()
    for cell in json.loads(source.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for number, output in enumerate(cell["outputs"]):
            data = output.get("data", {})
            if png := data.get("image/png"):
                picture = page.with_name(f"{page.stem}-{cell['id']}-{number}.png")
                picture.parent.mkdir(parents=True, exist_ok=True)
                picture.write_bytes(base64.b64decode(png))
                parts.append(f'<p><img src="{picture.name}" alt="Figure of the cell above"></p>')
            elif html := data.get("text/html"):
                parts.append("".join(line for line in html if line.strip()))
            else:
                said = "".join(output.get("text", data.get("text/plain", [])))
                parts.append(f"```text\n{said.rstrip()}\n```")
    return "\n\n".join([*parts, f"This page is the notebook `{where}`."]) + "\n"


def _commands(command: click.Command, path: str) -> Iterator[str]:
    """Yield the section of a command, from its own help, and those of the commands below it."""
    context = click.Context(command, info_name=path, max_content_width=96)
    yield f"## {path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if below := command.get_command(context, name):
                yield from _commands(below, f"{path} {name}")


def _settings() -> Iterator[str]:
    """Yield a section for each table of settings, with one for each of its choices."""
    schema = settings_schema()
    for table, of in schema["properties"].items():
        yield f"## [{table}]\n"
        for found in (schema["$defs"][kind] for kind in _kinds(of)):
            keys = found["properties"]
            for name in {"name", "level"} & keys.keys():
                if "const" in keys[name]:
                    yield f'### `{table}.{name} = "{keys[name]["const"]}"`\n'
            yield f"{found.get('description', '')}\n"
            yield from _keys(table, keys)


def _kinds(of: dict[str, Any]) -> list[str]:
    """Return the names of the schemas that a table may have."""
    refs = [of, *of.get("anyOf", [])]
    return [ref["$ref"].rpartition("/")[2] for ref in refs if "$ref" in ref]


def _keys(table: str, properties: dict[str, Any]) -> Iterator[str]:
    rows = []
    for key, of in properties.items():
        if of and "const" not in of:
            text = of.get("description", "").replace("|", "\\|")
            rows.append(f"| `{table}.{key}` | {_form(of)} | {_default(of)} | {text} |")
    if rows:
        yield "| Key | Values | Default | Meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _default(of: dict[str, Any]) -> str:
    default = of.get("default")
    return "" if default is None else f"`{default}`"


def _form(of: dict[str, Any]) -> str:
    """Return the values that a key takes, in words."""
    parts = [part for part in of.get("anyOf", [of]) if part.get("type") != "null"]
    said = []
    for part in parts:
        if "enum" in part:
            said.append(", ".join(f"`{value}`" for value in part["enum"]))
            continue
        words = str(part.get("type", part.get("$ref", "").rpartition("/")[2]))
        ends = {"from": ("minimum", "exclusiveMinimum"), "to": ("maximum", "exclusiveMaximum")}
        for word, names in ends.items():
            words += "".join(f" {word} {_number(part[name])}" for name in names if name in part)
        said.append(words)
    return " or ".join(said)


def _number(value: float) -> str:
    return f"{value:,}" if float(value).is_integer() and value < 1e12 else f"{value:g}"


def _for_language_models(pages: Path) -> Iterator[str]:
    """Yield the lines of llms.txt (llmstxt.org): the site's pages, by section, with what each says.

    Sections are those of the site's menu, and the results, which a short reading leaves out.
    """
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    yield f"# {site['site_name']}\n\n> {site['site_description']}"
    sections: dict[str, list[str]] = {"Start": []}
    for entry in site["nav"]:
        if isinstance(entry, str):
            sections["Start"].append(entry)
            continue
        for title, of in entry.items():
            sections[title] = of if isinstance(of, list) else [of]
    results = sorted((pages / "results").glob("*.md"))
    sections["Optional"] = [f"results/{page.name}" for page in results if page.stem != "index"]
    for title, names in sections.items():
        yield f"\n## {title}\n"
        for name in names:
            heading, _, text = (pages / name).read_text().partition("\n")
            page = name.removesuffix(".md") + ".html"
            said = _first_sentence(text)
            yield f"- [{heading.removeprefix('# ')}]({page})" + (f": {said}" if said else "")


def _first_sentence(text: str) -> str:
    """Return the first sentence before a page's sections, without links; empty where none is."""
    for paragraph in re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0].split("\n\n"):
        if re.match(r"\n?(?!```)[\w*\"`\[(]", paragraph):
            plain = _LINK.sub(lambda link: link[1].lstrip("!")[1:-1], " ".join(paragraph.split()))
            return re.split(r"(?<=\.)\s+(?=\W*[A-Z])", plain)[0].removesuffix(":")
    return ""


def _names() -> Iterator[str]:
    """Yield a place for each public name, which mkdocstrings fills from its docstring."""
    yield f"Each example goes on from here:\n\n```python\n{START}```\n"
    for name in sorted(securefl.__all__, key=str.lower):
        of = getattr(securefl, name)
        yield f"::: {of.__module__}.{name}\n"


def _errors() -> Iterator[str]:
    """Yield a section of rules between settings, and one for each error with its messages."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for folder in ("securefl", "keys", "cli"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            about = (ast.get_docstring(tree) or "").splitlines()[:1]
            for kind, text in _said(tree, rules="audit" not in path.parts):
                found.setdefault(kind, {}).setdefault(*about or [""], {})[text] = None
    yield (
        "All messages of refusals, read from the code: … stands for a name, a value or a reason. "
        "Most say the way out. Most reasons of a run's incidents are among them. The command line "
        "ends with 2 where a setting, data or a key is wrong, else with 1.\n"
    )
    yield "## Settings that do not go together\n"
    yield from _messages(found[_RULE])
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, errors.SecureFLError):
            above = " and ".join(f"`{base.__name__}`" for base in error.__bases__)
            yield f"## {name}\n\n{error.__doc__}\n\nA kind of {above}.\n"
            yield from _messages(found.get(name, {}))


_RULE = "rule"


def _said(tree: ast.AST, *, rules: bool) -> Iterator[tuple[str, str]]:
    """Yield each message with the name of its error; of settings' rules with `_RULE`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and rules and _gives_reasons(node):
            inner = (part for part in ast.walk(node) if isinstance(part, ast.Yield))
            yield from ((_RULE, text) for part in inner if (text := _message(part.value)))
        raised = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(raised, ast.Call) and raised.args and (text := _message(raised.args[0])):
            # Settings' own checks raise ValueError, which is told as a ConfigError.
            yield ast.unparse(raised.func).replace("ValueError", "ConfigError"), text


def _gives_reasons(function: ast.FunctionDef) -> bool:
    """Return True for one that yields reasons against settings."""
    arguments = [a.annotation for a in function.args.args if a.annotation]
    of_config = any(ast.unparse(kind) in {"Config", "Any"} for kind in arguments)
    return of_config and ast.unparse(function.returns or function) == "Iterator[str]"


def _message(node: ast.AST | None) -> str:
    """Return a text as it stands in the code, with … for what is put in; empty for less."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    said = "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in parts)
    return said if len(re.findall("[a-z]{2,}", said)) > 2 else ""


def _messages(by_topic: dict[str, dict[str, None]]) -> Iterator[str]:
    for topic, texts in by_topic.items():
        yield f"*{topic}*\n\n" + "".join(f"- `` {' '.join(t.split())} ``\n" for t in texts)


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))

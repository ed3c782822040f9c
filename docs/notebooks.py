"""Run the notebooks' cells in this process, and write what they show into the files.

    python docs/notebooks.py          # all, or those that are named: python docs/notebooks.py cures

A cell's printed lines, the value of its last expression (unless a semicolon ends it) and its
figures are its outputs, as in Jupyter, which is not needed. Cells write into an empty folder.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "examples" / "notebooks"
SOURCES = "sources_sha256"
"""Key of a notebook's metadata: digest of the code that its outputs are of."""

Cell = dict[str, Any]


def read(path: Path) -> dict[str, Any]:
    """Return a notebook, which is JSON."""
    notebook: dict[str, Any] = json.loads(path.read_text())
    return notebook


def code_cells(notebook: Mapping[str, Any]) -> list[Cell]:
    """Return the cells with code, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def digest(notebook: Mapping[str, Any]) -> str:
    """Return the digest of all code."""
    return hashlib.sha256("\n".join(map(source, code_cells(notebook))).encode()).hexdigest()


def source(cell: Cell) -> str:
    """Return a cell's text."""
    return "".join(cell["source"])


def figures(notebook: Mapping[str, Any]) -> list[bytes]:
    """Return the PNG files among the outputs, in order."""
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    drawn = [
        output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})
    ]
    return [base64.b64decode(png) for png in drawn]


def run_cells(
    notebook: dict[str, Any], parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run all cells from top to bottom, give them their outputs, and return their names' values.

    Args:
        notebook: cells get the outputs; nothing is written.
        parameters: values that stand in the place of those of the first code cell.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(code_cells(notebook), 1):
            cell["execution_count"], cell["outputs"] = (
                number,
                list(_outputs(cell, number, namespace)),
            )
            namespace |= (parameters or {}) if number == 1 else {}
    notebook["metadata"][SOURCES] = digest(notebook)
    return namespace


def _outputs(cell: Cell, number: int, namespace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run a cell and yield its outputs, in the order in which Jupyter shows them."""
    mpl.use("agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415  (after the back end is chosen)

    tree, last = ast.parse(source(cell)), None
    if isinstance(end := tree.body[-1], ast.Expr) and not source(cell).endswith(";"):
        tree.body, last = tree.body[:-1], ast.Expression(end.value)
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        exec(compile(tree, f"cell {number}", "exec"), namespace)  # noqa: S102  (our own cells)
        if last:
            value = eval(compile(last, f"cell {number}", "eval"), namespace)  # noqa: S307
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        yield {"output_type": "stream", "name": "stdout", "text": text}
    if value is not None:
        result = {"output_type": "execute_result", "execution_count": number, "metadata": {}}
        yield result | {"data": _shown(value)}
    for figure in map(plt.figure, plt.get_fignums()):
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=90)
        data = {"image/png": base64.b64encode(png.getvalue()).decode()}
        yield {"output_type": "display_data", "metadata": {}, "data": data}
    plt.close("all")


def _shown(value: Any) -> dict[str, list[str]]:
    shown = {"text/plain": repr(value).splitlines(keepends=True)}
    html = getattr(value, "_repr_html_", None)
    return shown | ({"text/html": html().splitlines(keepends=True)} if html else {})


def main(names: list[str]) -> None:
    """Run notebooks by name, all without any, and write their outputs."""
    paths = [NOTEBOOKS / f"{name}.ipynb" for name in names] or sorted(NOTEBOOKS.glob("*.ipynb"))
    for path in paths:
        notebook = read(path)
        run_cells(notebook)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        sys.stdout.write(f"{os.path.relpath(path)}: {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main(sys.argv[1:])

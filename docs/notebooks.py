"""Run the notebooks' cells in this process, and write what they show into the files.

    python docs/notebooks.py          # all, or those that are named: python docs/notebooks.py cures
    python docs/notebooks.py --times  # prints the table of docs/results/notebooks.md, alone

A cell's printed lines, the value of its last expression (unless a semicolon ends it) and its
figures are its outputs, as in Jupyter, which is not needed. Cells write into an empty folder.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
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


def timed(path: Path) -> tuple[float, float]:
    """Return seconds, and of those of CPU, that a notebook takes in a process of its own.

    Raises:
        ChildProcessError: a cell fails.
    """
    run = "import notebooks as of, sys; of.run_cells(of.read(of.Path(sys.argv[1])))"
    begun = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603  (our own cells)
        [sys.executable, "-c", run, path], cwd=Path(__file__).parent
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ChildProcessError(f"{path}: a cell fails")
    return time.perf_counter() - begun, used.ru_utime + used.ru_stime


def main() -> None:
    """Run notebooks by name, all without any, and write their outputs or their times."""
    parser = argparse.ArgumentParser(description="Run the notebooks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a notebook; all where absent")
    parser.add_argument("--times", action="store_true", help="print seconds, and write nothing")
    given = parser.parse_args()
    named = [NOTEBOOKS / f"{name}.ipynb" for name in given.names]
    paths = named or sorted(NOTEBOOKS.glob("*.ipynb"))
    if given.times:
        sys.stdout.write("| notebook | s | s of CPU |\n|---|--:|--:|\n")
    for path in paths:
        if given.times:
            wall_s, cpu_s = timed(path)
            sys.stdout.write(f"| {path.stem} | {wall_s:.0f} | {cpu_s:.0f} |\n")
            sys.stdout.flush()
            continue
        notebook = read(path)
        run_cells(notebook)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        sys.stdout.write(f"{os.path.relpath(path)}: {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()

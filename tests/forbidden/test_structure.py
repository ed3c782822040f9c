"""What the package must not be: leaky in its imports, or generous with names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

from securefl.settings.axes import AXES
from securefl.settings.load import load_config
from securefl.settings.tables import Config

ROOT = Path(__file__).parents[2]


def test_a_wheel_holds_three_packages_and_no_generic_name(tmp_path):
    """`import cli` and `import keys` do not exist where it is installed; recipes and LICENSE do.

    It is built of the source distribution, which has no results, and what makes the site.
    """
    build = ["-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run([sys.executable, *build], check=True, capture_output=True)
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        given = {name.partition("/")[2] for name in archive.getnames()}
    assert {"mkdocs.yml", "docs/site.py", "README.md", "constraints.txt"} <= given
    assert not any(name.startswith("docs/results") for name in given)
    files = zipfile.ZipFile(wheel)
    for place in (ROOT / "securefl", ROOT / "cli/securefl_cli", ROOT / "keys/securefl_keys"):
        data = [path for kind in ("*.jinja", "py.typed") for path in place.rglob(kind)]
        assert {path.relative_to(place.parent).as_posix() for path in data} <= {*files.namelist()}
    tops = {name.split("/")[0] for name in files.namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == {
        "securefl",
        "securefl_cli",
        "securefl_keys",
    }
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files.namelist())
    files.extractall(tmp_path / "installed")
    script = (
        "from securefl_cli.reproduce import SCALES, shipped_recipes\n"
        "print(*(name for scale in SCALES for name in shipped_recipes(scale)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    recipes = ROOT / "examples" / "recipes"
    shipped = [path.stem for scale in recipes.iterdir() for path in scale.iterdir()]
    assert sorted(found.stdout.split()) == sorted(shipped)


def test_the_dependencies_point_one_way():
    """import-linter's contracts hold: who may import whom, and what the server cannot spell."""
    script = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


LONGEST_CHAIN = 14
"""Most modules of which each imports the next as it is loaded."""


def test_no_chain_of_imports_is_long():
    """Imports for annotations alone and within functions do not count: loading runs neither."""
    paths = {path: path.relative_to(ROOT).with_suffix("").parts for path in modules_of_ours()}
    names = {  # of a module; the folders `keys` and `cli` are in no name
        ".".join(p[p[0] != "securefl" :]).removesuffix(".__init__"): path
        for path, p in paths.items()
    }
    imported = {name: loaded_by(path) & names.keys() - {name} for name, path in names.items()}
    lengths: dict[str, int] = {}
    for name in TopologicalSorter(imported).static_order():
        lengths[name] = 1 + max((lengths[other] for other in imported[name]), default=0)
    assert max(lengths.values()) == LONGEST_CHAIN


def modules_of_ours():
    """Return the paths of the three packages' modules."""
    return [path for top in ("securefl", "keys", "cli") for path in (ROOT / top).rglob("*.py")]


def loaded_by(path):
    """Return the names that the module's imports may be of, but for those of no loading."""
    found, left = set(), list(ast.parse(path.read_text()).body)
    while left:
        match left.pop():
            case ast.Import(names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module, names):
                found |= {module} | {f"{module}.{alias.name}" for alias in names}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case ast.If(ast.Name("TYPE_CHECKING")):
                pass
            case node:
                left.extend(ast.iter_child_nodes(node))
    return found


def test_a_class_has_a_name_of_its_own():
    """Of two things with one name a reader finds the wrong one."""
    where = defaultdict(list)
    for path in modules_of_ours():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(path.relative_to(ROOT).as_posix())
    twice = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert not twice


RUNS_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
"""Modules whose readers run what they read; torch.load and eval are looked for besides."""
PICKLERS = {"pickle", "cloudpickle"}
"""Those that the processes of one run may read each other's values with."""


def test_no_byte_from_outside_is_run_as_code():
    """Three modules pickle, all between the processes of one run; nothing else could unpickle."""
    found = set()
    for module in modules_of_ours():
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.partition(".")[0] for alias in node.names}
                names |= {getattr(node, "module", None)}
                assert not names & RUNS_CODE - PICKLERS, module
                found |= {module.relative_to(ROOT).as_posix()} if names & PICKLERS else set()
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"torch.load", "eval", "exec", "compile"}, module
                if called == "np.load":
                    assert "allow_pickle=False" in ast.unparse(node), module
    assert found == {
        f"securefl/simulation/{name}.py"
        for name in ("processes/ipc", "processes/worker", "stacked/engine")
    }


def test_every_setting_is_used_somewhere():
    """No key of the schema is there for show: each is read as an attribute outside of it."""
    modules = [path for path in (ROOT / "securefl").rglob("*.py") if path.parent.name != "settings"]
    # A preset is resolved in the first, and the second counts the clients of a round.
    modules += [ROOT / f"securefl/settings/{name}.py" for name in ("devices", "data_set")]
    code = "".join(path.read_text() for path in modules)
    tables = [
        next(iter(get_args(f.annotation)), f.annotation) for f in Config.model_fields.values()
    ]
    tables += [kind for axis in AXES for kind in axis.own().values()]
    keys = {key for table in tables for key in table.model_fields}
    unused = {key for key in keys if not re.search(rf"\.{key}\b", code)}
    assert not unused


def test_the_written_out_example_is_the_default():
    """examples/fedtan_digits.toml shows every key, with the value that it has anyway."""
    example = load_config(ROOT / "examples/fedtan_digits.toml").model_dump(mode="json")
    default = Config().model_dump(mode="json")
    assert example.pop("run") == default.pop("run") | {"name": "fedtan-digits"}
    assert example == default
    text = (ROOT / "examples/fedtan_digits.toml").read_text()
    written = {(table, key) for table, keys in tomllib.loads(text).items() for key in keys}
    absent = {(t, key) for t, keys in default.items() for key in keys if (t, key) not in written}
    assert absent == {(t, k) for t, v in default.items() for k in v if v[k] is None}


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md", "docs/architecture.md"])
def test_what_a_page_links_to_is_there(page):
    """No reader is sent to a file that is not in the repository."""
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


PAGES = [
    "README.md",
    "SECURITY.md",
    *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_the_modules_that_a_page_names_are_there(page):
    """By their paths or the ends of them; `…` stands for what a reader can fill in."""
    there = [f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("[!.]*/**/*.py")]
    named = re.findall(r"`([\w./…-]+\.py)\b", (ROOT / page).read_text())
    ends = {name: f"/{name.rpartition('…/')[2]}" for name in named}
    assert [name for name, end in ends.items() if not any(p.endswith(end) for p in there)] == []


def test_the_ten_line_example_runs():
    """A user's own model and data need no more than examples/own_model.py."""
    script = ROOT / "examples/own_model.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert re.match(r"accuracy 0\.\d+; the authority opened 100 totals", done.stdout)
    statements = [x for x in script.read_text().split('"""')[2].splitlines() if x.strip()]
    assert len([x for x in statements if not x.startswith(("import", "from"))]) <= 10


WATCHED = "securefl.report.watching, securefl.runs.follow, securefl_cli.watch"


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("securefl", "torch"),
        ("securefl_cli.main", "torch pydantic rich"),
        ("securefl_keys", "torch"),
        (WATCHED, "torch pydantic rich numpy jinja2"),  # 2 % of a run's CPU is 0.2 s
    ],
)
def test_importing_a_package_loads_no_torch(module, without):
    """What is not used is not loaded, nor what takes long."""
    script = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not {*without.split()} & {*done.stdout.split()}

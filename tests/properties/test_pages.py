"""Pages of the site: each block of a tutorial and a how-to runs as it stands, commands of all other
pages in short, as `page_commands.py` says; each exists, with the options that it has.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from key_folders import PASSPHRASE, cheap
from page_commands import FEWER, MORE, NOT_HERE, RUN_BY, found
from parsed_command import parsed

from securefl.data.site_file import SiteFile
from securefl.errors import ConfigError, SecureFLError
from securefl.io import allowed_code
from securefl.report import finish
from securefl.settings.load import load_config, parse_tables
from securefl.settings.samples import SamplesTable
from securefl.settings.tables import Config
from securefl_cli import reproduce as reproducing
from securefl_cli.main import main
from securefl_cli.nvflare_site import AuthorityFile, ClientFile, OfficerFile, ServerFile
from securefl_cli.options import KEYS, TABLES, settings_of
from securefl_keys.policy import PolicyTable

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from walk import UNTYPED, blocks, walk

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("quick")

PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "keys/FORMAT.md")),
]
WALKED = [
    page
    for page in PAGES
    if page.parent.name in {"tutorials", "how-to"}
    and page.name not in {"three-hospitals.md", "own-choices.md"}
]
"""Two tutorials have tests of their own, which do all of them: with processes, and by parts."""
TOGETHER = "docs/simulations.md", "docs/officer.md", "docs/data-sets.md"
"""Pages whose commands are typed one after the other in one folder."""
PROGRAM = r"(?:securefl|python|make|npm|pip|git|ray|apt-get) "
INDENTED = (
    rf"^    ((?:\w+=\S+ )*{PROGRAM}[^\n]*?<<'END'\n.*?^    END|(?:\w+=\S+ )*{PROGRAM}[^\n]*)$"
)
"""A command of an indented block; what it reads up to a line `END` is part of it."""
COMMANDS = [
    (page, command)
    for page in PAGES
    for command in [
        *(command for block in blocks(page.read_text()) for command in block.commands),
        *re.findall(INDENTED, page.read_text().replace("\\\n", " "), re.MULTILINE | re.DOTALL),
    ]
]
PROGRAMS = {"mkdir", "cp", "diff", "export", "npm", "ray", "apt-get", "dpkg-deb"}
"""First words of other commands that are typed here: any other is mistyped, or no command."""
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
RUN_ELSEWHERE = {
    "README.md": "test_readme.py: it is examples/own_model.py, which another test runs",
    "docs/tutorials/own-choices.md": "test_own_choices_page.py",
    "docs/tutorials/three-hospitals.md": "test_three_hospitals_page.py",
}
"""Python of pages that are not walked, and where it runs."""


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def check(command, page=""):
    """Raise an error for a command that does not exist, or has other options."""
    command = re.sub(r"\s#.*", "", re.sub(r"\$\w+", "1", command))
    command, *others = re.split(r" && | \| ", command.partition("\n")[0])
    for other in others:
        check(other, page)
    first, *rest = shlex.split(re.sub(r"^(\w+=\S+ )+", "", command))
    if "--wrap" in rest:
        check(rest[rest.index("--wrap") + 1], page)
    if first == "securefl":
        check_ours(rest)
    elif first == "make":
        assert {word for word in rest if "=" not in word} <= TARGETS, command
    elif re.fullmatch(r"(\S*/)?python3?", first):
        script = rest[0] if rest else "-"
        if script not in {"-", "-m", "-c"} and f"# {script}\n" not in page:
            assert (ROOT / script).exists(), command
            text = "".join(p.read_text() for p in (ROOT / script).parent.rglob("*.py"))
            options = [word.split("=")[0] for word in rest if word.startswith("--")]
            assert not [option for option in options if f'"{option}"' not in text], command
    elif first.endswith("pip"):
        named = re.findall(r"[\w.]\[([\w,]+)\]", command)
        assert {extra for extras in named for extra in extras.split(",")} <= set(EXTRAS), command
    else:
        known = first in PROGRAMS or first.startswith("(")
        assert known or any(re.match(beginning, command) for beginning in UNTYPED), command


def check_ours(arguments):
    """Raise an error for wrong options, or for settings that do not go together."""
    if arguments[0] == "--code":
        arguments = arguments[2:]
    context = parsed([word for word in arguments if word not in {">", "&"}])
    if context.command.name not in {"run", "leave-one-out"} or "mine:" in " ".join(arguments):
        return
    file, settings = context.params.pop("config_file", None), context.params.pop("settings")
    given = {n: v for n, v in context.params.items() if n in {*KEYS, *TABLES}}
    if file is not None and not (ROOT / file).exists():
        file = None  # what a page shows is read where the page is walked, or by its own test
    load_config(file and ROOT / file, [*settings_of(given), *settings])


@pytest.mark.parametrize("page", sorted({page for page, _ in COMMANDS}), ids=name_of)
def test_each_command_of_a_page_exists_with_its_options(page):
    text = page.read_text()
    for _, command in (pair for pair in COMMANDS if pair[0] == page):
        try:
            check(command, text)
        except (click.ClickException, SecureFLError, AssertionError, OSError) as error:
            pytest.fail(f"{name_of(page)}: {command}: {error}")


@pytest.mark.parametrize(
    "command",
    ["securefl run --round 3", "securefl rum", "securefl run --set run.round=3", "make tset",
     "secruefl run", "python docs/walk.py --pgae x", "pip install 'securefl[opps]'"],
)  # fmt: skip
def test_a_mistyped_command_is_found(command):
    with pytest.raises((click.ClickException, SecureFLError, AssertionError)):
        check(command)


def commands_of(command, path="securefl"):
    """Yield all commands and groups by the words that are typed."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(None):
            yield from commands_of(command.get_command(None, name), f"{path} {name}")


HELPS = dict(commands_of(main))


@pytest.mark.parametrize("typed", HELPS)
def test_a_commands_help_has_examples_that_exist_and_describes_each_option(typed):
    """Each example of a command is of itself, but for what comes before it or after it."""
    command = HELPS[typed]
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert [option.name for option in options if not (option.help or option.hidden)] == []
    text = command.help.partition("Example:\n")[2].replace("\\\n", " ")
    lines = [line.strip() for line in text.split("\n\n")[0].splitlines()]
    examples = [line for line in lines if line.startswith("securefl ")]
    assert any(typed in line for line in lines)
    for line in examples:
        check(line.partition(" > ")[0])


def test_each_block_has_a_language_that_is_looked_at():
    """One without is commands; a picture made of letters is `text`."""
    found = {block.language for page in PAGES for block in blocks(page.read_text())}
    assert found <= {"", "python", "toml", "text"}


FORMS = (SiteFile, ClientFile, AuthorityFile, OfficerFile, ServerFile, PolicyTable)
"""Files of sites and parties, and a policy."""


def test_each_block_of_toml_is_read_as_what_it_is():
    """Settings, with all their rules, keys of [samples], or a file of a site or a party.

    A recipe and a package's file are read where their pages are walked, and so are settings that
    name code.
    """
    for page in PAGES:
        for block in (b for b in blocks(page.read_text()) if b.language == "toml"):
            tables = tomllib.loads(block.text)
            if {"title", "project"} & tables.keys() or "mine:" in block.text:
                assert page.name in {"reproduce.md", "own-choices.md"}
            elif tables.keys() <= Config.model_fields.keys():
                parse_tables(Config, tables)
            elif not tables.keys() <= SamplesTable.model_fields.keys():
                assert [form for form in FORMS if read_as(form, tables)], (page, block.text)


def read_as(form, tables):
    """True where the tables are those of such a file."""
    try:
        parse_tables(form, tables)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("page", sorted((ROOT / "docs/tutorials").iterdir()), ids=name_of)
def test_a_tutorial_begins_with_what_comes_of_it_and_how_long_it_takes(page):
    opening = page.read_text().split("\n## ")[0]
    assert "**At the end**" in opening
    assert "**Time:**" in opening


def left_out(page, command):
    return found(RUN_BY, name_of(page), command) or found(NOT_HERE, name_of(page), command)


@pytest.mark.parametrize("table", [MORE, RUN_BY, NOT_HERE], ids=["more", "run by", "not here"])
def test_each_entry_of_a_table_is_of_a_command(table):
    used = {id(found(table, name_of(page), command)) for page, command in COMMANDS}
    assert [pattern for pattern, entry in table.items() if id(entry) not in used] == []


def test_what_is_not_typed_is_in_a_table():
    """Of one that cannot run here its page says what it needs."""
    for page, command in COMMANDS:
        if any(re.match(beginning, command) for beginning in UNTYPED):
            assert left_out(page, command), f"{name_of(page)}: {command}"
        if not found(RUN_BY, name_of(page), command):
            word, _ = found(NOT_HERE, name_of(page), command) or ("", "")
            assert word in page.read_text(), f"{name_of(page)}: {command}: {word}"


def test_contributors_are_told_how_many_commands_run_in_which_way():
    """Of those that are typed, as they stand or with words of `MORE` or less of a script."""
    ways = Counter()
    for page, command in COMMANDS:
        name, parts = name_of(page), command.split(" && ")
        if found(RUN_BY, name, command) or found(NOT_HERE, name, command):
            ways["named" if found(RUN_BY, name, command) else "not run"] += 1
        else:
            short = "\n" in command or any(found(MORE, name, part) for part in parts)
            ways["fewer" if short else "as they stand"] += 1
    said = (
        f"Of {len(COMMANDS)} commands on pages, {ways['as they stand']} are typed as they stand, "
        f"{ways['fewer']} with fewer rounds, seeds or sums, {ways['named']} are run, whole or in "
        f"parts, by a named test, and {ways['not run']} are not run."
    )
    assert said in " ".join((ROOT / "CONTRIBUTING.md").read_text().split())


@cache
def defaults_of(file):
    """Names of a file's tests that run by default, and its text."""
    text = (ROOT / "tests" / file).read_text()
    full = {"pytest.mark.full", "FULL"}
    tree = ast.parse(text).body
    of_all = [ast.unparse(node) for node in tree if isinstance(node, ast.Assign)]
    assert not [of for of in of_all if of.startswith("pytestmark") and "full" in of], file
    return text, {
        function.name
        for function in tree
        if isinstance(function, ast.FunctionDef)
        and not full & {ast.unparse(decorator) for decorator in function.decorator_list}
    }


NAMED = re.compile(
    r"python (?:docs|benchmarks)/(\w+)|(?:reproduce|--dataset) ([\w-]+?)(?:-unseen)? "
)
"""Script, table or data set of a command; an unseen source's table has the runs of another."""


def test_who_runs_a_command_is_a_test_that_runs_by_default():
    """Its file names the script, the table or the data set."""
    for page, command in COMMANDS:
        if test := found(RUN_BY, name_of(page), command):
            file, _, name = test.partition("::")
            text, names = defaults_of(file)
            assert name in names, test
            for words in NAMED.findall(f"{command} "):
                assert "".join(words) in text, f"{name_of(page)}: {command}: {test}"


class Typist:
    """A reader at a terminal, whose commands run in this process."""

    said = ""
    page = None
    """Page that they are on."""

    def type(self, commands):
        if left_out(self.page, commands):
            return
        line, _, text = commands.partition("\n")
        for command in line.split(" && "):
            more = found(MORE, name_of(self.page), command) or ""
            words = shlex.split(os.path.expandvars(command), comments=True) + more.split()
            while re.fullmatch(r"\w+=\S+", words[0]):
                words = words[1:]  # one thread, and the path of benchmarks: as in this process
            if text:
                self.python_text(textwrap.dedent(text).removesuffix("END"))
            elif words[0] == "securefl":
                self.securefl(words[1:])
            elif words[0] == "python":
                self.python(words[1:])
            else:
                subprocess.run(["bash", "-euc", command], check=True)

    def securefl(self, words):
        given = CliRunner(env={"SECUREFL_PASSPHRASE": PASSPHRASE})
        done = given.invoke(main, words, input="y\n" * 9)
        assert done.exit_code == 0, (words, done.output, done.exception)
        self.said += done.output

    def python_text(self, text):
        """What a page's command reads up to its line END."""
        for often, less in FEWER.items():
            assert often in text
            text = text.replace(often, less)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(text, {"__name__": "__main__"})

    def python(self, words):
        arguments, _, out = (
            (words, "", "") if ">" not in words else (words[: words.index(">")], ">", words[-1])
        )
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
            patch.setattr(sys, "argv", arguments)
            patch.syspath_prepend(Path(arguments[0]).resolve().parent)
            try:
                runpy.run_path(arguments[0], run_name="__main__")
            except SystemExit as ended:
                if ended.code:
                    pytest.fail(f"{words}: exit code {ended.code}")
        if out:
            Path(out).write_text(said.getvalue())


@pytest.fixture
def typist(tmp_path, monkeypatch):
    """In an empty folder, of whose modules nothing is left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(allowed_code, "_ALLOWED", set())
    monkeypatch.setattr(
        finish,
        "pictures",
        lambda _record: dict.fromkeys(("accuracy.png", "score.png", "traffic.png"), b""),
    )
    typist, before, whole = Typist(), set(sys.modules), reproducing.load_recipe
    monkeypatch.setattr(
        reproducing, "load_recipe", lambda *file: short_recipe(whole(*file), typist.page)
    )
    with cheap():
        yield typist
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def short_recipe(recipe, page):
    """One row of it and those that its page compares with, a column a quantity, two rounds."""
    rows = [recipe.rows[0], *re.findall('--base "(.*?)"', page.read_text())]
    columns = {cell.measure.quantity: cell.column for cell in reversed(recipe.cells)}
    cells = tuple(
        replace(cell, tables={**cell.tables, "run": {**cell.tables.get("run", {}), "rounds": 2}})
        for cell in recipe.cells
        if cell.row in rows and cell.column in columns.values()
    )
    return replace(recipe, rows=tuple(row for row in recipe.rows if row in rows), cells=cells)


def shape_of(said):
    """Text without its digits, the last of which differ, and with one space for several."""
    return re.sub(r"\d+", "0", re.sub(r"\s+", " ", said))


@pytest.mark.parametrize("page", WALKED, ids=name_of)
def test_a_page_runs_as_it_stands(page, typist, capsys):
    """From its first block to its last, in an empty folder; a tutorial shows what is printed."""
    text, typist.page = page.read_text(), page
    walk(text, typist.type)
    printed = shape_of(typist.said + capsys.readouterr().out)
    for before, block in pairwise(blocks(text) if page.parent.name == "tutorials" else ()):
        elsewhere = any(left_out(page, command) for command in before.commands)
        if block.language == "text" and not elsewhere:
            assert shape_of(block.text) in printed


ALONE = sorted(
    {page for page, command in COMMANDS if not left_out(page, command)}
    - {*WALKED, *(ROOT / name for name in TOGETHER)}
)
"""Other pages with a command that is typed."""
LONGEST = ROOT / "docs/results/gpu.md", ROOT / "docs/results/pages.md"
"""Those whose benchmarks take most of a minute each, also in short: `make test-all` types them."""


@pytest.fixture
def clone(tmp_path, benchmark, monkeypatch):
    """What a fresh clone has; benchmarks that are tried have no workers, and no deep model."""
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs/results").mkdir(parents=True)
    for script in (ROOT / "docs").glob("*.py"):
        (tmp_path / "docs" / script.name).symlink_to(script)
    engines, job = benchmark("engine_jobs").ENGINES, benchmark("engine_jobs").Job
    small = job.small

    def shallow(self):
        return replace(small(self), model="cnn" if self.model == "resnet20" else self.model)

    monkeypatch.setattr(job, "small", shallow)
    for name in [name for name, run in engines.items() if "workers" in run]:
        monkeypatch.delitem(engines, name)
    sealing, part = benchmark("engine_sealing"), benchmark("engine_sealing").sealing_part

    def in_process(sealed, settings, engines=sealing.WAYS):
        return part(sealed, settings, {k: of for k, of in engines.items() if "workers" not in of})

    monkeypatch.setattr(sealing, "sealing_part", in_process)
    monkeypatch.setattr(benchmark("engine_population"), "peak_mib_of", lambda *_: 100.0)


@pytest.mark.parametrize(
    "pages",
    [
        [ROOT / name for name in TOGETHER],
        *(pytest.param([p], marks=[pytest.mark.full] * (p in LONGEST)) for p in ALONE),
    ],
    ids=lambda pages: name_of(pages[0]),
)
@pytest.mark.usefixtures("clone")
def test_commands_of_other_pages_run_in_short(pages, typist):
    """In a fresh clone, in their order, with the files that the pages show."""
    for typist.page in pages:
        files = [
            f"```{b.language}\n{b.text}```\n" for b in blocks(typist.page.read_text()) if b.file
        ]
        walk("".join(files), typist.type)
        for page, command in COMMANDS:
            if page == typist.page:
                typist.type(command)


@pytest.mark.parametrize("page", sorted({*PAGES} - {*WALKED}), ids=name_of)
def test_python_of_other_pages_runs(page, typist):
    python = [block.text for block in blocks(page.read_text()) if block.language == "python"]
    typist.page = page
    if python and name_of(page) not in RUN_ELSEWHERE:
        walk("".join(f"```python\n{text}```\n" for text in python), typist.type)


@pytest.mark.parametrize("page", sorted((ROOT / "docs/how-to").iterdir()), ids=name_of)
def test_means_of_a_how_to_are_those_of_a_page_that_it_links(page):
    """Each with its deviation, rounded."""
    text = page.read_text()
    results = set(re.findall(r"\.\./results/(\w+\.md)", text)) - {"index.md"}
    measured = {
        tuple(f"{float(number):.{digits}f}" for number in pair)
        for name in results
        for pair in re.findall(r"([\d.]+) ± ([\d.]*\d)", (ROOT / "docs/results" / name).read_text())
        for digits in (0, 1)
    }
    assert set(re.findall(r"([\d.]+)(?: %)? ± ([\d.]*\d)", text)) <= measured

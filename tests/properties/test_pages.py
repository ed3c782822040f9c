"""Pages of the site: each block of a tutorial and a how-to runs as it stands, those of the pages of
commands in short, and every command of any page is one that exists, with the options that it has.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from key_folders import PASSPHRASE, cheap
from parsed_command import parsed

from securefl.errors import SecureFLError
from securefl.io import allowed_code
from securefl.report import finish
from securefl.settings.load import load_config
from securefl_cli.main import main
from securefl_cli.options import KEYS, TABLES, settings_of

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
NOT_HERE = {
    r"securefl audit": "a minute each; test_audit_cli.py runs them",
    r"securefl privacy (plan|cost)": "ten seconds each; test_privacy_cli.py",
    r"securefl reproduce (?!.*--list)": "minutes to hours; test_recipes.py runs small ones",
    r"securefl run --resume": "goes on with a run that was stopped, as test_resume.py does",
}
"""Commands of walked pages that are checked and not run here, with the reason."""
IN_SHORT = "docs/simulations.md", "docs/officer.md", "docs/data-sets.md"
"""Pages whose commands are typed one after the other in one folder, with two rounds each."""
NOT_IN_SHORT = {
    **NOT_HERE,
    r"diff ": "reads what an audit has written",
    r".* --data-root ": "files of others, which are not here",
}
COMMANDS = [
    (page, command)
    for page in PAGES
    for command in [
        *(command for block in blocks(page.read_text()) for command in block.commands),
        *re.findall(
            r"^    ((?:securefl|python|make) .*)",
            page.read_text().replace("\\\n", " "),
            re.MULTILINE,
        ),
    ]
]
PROGRAMS = {"mkdir", "cp", "diff", "export"}
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
    command, *others = re.split(r" && | \| ", command)
    for other in others:
        check(other, page)
    first, *rest = shlex.split(command)
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


def test_each_block_has_a_language_that_is_looked_at():
    """One without is commands; a picture made of letters is `text`. TOML is read."""
    found = [block for page in PAGES for block in blocks(page.read_text())]
    assert {block.language for block in found} <= {"", "python", "toml", "text"}
    for block in found:
        if block.language == "toml":
            tomllib.loads(block.text)


@pytest.mark.parametrize("page", sorted((ROOT / "docs/tutorials").iterdir()), ids=name_of)
def test_a_tutorial_begins_with_what_comes_of_it_and_how_long_it_takes(page):
    opening = page.read_text().split("\n## ")[0]
    assert "**At the end**" in opening
    assert "**Time:**" in opening


def test_each_reason_is_of_a_command():
    typed = [c for page, c in COMMANDS if page in WALKED or name_of(page) in IN_SHORT]
    for beginning in NOT_IN_SHORT:
        assert any(re.match(beginning, command) for command in typed), beginning


class Typist:
    """A reader at a terminal, whose commands run in this process."""

    said = ""
    left_out = NOT_HERE
    more = ()
    """Settings that runs are given on top."""

    def type(self, command):
        if any(re.match(beginning, command) for beginning in self.left_out):
            return
        words = shlex.split(os.path.expandvars(command), comments=True)
        if words[0] == "securefl":
            self.securefl(words[1:])
        elif words[0] == "python":
            self.python(words[1:])
        else:
            subprocess.run(["bash", "-euc", command], check=True)

    def securefl(self, words):
        if words[0] in {"run", "leave-one-out"}:
            words = [*words, *self.more]
        given = CliRunner(env={"SECUREFL_PASSPHRASE": PASSPHRASE})
        done = given.invoke(main, words, input="y\n" * 9)
        assert done.exit_code == 0, (words, done.output, done.exception)
        self.said += done.output

    def python(self, words):
        arguments, _, out = (
            (words, "", "") if ">" not in words else (words[: words.index(">")], ">", words[-1])
        )
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
            patch.setattr(sys, "argv", arguments)
            runpy.run_path(arguments[0], run_name="__main__")
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
    before = set(sys.modules)
    with cheap():
        yield Typist()
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def shape_of(said):
    """Text without its digits, the last of which differ, and with one space for several."""
    return re.sub(r"\d+", "0", re.sub(r"\s+", " ", said))


@pytest.mark.parametrize("page", WALKED, ids=name_of)
def test_a_page_runs_as_it_stands(page, typist, capsys):
    """From its first block to its last, in an empty folder; a tutorial shows what is printed."""
    text = page.read_text()
    walk(text, typist.type)
    printed = shape_of(typist.said + capsys.readouterr().out)
    for before, block in pairwise(blocks(text) if page.parent.name == "tutorials" else ()):
        elsewhere = any(re.match(left, c) for left in NOT_HERE for c in before.commands)
        if block.language == "text" and not elsewhere:
            assert shape_of(block.text) in printed


def test_commands_of_other_pages_run_in_short(typist, tmp_path):
    """In a fresh clone, in the order of the pages, some of which go on from those before."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    typist.left_out, typist.more = NOT_IN_SHORT, ("--set", "run.rounds=2")
    for name in IN_SHORT:
        typed = [command for page, command in COMMANDS if name_of(page) == name]
        walk("```\n" + "".join(f"{command}\n" for command in typed) + "```\n", typist.type)


@pytest.mark.parametrize("page", sorted({*PAGES} - {*WALKED}), ids=name_of)
def test_python_of_other_pages_runs(page, typist):
    python = [block.text for block in blocks(page.read_text()) if block.language == "python"]
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

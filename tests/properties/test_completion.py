"""A shell completes commands, options, choices and runs, as click asks for them."""

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from securefl.settings.axes import SOLVERS
from securefl_cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with two runs, and one that is none."""
    for name in ("runs/first", "runs/deep/er", "notes"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / ("config.json" if name != "notes" else "x")).touch()
    monkeypatch.chdir(tmp_path)


def completed(*typed):
    """What bash would show after these words, of which the last is not yet complete."""
    *words, incomplete = typed
    shell = BashComplete(main, {}, "securefl", "_SECUREFL_COMPLETE")
    return [item.value for item in shell.get_completions([*words], incomplete)]


def test_choices_are_all_that_are_installed(monkeypatch):
    assert completed("run", "--solver", "") == [*SOLVERS.own()]
    monkeypatch.setattr(type(SOLVERS), "installed", lambda _axis: {"proximal-of-theirs": None})
    assert completed("run", "--solver", "prox") == ["proximal-of-theirs"]
    assert completed("run", "--engine", "v") == ["vectorised"]
    assert completed("run", "--norm", "group") == ["group", "group-ws"]
    assert "fedtan-table3" in completed("reproduce", "fedtan")


@pytest.mark.parametrize("words", [["report"], ["compare", "runs/first"], ["run", "--resume"]])
def test_runs_are_the_folders_that_hold_one(words, tmp_path):
    assert completed(*words, "ru") == ["runs/deep/er", "runs/first"]
    assert completed(*words, "runs/d") == ["runs/deep/er"]
    assert completed(*words, f"{tmp_path}/runs/f") == [f"{tmp_path}/runs/first"]
    for elsewhere in ("notes", "[", "no/../where/", "~"):  # there the shell shows folders
        assert completed(*words, elsewhere) == [elsewhere]


def test_the_script_of_each_shell_asks_this_command():
    for shell, word in (("bash", "complete -o nosort"), ("zsh", "#compdef"), ("fish", "complete")):
        found = CliRunner().invoke(main, ["completion", shell])
        assert found.exit_code == 0
        assert word in found.output
        assert f"_SECUREFL_COMPLETE={shell}_complete" in found.output
    assert "completion" in completed("comp")

"""Progress of a run: a bar at a terminal, one in a notebook, and ten lines in a log."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

import securefl
from securefl.runs import progress
from securefl.runs.progress import progress_bar
from securefl.runs.round_metrics import RoundMetrics
from securefl.runs.stopwatch import Stopwatch

ROUND = RoundMetrics(1, 0.25, 2.0, 0.1, 2_000_000, (), 30.0, score=0.25, n_clients=4, epsilon=1.5)
FEW = ("run.rounds=3", "algorithm.name=fedavg", "run.name=first", "data.partition=iid")


class Terminal(io.StringIO):
    """What is written to it is on a screen of 100 columns."""

    def isatty(self):
        return True


def terminal(monkeypatch):
    """Put a terminal in the place of stderr, for the test that calls this."""
    for name, value in (("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


@pytest.fixture
def shown(monkeypatch):
    """A notebook's kernel that writes down what it is asked to show."""
    said = []

    class Handle:
        def update(self, bar):
            said.append(bar._repr_html_())

    def display(bar, *, display_id):
        said.append(bar._repr_html_())
        return Handle()

    kernel = ModuleType("IPython")
    kernel.get_ipython = lambda: SimpleNamespace(kernel=object())
    kernel.display = ModuleType("IPython.display")
    kernel.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", kernel.display)
    monkeypatch.setattr(progress, "UPDATE_S", 0.0)
    return said


def seen(screen):
    """Lines of the screen, without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").split("\n")


def test_a_terminal_has_one_bar_of_it_all(monkeypatch):
    """Rounds, time that is left by the mean of past rounds, clients, ε, and the phase of now."""
    screen = terminal(monkeypatch)
    with progress_bar("first", 10, private=True) as bar:
        bar.on_round(replace(ROUND, seconds=10.0))
        bar.on_round(replace(ROUND, round=2, seconds=50.0))
        bar.on_phase("scoring")
    last = [line for line in seen(screen) if line.strip()][-1]
    assert last.startswith("first ━")
    told = "2/10  4 min left  25.0 %  4 clients  ε ≤ 1.5  scoring            4.0 MB up"
    assert last.rstrip().endswith(told)  # eight rounds of 30 s
    full, rest = last.count("━"), last.count("─")
    assert full == (full + rest) * 2 // 10 > 0
    assert len(last.rstrip()) == 100


def test_a_narrow_terminal_has_one_line_and_no_commands_of_a_name(monkeypatch):
    screen = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "24")
    with progress_bar("first\x1b[2J", 10) as bar:
        bar.on_round(ROUND)
    last = [line for line in seen(screen) if line.strip()][-1]
    assert last.startswith(r"first\x1b[2J   1/10  4")
    assert len(last) <= 24
    assert "\x1b[2J" not in screen.getvalue()


def test_a_run_shows_it_at_a_terminal_where_asked(monkeypatch):
    screen = terminal(monkeypatch)
    securefl.run(securefl.load_config(settings=FEW))
    assert not screen.getvalue()
    result = securefl.run(securefl.load_config(settings=FEW), progress=True)
    last = [line for line in seen(screen) if line.strip()][-1]
    assert re.search(rf"3/3  {100 * result.accuracy:.1f} %  5 clients  \S+ MB up", last)


def test_a_log_has_ten_lines(capsys):
    with progress_bar("first", 20, private=True) as bar:
        bar.on_phase("scoring")
        for number in range(1, 21):
            bar.on_round(replace(ROUND, round=number, epsilon=None))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "first: round 2/20  25.0 %     4.0 MB up  ε infinite"
    assert len(lines) == 10


def test_a_notebook_has_one_that_is_updated(shown):
    """In its place, with the phase that goes on; a name is no markup, and nothing is a script."""
    with progress_bar("<script>", 11, 4) as bar:
        bar.on_phase("clients, messages")
        bar.on_round(replace(ROUND, round=5))
    values = [re.search(r'value="(\d+)"', html)[1] for html in shown]
    assert values == ["4", "4", "5", "5"]
    assert "clients, messages" in shown[1]
    assert "3 min left" in shown[-1]  # six rounds of 30 s
    assert all("<script" not in html and "&lt;script&gt;" in html for html in shown)


def test_a_run_shows_it_in_a_notebook(shown, capsys):
    securefl.run(securefl.load_config(settings=FEW), progress=True)
    assert 'value="0"' in shown[0]
    assert "3/3" in shown[-1]
    assert any("scoring" in html for html in shown)
    assert not capsys.readouterr().err


def test_ipython_that_is_no_kernel_is_no_notebook(monkeypatch):
    """As in IPython's own terminal; and where nobody has loaded it, it stays so."""
    assert progress.notebook_display() is None
    assert "IPython" not in sys.modules
    shell = SimpleNamespace(get_ipython=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert progress.notebook_display() is None


def test_the_phase_around_another_goes_on_after_it():
    told, watch = [], Stopwatch()
    watch.on_phase = told.append
    with watch.phase("clients"), watch.phase("opening"):
        pass
    assert told == ["clients", "opening", "clients"]

"""A passphrase in the environment is read once, and no worker is started with it."""

from __future__ import annotations

import os
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from securefl.simulation.processes import worker_process
from securefl.simulation.processes.worker_process import WorkerProcess
from securefl_cli.main import main
from securefl_cli.passphrase import ENVIRONMENT, MAX_CHARACTERS, read_passphrase

pytestmark = pytest.mark.usefixtures("cheap_guesses")


@pytest.mark.parametrize("given", ["in the environment", "in a file"])
def test_it_is_gone_once_it_was_read(tmp_path, monkeypatch, given):
    """Also where a file was preferred to it."""
    monkeypatch.setenv(ENVIRONMENT, "in the environment")
    file = tmp_path / "passphrase"
    file.write_text("in a file\nand more")
    assert read_passphrase(file if given == "in a file" else None, confirm=False) == given
    assert ENVIRONMENT not in os.environ


def test_a_command_reads_it_once(tmp_path, monkeypatch):
    """And does all that it opens with it."""
    monkeypatch.setenv(ENVIRONMENT, "correct horse")
    keys = str(tmp_path / "keys")
    assert CliRunner().invoke(main, ["keys", "init", keys]).exit_code == 0
    assert ENVIRONMENT not in os.environ
    refused = CliRunner().invoke(main, ["keys", "verify", keys, "--open"])
    assert "no passphrase, and no terminal" in refused.output  # not the last command's
    monkeypatch.setenv(ENVIRONMENT, "correct horse")
    result = CliRunner().invoke(main, ["keys", "verify", keys, "--open"])
    assert result.exit_code == 0, result.output
    assert ENVIRONMENT not in os.environ


@pytest.mark.parametrize("command", [["run"], ["keys", "verify"], ["server", "serve"]])
def test_a_command_that_asks_for_none_takes_it_out_too(tmp_path, monkeypatch, command):
    """A process that it starts, multiprocessing's own among them, would inherit it."""
    monkeypatch.setenv(ENVIRONMENT, "correct horse")
    CliRunner().invoke(main, [*command, str(tmp_path / "none")])
    assert ENVIRONMENT not in os.environ


def test_a_first_line_without_end_is_no_passphrase(tmp_path):
    """Of a device, say."""
    file = tmp_path / "passphrase"
    file.write_text("x" * (MAX_CHARACTERS + 1))
    result = CliRunner().invoke(
        main, ["keys", "init", str(tmp_path / "keys"), "--passphrase-file", str(file)]
    )
    assert "its first line has more than" in result.output
    assert not (tmp_path / "keys").exists()


def test_no_worker_is_started_with_it(monkeypatch):
    """Though nothing has read it: a library's user may have set it for later."""
    monkeypatch.setenv(ENVIRONMENT, "correct horse")
    found = []

    class Started:
        pid = None

        def __init__(self, **_):
            self.close = lambda: None

        def start(self):
            found.append(os.environ.get(ENVIRONMENT))

    monkeypatch.setattr(worker_process, "_SPAWN", SimpleNamespace(Pipe=Pipe, Process=Started))
    WorkerProcess(None).start()
    assert found == [None]
    assert os.environ[ENVIRONMENT] == "correct horse"

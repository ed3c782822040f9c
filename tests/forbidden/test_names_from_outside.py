"""What a disk, a file or a caller may name: no traceback, no way out of a folder."""

from __future__ import annotations

import json
import os

import pytest
import torch
from click.testing import CliRunner

import securefl
from securefl.data.domain_folders import picture_domains
from securefl.errors import ConfigError, DataError
from securefl.io.text import printable
from securefl.report.external import ExternalScore, LeaveOneOut
from securefl_cli.evaluate import ScoreRow, print_scores
from securefl_cli.main import main

DOMAINS = ["amazon", "dslr"]


def invoke(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize(
    "name",
    [b"caf\xe9", b"n" * 201, "é".encode() * 101, b"a\x1b[31mb", b"a\nb", "a\u202eb".encode()],
    ids=["no UTF-8", "long", "long in bytes", "escape", "new line", "right to left"],
)
def test_a_domains_folder_that_cannot_name_a_client_is_refused(tmp_path, name):
    """Before a folder for its run is made; the message itself can be printed."""
    for domain in (*map(str.encode, DOMAINS), name):
        (tmp_path / "root" / os.fsdecode(domain) / "class").mkdir(parents=True)
    (tmp_path / "job.toml").write_text(
        f'[data]\ndataset = "folders"\nroot = "{tmp_path / "root"}"\n[exchange]\nencrypt = "none"\n'
    )
    with pytest.raises(DataError, match="rename the folder") as refused:
        picture_domains(tmp_path / "root")
    assert str(refused.value).isprintable()
    result = invoke("leave-one-out", tmp_path / "job.toml", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "rename the folder" in result.stderr
    assert not (tmp_path / "out").exists()


def test_usual_names_of_folders_are_taken(tmp_path):
    """Letters of any script, blanks and points."""
    names = sorted(["Zürich", "東京 2", "a..b", "n" * 200])
    for name in names:
        (tmp_path / name).mkdir()
    assert picture_domains(tmp_path) == names


@pytest.mark.parametrize("domain", ["x/../../../y", "/y", "..", "a\x1bb", "", "n" * 201, "\udce9"])
def test_a_tasks_domain_cannot_lead_out_of_the_folder(tmp_path, tiny_config, tiny_task, domain):
    """Nothing is trained, and nothing written anywhere."""
    client = (torch.randn(8, 4), torch.randint(3, (8,)))
    tasks = {domain: tiny_task(external={"client": client})}
    config = tiny_config(exchange={"encrypt": "none"})
    with pytest.raises(ConfigError, match="rename the domain"):
        securefl.leave_one_out(config, tmp_path / "deep" / "out", tasks=tasks)
    assert not any(tmp_path.iterdir())


ESC = "\x1b]0;owned\x07\x1b[31m\u202e\x9b2J"
RECIPE = f"""
title = {json.dumps("Tiny" + ESC)}
paper = {json.dumps("Nobody" + ESC)}
seeds = 1
[run]
rounds = 1
[algorithm]
local_steps = 1
[exchange]
encrypt = "none"
[[columns]]
name = "IID\u202e"
[[rows]]
name = "FedTAN\u202e"
"""


def is_harmless(text):
    """Whether a terminal shows it, line by line, and obeys nothing in it."""
    return all(line.isprintable() for line in text.split("\n"))


def test_what_is_printable_stays_as_it_is_and_nothing_else():
    """Escapes show what was there, in one line."""
    assert printable("Zürich 東京 \\x | ±") == "Zürich 東京 \\x | ±"
    assert printable("a\x1b[1m\n\udce9\u202e") == "a\\x1b[1m\\n\\udce9\\u202e"


def test_a_recipe_cannot_give_orders_to_a_terminal(tmp_path):
    """Neither on stdout and stderr nor in the page that it leaves."""
    (tmp_path / "r.toml").write_text(RECIPE)
    result = invoke("reproduce", tmp_path / "r.toml", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "FedTAN" in result.stdout
    assert "Tiny\\x1b" in result.stderr
    for text in (result.stdout, result.stderr, (tmp_path / "out" / "table.md").read_text()):
        assert is_harmless(text)


def test_an_error_cannot_give_orders_to_a_terminal(tmp_path):
    """A key of a file is shown in the message about it."""
    (tmp_path / "job.toml").write_text(f"[run]\n{json.dumps('x' + ESC)} = 1\n")
    result = invoke("run", tmp_path / "job.toml")
    assert result.exit_code == 2
    assert "\\x1b[31m" in result.stderr
    assert is_harmless(result.stderr)


def test_names_of_clients_cannot_give_orders_to_a_terminal(tiny_config, capsys):
    """In the table on stdout and in the report."""
    print_scores(["Left out", "Client"], [ScoreRow(["a" + ESC, "b\nc"], 2, 0.5, 0.5, "r2")], 0.9)
    assert is_harmless(capsys.readouterr().out)
    score = ExternalScore("a" + ESC, "b", 2, 0.5, 0.5)
    assert is_harmless(LeaveOneOut(tiny_config(), 0.9, 32, (score,)).to_markdown())

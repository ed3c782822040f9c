"""The page on processes makes a consortium, by its first lines as they stand."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from click.testing import CliRunner
from key_folders import cheap

from securefl.build.job import job_of
from securefl.settings.load import load_config
from securefl_cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/processes.md").read_text()
BLOCK = re.search(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
COMMANDS = [shlex.split(line, comments=True)[1:] for line in BLOCK.splitlines() if line]
PASSPHRASE = "correct horse battery staple"


def done(*command):
    given = CliRunner(env={"SECUREFL_PASSPHRASE": PASSPHRASE})
    with cheap():
        result = given.invoke(main, command, input="y\n" * 4)
    assert result.exit_code == 0, (command, result.output)
    return result.output


def test_its_lines_make_a_consortium(tmp_path, monkeypatch):
    """Files go from party to authority and back under the names that the page gives them."""
    monkeypatch.chdir(tmp_path)
    init, client, server, approve, export, *roles = COMMANDS
    others = re.search(r"under its own name: (.*)", BLOCK)[1].split(", ")
    parties = [*others, server[3]]
    assert client[-1] == parties[0]
    for command in (init, *([*client[:-1], name] for name in others), server):
        done(*command)
    for name in parties:
        shutil.copy(f"{name}/identity.csr", f"{name}.csr")
    done(*approve)
    for name in parties:
        shutil.copy(f"{name}.crt", f"{name}/identity.crt")
    done(*export)
    for role in roles:
        parsed, rest = main, list(role)
        while hasattr(parsed, "commands"):
            parsed = parsed.get_command(None, rest.pop(0))
        given = parsed.make_context(role[0], rest).params
        if "bundle" in given:
            done("keys", "verify", str(given["bundle"]), "--identity", str(given["identity"]))
    assert [role[:2] for role in roles] == [
        ["server", "serve"],
        ["authority", "serve"],
        ["site", "join"],
    ]


def test_its_settings_are_of_the_clients_that_its_lines_name(tmp_path):
    """A part of the data for each, and as many as the authority needs."""
    (tmp_path / "job.toml").write_text(
        re.search(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    )
    others = re.search(r"under its own name: (.*)", BLOCK)[1].split(", ")
    assert [*job_of(load_config(tmp_path / "job.toml"), None).names] == others

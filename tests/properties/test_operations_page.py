"""The page on operations says what works: its commands run, its messages are the code's."""

from __future__ import annotations

import ast
import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

import securefl
from securefl.runs.folder_files import TRAFFIC
from securefl_cli.log import FORMS
from securefl_cli.main import main
from securefl_keys import sealed_file
from securefl_keys.certificates import AUTHORITY_LIFETIME, MEMBER_LIFETIME
from securefl_keys.consortium import init_folder
from securefl_keys.identity import make_identities
from securefl_keys.membership import SOON, JoinApproval, approve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()
COMMANDS = [
    shlex.split(line)[1:]
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("securefl ") and not kind
]
SERVES = [command for command in COMMANDS if command[1] in {"serve", "join"}]
PASSPHRASE = "correct horse battery staple"


def test_all_other_commands_run_in_their_order(tmp_path, monkeypatch, quick):
    """In a folder with the page's names, with the fingerprint that the member reads aloud."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
    init_folder(Path("my-keys"), PASSPHRASE, consortium="Nord")
    (request,) = make_identities(Path(), ["alice"], "client", PASSPHRASE)
    approve(Path("my-keys"), [JoinApproval(request, Path("alice/identity.crt"))], PASSPHRASE)
    config = securefl.load_config(None, ["run.rounds=1", 'exchange.encrypt="none"'])
    securefl.run(config, out="runs/first")
    Path("runs/first", TRAFFIC).touch()  # pictures are left out here
    aloud, said = "", {}
    others = [command for command in COMMANDS if command not in SERVES]
    assert len(others) == 9
    for command in others:
        heard = ["--fingerprint", aloud] if command[:3] == ["keys", "renew", "approve"] else []
        done = CliRunner(env={"SECUREFL_PASSPHRASE": PASSPHRASE}).invoke(main, [*command, *heard])
        assert done.exit_code == 0, (command, done.output)
        said[" ".join(command[:3])] = done.output
        if found := re.search(r"(?:[0-9a-f]{4} ){15}[0-9a-f]{4}", done.output):
            aloud = found[0]
    assert "alice is a client until" in said["keys renew approve"]
    assert "Epoch 2." in said["keys rotate my-keys"]
    assert {path.name for path in Path("renewed").iterdir()} == {"client", "server", "authority"}


@cache
def said():
    """All texts in the code, as `as_said` has them."""
    return {as_said(text) for text in texts()}


def texts():
    """Each text in the code, with … in the place of what is put in."""
    for folder in ("securefl", "cli", "keys"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
                elif isinstance(node, ast.JoinedStr):
                    yield "".join(
                        part.value if isinstance(part, ast.Constant) else "…"
                        for part in node.values
                    )


def messages():
    table = PAGE.split("| a process says | then |\n|---|---|\n")[1]
    return [re.match(r"\| `([^`]+)`", row)[1] for row in table.splitlines()]


def as_said(message):
    """The message with one … for each run of them, and of what stands in brackets."""
    return re.sub(r"(…\s*)+", "…", message).strip("…").strip()


@pytest.mark.parametrize("message", messages())
def test_a_message_on_the_page_is_one_of_the_codes(message):
    """Word for word, so that who searches the page for it finds it."""
    assert any(as_said(message) in text for text in said())


def test_there_is_a_row_for_each_of_many_messages():
    assert len(messages()) == len(set(messages())) >= 15


def test_the_numbers_of_the_page_are_the_codes():
    assert MEMBER_LIFETIME.days == 398
    assert SOON.days == 30
    assert AUTHORITY_LIFETIME.days == 3650
    for number in ("last 398 days", "within 30 days", "ten years"):
        assert number in PAGE
    forms = re.findall(r"^\| `(\w+)`[^|]*\| `", PAGE, re.MULTILINE)
    assert [form for form in forms if form in FORMS] == list(FORMS)
    (line,) = re.findall(r"^\| `json` \| `(.*)` \|$", PAGE, re.MULTILINE)
    assert list(json.loads(line)) == ["time", "level", "role", "name", "run", "message"]

"""The page from empty machines to a model is run as it stands, from its first command on.

But for downloads: its pip finds the distributions that this environment has, under the page's
constraints, and no others.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from process_memory import found_under, secrets_under
from processes import ONE_THREAD

from securefl.runs.folder_reader import read_run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorials/three-hospitals.md").read_text()
HOSPITALS = ("north", "south", "east")
MACHINES = ("authority", "server", *HOSPITALS)
INSTALL, RUN = "On each machine: install", "The run"
FINGERPRINT = r"(?:[0-9a-f]{4} ){15}[0-9a-f]{4}"
WITHIN_S = 600.0
# A shell's background job, and all that it starts, ignores SIGINT.
SHELL = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execvp('bash', ['bash', '-c', *sys.argv[1:]])"
)
HEEDS_CTRL_C = [sys.executable, "-c", SHELL]
ACTIVATE = ". ~/securefl/bin/activate"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
"""The second is pip's negation: 0 switches the isolation off, for which it would download."""


@dataclass(frozen=True)
class Block:
    """A block of the page: commands, or a file that names itself in its first line."""

    section: str
    kind: str
    text: str

    @property
    def lines(self):
        return self.text.splitlines()

    @property
    def file(self):
        return None if self.kind == "" else re.fullmatch(r"# (\S+)", self.lines[0])[1]


def blocks():
    for part in PAGE.split("\n## ")[1:]:
        section, _, rest = part.partition("\n")
        for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL):
            yield Block(section, kind, text)


BLOCKS = [block for block in blocks() if block.kind != "text"]
PRINTED = [block.text for block in blocks() if block.kind == "text"]
COMMANDS = [line for b in BLOCKS if b.section != INSTALL and b.kind == "" for line in b.lines]


def machines_in(command):
    """Machines whose folders a command names; not sites by their names."""
    words = re.findall(r"(?:(?<=[ =])|(?<=>))[\w./-]+", command)
    named = {word.split("/")[0] for word in words if "/" in word}
    return named & set(MACHINES)


def machines_of(block):
    """Machines that a block is about: all of them, where it is a file."""
    found = {machine for line in block.lines for machine in machines_in(line)}
    return set(MACHINES) if block.file else found


def steps():
    """Blocks that nobody waits between: one, or neighbours of a section at other machines each."""
    step, busy = [BLOCKS[0]], machines_of(BLOCKS[0])
    for block in BLOCKS[1:]:
        here = machines_of(block)
        if block.section == step[0].section and len(here) == 1 and not here & busy:
            step.append(block)
            busy = busy | here
        else:
            yield step
            step, busy = [block], here
    yield step


def test_every_block_and_section_is_seen():
    assert len(BLOCKS) + len(PRINTED) == PAGE.count("```") / 2
    sections = {block.section for block in BLOCKS}
    assert {INSTALL, RUN} < sections
    assert [b.file for b in BLOCKS if b.file] == [
        "server/job.toml",
        "example_table.py",
        *(f"{name}/site.toml" for name in HOSPITALS),
        "north/ask.py",
    ]
    assert {name for command in COMMANDS for name in machines_in(command)} == set(MACHINES)


def test_only_copies_reach_from_machine_to_machine():
    for command in COMMANDS:
        within, across = machines_in(command), command.startswith("cp ")
        assert len(within) == 2 if across else len(within) <= 1, command


def test_nothing_secret_is_copied():
    copies = [shlex.split(command) for command in COMMANDS if command.startswith("cp ")]
    assert copies
    for *_, source, _ in copies:
        whole = r"authority/bundles/(client|server)|server/runs/first"
        assert re.fullmatch(rf".*\.(csr|crt)|server/job\.toml|{whole}", source), source


def test_it_is_installed_as_the_readme_says():
    (line,) = re.findall(r"bin/(pip install .*)$", PAGE, re.MULTILINE)
    assert f"`{line}`" in (ROOT / "README.md").read_text()
    (least,) = re.findall(r"Python (\S+) or newer", PAGE)
    assert f'requires-python = ">={least}"' in (ROOT / "pyproject.toml").read_text()


class Machines:
    """All five in one folder and one home, with a terminal for each command that goes on."""

    def __init__(self, folder):
        self.folder, self.home = folder / "machines", folder / "home"
        self.terminals, self.said = {}, {}
        system = folder / "bin"
        for made in (self.folder, self.home, system):
            made.mkdir()
        python = system / "python3"
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        own = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
        path = {"HOME": str(self.home), "PATH": f"{system}:{os.environ['PATH']}"}
        self.env = {**own, **ONE_THREAD, **OFFLINE, **path}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = str(free.getsockname()[1])

    def install(self, block):
        """Do what a block says in the checkout; the new environment borrows distributions."""
        for line in block.lines:
            self.type([line], ROOT)
            if "-m venv" in line:
                self._lend()

    def _lend(self):
        """Let the environment find what pip would download: this one's distributions."""
        (packages,) = self.home.glob("securefl/lib/*/site-packages")
        (packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        # Before Python 3.12 there is an old one, which pip would replace.
        self.type(["~/securefl/bin/pip uninstall --yes setuptools"], ROOT)

    def walk(self):
        """Do what the page says, in its order; what machines do each for itself, side by side."""
        for step in steps():
            section = step[0].section
            if section != RUN and self.terminals:
                self.wait()
            if step[0].file:
                (block,) = step
                (self.folder / block.file).write_text(block.text)
            elif section == RUN:
                for block in step:
                    self.open_terminal(block.text)
            elif section == INSTALL:
                (block,) = step
                if block.text.strip() != ACTIVATE:  # that one is for each terminal
                    self.install(block)
            else:
                self.type([f"{ACTIVATE}\n{block.text}" for block in step], self.folder)

    def type(self, blocks, where):
        """Run each block in a shell of its own, and say yes to one that approves."""
        shells = [
            subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", commands],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=where,
                env=self.env,
            )
            for commands in blocks
        ]
        for commands, shell in zip(blocks, shells, strict=True):
            yes = "y\n" * commands.count(".csr") if "approve" in commands else ""
            said, _ = shell.communicate(yes)
            assert shell.returncode == 0, (commands, said)
            self.said[commands.removeprefix(ACTIVATE).strip()] = said

    def open_terminal(self, command):
        """Start a command that goes on. Its shell becomes it, so that a signal reaches it."""
        name = command.split("/")[0].split()[-1]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.terminals[name] = subprocess.Popen(
                [*HEEDS_CTRL_C, f"{ACTIVATE}\nexec {command.replace('7443', self.port)}"],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.env,
            )

    def wait(self):
        """Until the run is done; then Ctrl-C for the authority."""
        for name in ("server", *HOSPITALS):
            ended = self.terminals[name].wait(WITHIN_S)
            assert ended == 0, (self.folder / f"{name}.log").read_text()
        self.terminals["authority"].send_signal(signal.SIGINT)
        assert self.terminals["authority"].wait(WITHIN_S) == 130
        self.terminals = {}

    def stop(self):
        for process in self.terminals.values():
            process.kill()
            process.wait()

    def what_was_said(self, beginning):
        return "".join(text for command, text in self.said.items() if command.startswith(beginning))

    def passphrase(self, name):
        return (self.folder / name / "passphrase").read_text().strip()


@pytest.fixture
def machines(tmp_path):
    made = Machines(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_three_hospitals_have_a_model(machines):
    """All of the page in its order; no secret and no patient has come to the server.

    The page says how long that takes.
    """
    machines.walk()
    installed = machines.home.glob("securefl/lib/*/site-packages/securefl_cli/__init__.py")
    assert len([*installed]) == 1, "what has run is no checkout"
    folder, run = machines.folder, machines.folder / "server/runs/first"

    record = read_run(run)
    assert [metrics.round for metrics in record.metrics] == list(range(1, 11))
    assert all(metrics.dropped == () for metrics in record.metrics)
    assert record.metrics[-1].score > 0.7
    assert (run / "model.safetensors").stat().st_size > 0
    assert (run / "openings.jsonl").read_text().count("\n") > 10
    assert "complete" in machines.what_was_said("securefl status")
    score = re.search(r"north\W+\d+\W+(\d+\.\d) %", machines.what_was_said("securefl evaluate"))
    assert float(score[1]) > 70
    said = machines.what_was_said("securefl export north") + machines.what_was_said("python3 north")
    for printed in PRINTED:
        assert set(re.findall(r"[a-z]{2,}", printed)) <= set(re.findall(r"[a-z]{2,}", said))
    ill, well = (float(p) for p in re.findall(r"\d\.\d+", said.split("tensor(")[1]))
    assert ill > 0.9
    assert well < 0.5

    requested = machines.what_was_said("securefl keys join request")
    aloud = re.findall(rf"Fingerprint of \w+ (\w+): ({FINGERPRINT})", requested)
    shown = re.findall(
        rf"Name: (\w+)\nRole: \w+\nFingerprint: ({FINGERPRINT})",
        machines.what_was_said("securefl keys join approve"),
    )
    assert [name for name, _ in aloud] == [*HOSPITALS, "hub"]
    assert aloud == shown
    (of_nord,) = re.findall(
        f"Fingerprint of Nord: ({FINGERPRINT})", machines.what_was_said("securefl keys init")
    )
    verified = machines.what_was_said("securefl keys verify")
    assert verified.count(f"Consortium Nord: {of_nord}") == 4

    keys, members = folder / "authority/keys", {n: folder / n / n for n in HOSPITALS}
    secrets = secrets_under(
        keys,
        machines.passphrase("authority"),
        {name: (at, machines.passphrase(name)) for name, at in members.items()},
    )
    assert found_under([folder / "authority", folder / "north"], secrets) >= {
        "sealed keys",
        "authority's passphrase",
        "north's sealed key",
        "north's passphrase",
    }
    assert found_under([folder / "server"], secrets) == set()
    rows = {n: [(folder / n / "patients.csv").read_bytes()[40:140]] for n in HOSPITALS}
    assert found_under([folder / "north"], rows) == {"north"}
    assert found_under([folder / "server", folder / "authority"], rows) == set()
    assert all((folder / name / "passphrase").stat().st_mode & 0o077 == 0 for name in MACHINES)

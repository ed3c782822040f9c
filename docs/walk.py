"""Type the commands of a page in an empty folder, as its reader does, and say how long that takes.

    python docs/walk.py docs/tutorials/first-run.md

A block is Python, a file that names itself in its first line (`# job.toml`), commands (no
language), or `text`. Commands are what begins in the first column.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

UNTYPED = {
    r"(make|pytest) ": "in the checkout",
    r"\. |\S*python3? -m venv|(\S*/)?pip |git ": "what installs SecureFL",
    r"(docker|podman|systemctl|sbatch|nvflare|tensorboard|mlflow|curl) ": "another program",
    r"securefl (server|authority|officer) serve|securefl site join": "other machines' part of it",
}
"""Beginnings of commands that are not typed here, with the reason."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """Name of the file that it shows, where its first line says one."""
        first = re.match(r"# ([\w./-]+\.\w+)(?::.*)?$", self.text, re.MULTILINE)
        return first[1] if first and self.language else None

    @property
    def commands(self) -> list[str]:
        """Commands of a block without a language, continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines() if not self.language else []
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page in their order."""
    for language, text in re.findall(
        r"^```([^\n]*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL
    ):
        yield Block(language, text)


def walk(page: str, type_command: Callable[[str], None]) -> None:
    """Write each file of a page into the present folder, run its Python and type its commands."""
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        if block.file:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.text)
        elif block.language == "python":
            exec(block.text, names)  # noqa: S102 - a page of ours
        for command in block.commands:
            if of_environment := re.fullmatch(r"export (\w+)=(\S+)", command):
                os.environ[of_environment[1]] = os.path.expandvars(of_environment[2])
            elif not any(re.match(beginning, command) for beginning in UNTYPED):
                type_command(command)


def _type(command: str) -> None:
    print(f"$ {command}", flush=True)  # noqa: T201
    subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True)  # noqa: S603, S607


def _main(page: Path) -> None:
    text, bin_ = page.read_text(), str(Path(sys.executable).parent)
    os.environ["PATH"] = f"{bin_}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["PWD"] = folder
        sys.path.insert(0, folder)
        began = time.monotonic()
        walk(text, _type)
        print(f"{page.name}: {time.monotonic() - began:.0f} s")  # noqa: T201


if __name__ == "__main__":
    _main(Path(sys.argv[1]))

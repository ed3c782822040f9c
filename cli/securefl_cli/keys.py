"""`securefl keys`: make the key folder, and see what is in one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.errors import KeyFileError
from securefl.io.text import printable
from securefl_cli import membership, officers, renewal, rotation
from securefl_cli.ceremony import export, verify
from securefl_cli.key_options import PASSPHRASE_FILE
from securefl_cli.passphrase import read_passphrase
from securefl_cli.policy import policy, told

if TYPE_CHECKING:
    from rich.table import Table

    from securefl_keys.description import Description


@click.group()
def keys() -> None:
    """Make and inspect the keys by which the authority opens what clients send.

    \b
    Example:
      securefl keys init my-keys
      securefl keys show my-keys
    """  # noqa: D301  (click wants the backspace itself)


@keys.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@PASSPHRASE_FILE
@click.option(
    "--consortium",
    metavar="NAME",
    help="Make a certificate authority too, which approves members and signs what they are given.",
)
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What the consortium's authority may open, a TOML file; the messages of SecureFL's "
    "algorithms where not given.",
)
def init(
    directory: Path,
    passphrase_file: Path | None,
    consortium: str | None,
    policy_file: Path | None,
) -> None:
    """Make a key pair in the new folder DIR, with one folder for each role.

    Clients make their cards for it, by which what they seal is opened: sums and profile matches.

    \b
    Example:
      securefl keys init my-keys
      securefl keys init my-keys --consortium "Northern hospitals"
      securefl keys init my-keys --passphrase-file passphrase.txt
    """  # noqa: D301  (click wants the backspace itself)
    if policy_file and consortium is None:
        raise click.UsageError("--policy is what a consortium signs: give --consortium NAME too")
    from securefl_keys.folder import init_folder
    from securefl_keys.kdf import measured
    from securefl_keys.policy import DEFAULT, read_policy
    from securefl_keys.sealed_file import KDF_COST

    policy = read_policy(policy_file) if policy_file else DEFAULT
    passphrase = read_passphrase(passphrase_file, confirm=True)
    made = init_folder(directory, passphrase, consortium=consortium, policy=policy)
    click.echo(
        "Made a key pair for clients' cards (ML-KEM-768 with X25519).\n"
        f"Key id: {made.card.key_id}\n\n"
        f"{directory / 'authority'}: for the authority alone; secret keys under the passphrase\n"
        f"{directory / 'server'}: for the server; the public key\n"
        f"{directory / 'clients'}: for every client; the public key\n\n"
        f"Passphrase: {measured(KDF_COST)}.\n"
        "Nothing recovers the secret keys without it.\n"
        f"Next: securefl run --keys {shlex.quote(str(directory))} …"
    )
    if made.consortium:
        from securefl_keys.fingerprints import readable

        click.echo(
            f"\nFingerprint of {made.consortium.name}: {readable(made.consortium.fingerprint)}\n"
            "Read it aloud to each party. Next, each of them: securefl keys join request NAME"
        )


@keys.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def show(directory: Path) -> None:
    """Show the files in DIR, who may hold each, and what is wrong with them.

    Of each certificate, from when until when it is valid. DIR may also be a member's own folder,
    of which only that is shown. Needs no passphrase. Exits with 1 where something is wrong.

    \b
    Example:
      securefl keys show my-keys
      securefl keys show alice
    """  # noqa: D301  (click wants the backspace itself)
    from rich.console import Console

    from securefl_keys import layout
    from securefl_keys.dates import is_identity
    from securefl_keys.description import describe

    if is_identity(directory):
        click.echo("\n".join([*_dates(directory), *_card_secrets(directory)]))
        return
    files = describe(directory)
    Console(highlight=False).print(_table(files))
    ids = {entry.facts.key_id for entry in files if entry.pair == "cards"}
    for key_id in sorted(ids - {None}, key=str):
        click.echo(f"Key id: {key_id}")
    for entry in files:
        for note in entry.notes:
            click.echo(f"Note: {entry.path}: {note}")
    problems = [f"{entry.path}: {problem}" for entry in files for problem in entry.problems]
    if not problems and any(entry.path == layout.POLICY for entry in files):
        try:
            click.echo("\n".join(["", *_dates(directory), "", *told(directory)]))
        except KeyFileError as error:
            problems.append(printable(str(error)))
    if problems:
        click.echo("\n".join(["", *(f"Problem: {problem}" for problem in problems)]))
        raise SystemExit(1)


def _dates(directory: Path) -> list[str]:
    """Lines on each certificate in the folder."""
    from securefl_keys.dates import dates_in
    from securefl_keys.signed_file import now

    at = now()
    found = list(dates_in(directory, at))
    widths = [
        max(len(text) for text in column)
        for column in zip(*((d.whose, d.use) for d in found), strict=True)
    ]
    return [f"{d.whose:<{widths[0]}}  {d.use:<{widths[1]}}  {d.told(at)}" for d in found]


def _card_secrets(directory: Path) -> list[str]:
    """Lines on the card secrets in an officer's folder."""
    from securefl_keys.officer_card import card_secrets

    return [f"card key of epoch {epoch}: {path}" for epoch, path in card_secrets(directory).items()]


def _table(files: list[Description]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("File", overflow="fold")
    table.add_column("What", no_wrap=True)
    table.add_column("Held by", no_wrap=True)
    table.add_column("Key id", no_wrap=True)
    table.add_column("Epoch", no_wrap=True)
    for entry in files:
        table.add_row(
            Text(str(entry.path)),
            entry.what,
            entry.holder,
            _key_id(entry),
            "" if entry.facts.epoch is None else str(entry.facts.epoch),
        )
    return table


def _key_id(entry: Description) -> str:
    unknown = "" if entry.pair == "consortium" or entry.notes else "unknown"
    return (entry.facts.key_id or unknown)[:16]


for command in (
    membership.join,
    renewal.renew,
    export,
    verify,
    policy,
    rotation.rotate,
    rotation.revoke,
    officers.officers,
):
    keys.add_command(command)

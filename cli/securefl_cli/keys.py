"""`securefl keys`: make a key folder, see its files, and give each role its part."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.errors import KeyFileError
from securefl.io.text import printable
from securefl_cli import key_members, key_officers, key_renewal, key_rotation
from securefl_cli.as_json import json_option, say_json
from securefl_cli.key_contradiction import contradiction
from securefl_cli.key_options import KEYS, PASSPHRASE_FILE
from securefl_cli.key_policy import policy, told
from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from rich.table import Table

    from securefl_keys.certificate_form import Role
    from securefl_keys.roster import VerifiedRoster
    from securefl_keys.verification import Description, FolderVerdict


@click.command()
@KEYS
@click.option(
    "--role",
    type=click.Choice(["client", "server", "authority", "officer"]),
    help="This role's bundle alone, in BUNDLES itself.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="BUNDLES",
    help="A new folder, with a folder for each role.",
)
@PASSPHRASE_FILE
def export(directory: Path, role: Role | None, out: Path, passphrase_file: Path | None) -> None:
    """Write what each role may hold to a folder in the new folder BUNDLES, under a signed list.

    No secret is in any.

    \b
    Example:
      securefl keys export --keys my-keys --out bundles
      securefl keys export --keys my-keys --role client --out for-clients
    """  # noqa: D301  (click wants the backspace itself)
    passphrase = read_passphrase(passphrase_file, confirm=False)

    from securefl_keys.certificate_form import readable
    from securefl_keys.export import export as exported
    from securefl_keys.export import export_all

    if role is None:
        bundles = {out / made.role: made for made in export_all(directory, out, passphrase)}
    else:
        bundles = {out: exported(directory, role, out, passphrase)}
    for path, manifest in bundles.items():
        click.echo(
            f"{path}: for the {manifest.role}; {len(manifest.files)} files, roster version "
            f"{manifest.roster_version}, no secret"
        )
    first, manifest = next(iter(bundles.items()))
    click.echo(
        f"Fingerprint of the consortium: {readable(manifest.authority)}\n"
        f"Next, on each machine: securefl keys verify {shlex.quote(str(first))}"
    )


@click.command()
@click.argument("directory", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--identity",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A member's own folder, to be checked against FOLDER.",
)
@click.option("--ca", metavar="HEX", help="The consortium's fingerprint, as it was read aloud.")
@click.option(
    "--open", "opening", is_flag=True, help="Also open what is sealed: asks for its passphrase."
)
@PASSPHRASE_FILE
@json_option
def verify(
    directory: Path,
    identity: Path | None,
    ca: str | None,
    opening: bool,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Check a bundle or a key folder completely, and say what its holder can and cannot do.

    Needs no passphrase but to look into sealed files. Exits with 1 where something is wrong.

    \b
    Example:
      securefl keys verify bundles/client --identity alice
      securefl keys verify my-keys --open
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_keys.certificate_form import typed
    from securefl_keys.verification import verify as verified

    passphrase = read_passphrase(passphrase_file, confirm=False) if opening else None
    wanted = typed(ca) if ca else None
    verdict = verified(directory, identity, wanted, passphrase=passphrase)
    if as_json:
        say_json(_verified(verdict, compared=ca is not None, opened=opening))
        raise SystemExit(1 if verdict.problems else 0)
    click.echo("\n".join(_told(verdict, compared=ca is not None)))
    for note in verdict.notes:
        click.echo(f"Note: {printable(note)}")
    if not opening and (identity or verdict.role is None):
        click.echo("Not looked into: what is sealed. --open does, with its passphrase.")
    if verdict.problems:
        problems = [f"Problem: {printable(problem)}" for problem in verdict.problems]
        click.echo("\n".join(["", *problems]))
        raise SystemExit(1)


def _verified(verdict: FolderVerdict, *, compared: bool, opened: bool) -> dict[str, Any]:
    """Return what `keys verify --json` says; of a folder with a problem not what it can do."""
    sound, roster = not verdict.problems, verdict.roster
    return {
        "what": verdict.what,
        "consortium": verdict.ca and verdict.ca.name,
        "fingerprint": verdict.ca and verdict.ca.fingerprint,
        "fingerprint_compared": compared,
        "roster_version": roster and roster.file.version,
        "members": {n: member.role for n, member in roster.members.items()} if roster else {},
        "officers": verdict.officers,
        "can": verdict.can if sound else [],
        "cannot": verdict.cannot if sound else [],
        "notes": verdict.notes,
        "opened": opened,
        "problems": verdict.problems,
    }


def _told(verdict: FolderVerdict, *, compared: bool) -> list[str]:
    from securefl_keys.certificate_form import readable

    lines = [f"{verdict.what}."]
    if verdict.ca is None:
        lines.append("Nobody has signed it.")
    else:
        lines.append(f"Consortium {verdict.ca.name}: {readable(verdict.ca.fingerprint)}")
        if not compared:
            lines.append("Compare this fingerprint aloud, or give it with --ca.")
    if verdict.roster is not None:
        lines.append(f"Roster version {verdict.roster.file.version}: {_members(verdict.roster)}")
    if verdict.officers:
        lines.append(f"{verdict.officers}.")
    if not verdict.problems:
        lines += [f"It can {text}." for text in verdict.can]
        lines += [f"It cannot {text}." for text in verdict.cannot]
    return lines


def _members(roster: VerifiedRoster) -> str:
    by_role = {
        f"{role}s": [name for name, member in roster.members.items() if member.role == role]
        for role in ("client", "server", "officer")
    }
    told = [f"{role} {', '.join(names)}" for role, names in by_role.items() if names]
    return "; ".join(told) or "nobody yet"


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
    from securefl_keys.consortium import init_folder
    from securefl_keys.policy import DEFAULT, read_policy
    from securefl_keys.sealed_file import KDF_COST, measured

    policy = read_policy(policy_file) if policy_file else DEFAULT
    passphrase = read_passphrase(passphrase_file, confirm=True)
    made = init_folder(directory, passphrase, consortium=consortium, policy=policy)
    click.echo(
        "Made a card key and its secret key (ML-KEM-768 with X25519).\n"
        f"Key id: {made.card.key_id}\n\n"
        f"{directory / 'authority'}: for the authority alone; secret keys under the passphrase\n"
        f"{directory / 'server'}: for the server; the card key\n"
        f"{directory / 'clients'}: for every client; the card key\n\n"
        f"Passphrase: {measured(KDF_COST)}.\n"
        "Nothing recovers the secret keys without it."
    )
    if not made.consortium:
        click.echo(f"Next: securefl run --keys {shlex.quote(str(directory))} …")
    else:
        from securefl_keys.certificate_form import readable

        click.echo(
            f"\nFingerprint of {made.consortium.name}: {readable(made.consortium.fingerprint)}\n"
            "Read it aloud to each party. Next, each of them: securefl keys join request NAME"
        )


@keys.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def show(directory: Path, as_json: bool) -> None:
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
    from securefl_keys.membership import is_identity
    from securefl_keys.verification import describe

    if as_json:
        _show_json(directory)
        return
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


def _show_json(directory: Path) -> None:
    """Print files, certificates and problems; exits with 1 where there is a problem."""
    from securefl_keys import layout
    from securefl_keys.membership import dates_in, is_identity
    from securefl_keys.signed_file import now
    from securefl_keys.verification import describe

    files = [] if is_identity(directory) else describe(directory)
    if any(entry.path == layout.POLICY for entry in files):
        told(directory)  # raises where it is not as it was signed
    at = now()
    dates = [{"whose": d.whose, "use": d.use, "dates": d.told(at)} for d in dates_in(directory, at)]
    say_json({"files": files, "certificates": dates})
    if any(entry.problems for entry in files):
        raise SystemExit(1)


def _dates(directory: Path) -> list[str]:
    """Return lines on each certificate in the folder."""
    from securefl_keys.membership import dates_in
    from securefl_keys.signed_file import now

    at = now()
    found = list(dates_in(directory, at))
    widths = [
        max(len(text) for text in column)
        for column in zip(*((d.whose, d.use) for d in found), strict=True)
    ]
    return [f"{d.whose:<{widths[0]}}  {d.use:<{widths[1]}}  {d.told(at)}" for d in found]


def _card_secrets(directory: Path) -> list[str]:
    """Return lines on the card secrets in an officer's folder."""
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
    key_members.join,
    key_renewal.renew,
    export,
    verify,
    policy,
    key_rotation.rotate,
    key_rotation.revoke,
    key_officers.officers,
    contradiction,
):
    keys.add_command(command)

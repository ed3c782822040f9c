"""`securefl keys export` and `verify`: what each role is given, and whether it is in order."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.io.text import printable
from securefl_cli.key_options import KEYS, PASSPHRASE_FILE
from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from securefl_keys.holders import Role
    from securefl_keys.roster import VerifiedRoster
    from securefl_keys.verification import Verdict


@click.command()
@KEYS
@click.option(
    "--role",
    type=click.Choice(["client", "server", "authority", "officer"]),
    help="This role's bundle alone, in BUNDLES itself.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="BUNDLES")
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

    from securefl_keys.export import export as exported
    from securefl_keys.export import export_all
    from securefl_keys.fingerprints import readable

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
def verify(
    directory: Path,
    identity: Path | None,
    ca: str | None,
    opening: bool,
    passphrase_file: Path | None,
) -> None:
    """Check a bundle or a key folder completely, and say what its holder can and cannot do.

    Needs no passphrase but to look into sealed files. Exits with 1 where something is wrong.

    \b
    Example:
      securefl keys verify bundles/client --identity alice
      securefl keys verify my-keys --open
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_keys.fingerprints import typed
    from securefl_keys.verification import verify as verified

    passphrase = read_passphrase(passphrase_file, confirm=False) if opening else None
    wanted = typed(ca) if ca else None
    verdict = verified(directory, identity, wanted, passphrase=passphrase)
    click.echo("\n".join(_told(verdict, compared=ca is not None)))
    for note in verdict.notes:
        click.echo(f"Note: {printable(note)}")
    if not opening and (identity or verdict.role is None):
        click.echo("Not looked into: what is sealed. --open does, with its passphrase.")
    if verdict.problems:
        problems = [f"Problem: {printable(problem)}" for problem in verdict.problems]
        click.echo("\n".join(["", *problems]))
        raise SystemExit(1)


def _told(verdict: Verdict, *, compared: bool) -> list[str]:
    from securefl_keys.fingerprints import readable

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

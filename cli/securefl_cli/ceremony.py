"""`securefl keys join`, `export`, `verify` and `revoke`: a consortium's certificates."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.errors import RequestRefused
from securefl.names import printable
from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from securefl_keys.bundle import Role
    from securefl_keys.verification import Verdict

_PASSPHRASE = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take the passphrase from the first line of FILE. Without it: the environment variable "
    "SECUREFL_PASSPHRASE, else the terminal asks.",
)
_KEYS = click.option(
    "--keys",
    "directory",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder that `securefl keys init --consortium` made.",
)


@click.group()
def join() -> None:
    """Become a client of a consortium: request on its machine, approve on the authority's.

    \b
    Example:
      securefl keys join request alice --out alice
      securefl keys join approve alice/identity.csr --keys my-keys
    """  # noqa: D301  (click wants the backspace itself)


@join.command()
@click.argument("name", metavar="NAME")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR")
@_PASSPHRASE
def request(name: str, out: Path, passphrase_file: Path | None) -> None:
    """Make the client NAME's identity key in the new folder DIR, and a request to be let in.

    The key stays there, under a passphrase of the client's own.

    \b
    Example:
      securefl keys join request alice --out alice
    """  # noqa: D301  (click wants the backspace itself)
    passphrase = read_passphrase(passphrase_file, confirm=True)

    from securefl_keys import layout
    from securefl_keys.fingerprints import readable
    from securefl_keys.identity import make_identity

    made = make_identity(out, name, passphrase)
    click.echo(
        f"Fingerprint of {made.name}: {readable(made.fingerprint)}\n\n"
        f"{out / layout.IDENTITY_KEY}: stays here\n"
        f"{out / layout.IDENTITY_REQUEST}: send it to the consortium, and read the fingerprint "
        "aloud to them\n"
        f"Next: put the certificate that comes back there as {out / layout.IDENTITY_CERTIFICATE}"
    )


@join.command()
@click.argument("request_file", metavar="REQUEST", type=click.Path(path_type=Path))
@_KEYS
@click.option(
    "--fingerprint", metavar="HEX", help="What the client read aloud; without it the terminal asks."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where the certificate goes; beside REQUEST where not given.",
)
@_PASSPHRASE
def approve(
    request_file: Path,
    directory: Path,
    fingerprint: str | None,
    out: Path | None,
    passphrase_file: Path | None,
) -> None:
    """Issue a certificate for REQUEST, and list its client in the roster.

    \b
    Example:
      securefl keys join approve alice.csr --keys my-keys
      securefl keys join approve alice.csr --keys my-keys --fingerprint "3f2a 91c0 …"
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_keys.consortium import approve as approved
    from securefl_keys.fingerprints import readable, typed
    from securefl_keys.reading import found_in, text_of
    from securefl_keys.request import read_request

    text = text_of(request_file)
    with found_in(request_file):
        asked = read_request(text)
    click.echo(f"Name: {asked.name}\nFingerprint: {readable(asked.fingerprint)}", err=True)
    if fingerprint is None:
        click.confirm("Has the client read the same fingerprint aloud?", abort=True, err=True)
    elif typed(fingerprint) != asked.fingerprint:
        raise RequestRefused(
            f"{request_file}: not the fingerprint that was given: this is another's request, or "
            "one digit was misread"
        )
    passphrase = read_passphrase(passphrase_file, confirm=False)
    certificate = out or request_file.with_suffix(".crt")
    roster = approved(directory, asked, certificate, passphrase)
    click.echo(
        f"{asked.name} is client {len(roster.members)} in roster version {roster.file.version}.\n"
        f"{certificate}: send it back to {asked.name}\n"
        f"Next: securefl keys export --keys {shlex.quote(str(directory))} --role client --out …"
    )


@click.command()
@_KEYS
@click.option("--role", required=True, type=click.Choice(["client", "server", "authority"]))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="BUNDLE")
@_PASSPHRASE
def export(directory: Path, role: Role, out: Path, passphrase_file: Path | None) -> None:
    """Write what a role may hold to the new folder BUNDLE, under a signed list. No secret is in it.

    \b
    Example:
      securefl keys export --keys my-keys --role client --out for-clients
      securefl keys export --keys my-keys --role server --out for-the-server
    """  # noqa: D301  (click wants the backspace itself)
    passphrase = read_passphrase(passphrase_file, confirm=False)

    from securefl_keys.export import export as exported
    from securefl_keys.fingerprints import readable

    manifest = exported(directory, role, out, passphrase)
    click.echo(
        f"{out}: for the {role}; {len(manifest.files)} files, roster version "
        f"{manifest.roster_version}, no secret\n"
        f"Fingerprint of the consortium: {readable(manifest.authority)}\n"
        f"Next, on its machine: securefl keys verify {shlex.quote(str(out))}"
    )


@click.command()
@click.argument("directory", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--identity",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A client's own folder, to be checked against FOLDER.",
)
@click.option("--ca", metavar="HEX", help="The consortium's fingerprint, as it was read aloud.")
def verify(directory: Path, identity: Path | None, ca: str | None) -> None:
    """Check a bundle or a key folder completely, and say what its holder can and cannot do.

    Needs no passphrase. Exits with 1 where something is wrong.

    \b
    Example:
      securefl keys verify for-clients --identity alice
      securefl keys verify my-keys
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_keys.fingerprints import typed
    from securefl_keys.verification import verify as verified

    verdict = verified(directory, identity, typed(ca) if ca else None)
    click.echo("\n".join(_told(verdict, compared=ca is not None)))
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
        members = ", ".join(verdict.roster.members) or "nobody yet"
        lines.append(f"Roster version {verdict.roster.file.version}: {members}")
        if verdict.roster.rotation_due:
            lines.append("A rotation is due: a revoked client knows this epoch's keys.")
    if not verdict.problems:
        lines += [f"It can {text}." for text in verdict.can]
        lines += [f"It cannot {text}." for text in verdict.cannot]
    return lines


@click.command()
@click.argument("name", metavar="NAME")
@_KEYS
@_PASSPHRASE
def revoke(name: str, directory: Path, passphrase_file: Path | None) -> None:
    """Take the client NAME out of the roster.

    \b
    Example:
      securefl keys revoke alice --keys my-keys
    """  # noqa: D301  (click wants the backspace itself)
    passphrase = read_passphrase(passphrase_file, confirm=False)

    from securefl_keys.consortium import revoke as revoked

    roster = revoked(directory, name, passphrase)
    click.echo(
        f"{name} is revoked; roster version {roster.file.version} lists "
        f"{', '.join(roster.members) or 'nobody'}.\n"
        "A rotation is due: it knows this epoch's keys. Make new ones with: securefl keys init\n"
        "Next: export new bundles; who has an old one still believes the old roster."
    )

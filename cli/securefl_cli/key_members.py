"""`securefl keys join` and `revoke`: members let into a consortium, and taken out."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from securefl.errors import RequestRefused
from securefl_cli.key_options import KEYS, PASSPHRASE_FILE
from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from securefl_keys.certificate_form import Role
    from securefl_keys.membership import JoinApproval
    from securefl_keys.request import JoinRequest

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def join() -> None:
    """Become a member of a consortium: request on its machine, approve on the authority's.

    \b
    Example:
      securefl keys join request alice
      securefl keys join approve alice/identity.csr --keys my-keys
    """  # noqa: D301  (click wants the backspace itself)


def approval_options(command: Command) -> Command:
    """Add the requests that are approved, the keys, fingerprints, `--out` and the passphrase."""
    for option in reversed(_APPROVAL):
        command = option(command)
    return command


_APPROVAL = (
    click.argument(
        "files", metavar="REQUEST...", nargs=-1, required=True, type=click.Path(path_type=Path)
    ),
    KEYS,
    click.option(
        "--fingerprint",
        "fingerprints",
        metavar="HEX",
        multiple=True,
        help="What was read aloud, once for each REQUEST and in their order; without it the "
        "terminal asks.",
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Where the certificate of a single REQUEST goes; beside it where not given.",
    ),
    PASSPHRASE_FILE,
)


@join.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--role",
    type=click.Choice(["client", "server", "officer"]),
    default="client",
    show_default=True,
    help="What it is to be: each needs a bundle of its own.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Where the folder NAME is made; here where not given.",
)
@PASSPHRASE_FILE
def request(names: tuple[str, ...], role: Role, out: Path, passphrase_file: Path | None) -> None:
    """Make an identity key in the new folder NAME, and a request to be let in.

    The key stays there, under a passphrase of its owner's. Several names share one passphrase.

    \b
    Example:
      securefl keys join request alice
      securefl keys join request hub --role server --out identities
      securefl keys join request olga --role officer
    """  # noqa: D301  (click wants the backspace itself)
    passphrase = read_passphrase(passphrase_file, confirm=True)

    from securefl_keys import layout
    from securefl_keys.identity import make_identities

    for made in make_identities(out, names, role, passphrase):
        folder = out / made.name
        tell_request(made, folder, f"{folder / layout.IDENTITY_KEY}: stays here\n")


@join.command()
@approval_options
def approve(
    files: tuple[Path, ...],
    directory: Path,
    fingerprints: tuple[str, ...],
    out: Path | None,
    passphrase_file: Path | None,
) -> None:
    """Issue a certificate for each REQUEST, and list them in the roster: all, or none.

    \b
    Example:
      securefl keys join approve alice.csr --keys my-keys --fingerprint "3f2a 91c0 …"
      securefl keys join approve alice.csr bob.csr hub.csr --keys my-keys
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_keys.membership import approve as approved

    approvals = compared(files, fingerprints, out)
    passphrase = read_passphrase(passphrase_file, confirm=False)
    roster = approved(directory, approvals, passphrase)
    for approval in approvals:
        name, role = approval.request.name, approval.request.role
        article = "an" if role == "officer" else "a"
        click.echo(
            f"{name} is {article} {role} in roster version {roster.file.version}.\n"
            f"{approval.certificate}: send it back to {name}"
        )
    click.echo(f"Next: securefl keys export --keys {shlex.quote(str(directory))} --out …")


def tell_request(made: JoinRequest, folder: Path, before: str = "", after: str = "") -> None:
    """Print what becomes of a request; `before` and `after` go around it."""
    from securefl_keys import layout
    from securefl_keys.certificate_form import readable

    click.echo(
        f"Fingerprint of {made.role} {made.name}: {readable(made.fingerprint)}\n{before}"
        f"{folder / layout.IDENTITY_REQUEST}: send it to the consortium, and read the "
        "fingerprint aloud to them\n"
        "Next: put the certificate that comes back there as "
        f"{folder / layout.IDENTITY_CERTIFICATE}{after}"
    )


def compared(
    files: tuple[Path, ...], fingerprints: tuple[str, ...], out: Path | None
) -> list[JoinApproval]:
    """Return the requests, each of which has the fingerprint that was read aloud.

    Raises:
        UsageError: the options do not go together.
        RequestRefused: a file holds no request, or another than was read aloud.
    """
    if fingerprints and len(fingerprints) != len(files):
        raise click.UsageError(
            f"{len(fingerprints)} fingerprints for {len(files)} requests: give one for each, in "
            "the order of the requests, or none and be asked"
        )
    if out and len(files) > 1:
        raise click.UsageError("--out names one certificate: leave it out, or approve one by one")

    from securefl_keys.membership import JoinApproval

    asked = [_read(file) for file in files]
    for number, (file, requested) in enumerate(zip(files, asked, strict=True)):
        _compare(file, requested, fingerprints[number] if fingerprints else None)
    return [
        JoinApproval(requested, out or file.with_suffix(".crt"))
        for file, requested in zip(files, asked, strict=True)
    ]


def _read(file: Path) -> JoinRequest:
    from securefl_keys.key_files import found_in, text_of
    from securefl_keys.request import read_request

    text = text_of(file)
    with found_in(file):
        return read_request(text)


def _compare(file: Path, asked: JoinRequest, fingerprint: str | None) -> None:
    from securefl_keys.certificate_form import readable, typed

    click.echo(
        f"Name: {asked.name}\nRole: {asked.role}\nFingerprint: {readable(asked.fingerprint)}",
        err=True,
    )
    if fingerprint is None:
        try:
            same = click.confirm("Was the same fingerprint read aloud to you?", err=True)
        except click.Abort:
            raise RequestRefused(f"{file}: nobody answers: give --fingerprint HEX") from None
        if not same:
            raise RequestRefused(f"{file}: not approved, and neither is any other: compare again")
    elif typed(fingerprint) != asked.fingerprint:
        raise RequestRefused(
            f"{file}: not the fingerprint that was given: this is another's request, or one digit "
            "was misread"
        )

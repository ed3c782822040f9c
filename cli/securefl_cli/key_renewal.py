"""`securefl keys renew`: certificates of new dates for the keys that members have."""

import shlex
from pathlib import Path

import click

from securefl_cli.key_members import approval_options, compared, tell_request
from securefl_cli.key_options import PASSPHRASE_FILE
from securefl_cli.passphrase import read_passphrase


@click.group()
def renew() -> None:
    """Renew a member's certificates: request on its machine, approve on the authority's.

    Its key stays, and so do its name, its role and what it keeps of a run. `securefl keys show`
    tells when certificates end.

    \b
    Example:
      securefl keys renew request alice
      securefl keys renew approve alice/identity.csr --keys my-keys
    """  # noqa: D301  (click wants the backspace itself)


@renew.command()
@click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@PASSPHRASE_FILE
def request(directories: tuple[Path, ...], passphrase_file: Path | None) -> None:
    """Write the request of the identity in DIR anew, to send it to the consortium.

    It is of the same key, and so has the fingerprint that was read aloud at its joining; unless
    that was with an older release, which knew no key for TLS.

    \b
    Example:
      securefl keys renew request alice
    """  # noqa: D301  (click wants the backspace itself)
    passphrase = read_passphrase(passphrase_file, confirm=False)

    from securefl_keys.membership import write_request

    for directory in directories:
        made = write_request(directory, passphrase)
        tell_request(made, directory, after=", in the place of the old")


@renew.command()
@approval_options
def approve(
    files: tuple[Path, ...],
    directory: Path,
    fingerprints: tuple[str, ...],
    out: Path | None,
    passphrase_file: Path | None,
) -> None:
    """Issue certificates of new dates for each REQUEST of a member, in the place of its old ones.

    The roster lists the new one alone. The old ones are of the same key, and are taken until they
    end. Only a certificate of the same key is written over.

    \b
    Example:
      securefl keys renew approve alice.csr --keys my-keys
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_keys.membership import renew as renewed

    approvals = compared(files, fingerprints, out)
    passphrase = read_passphrase(passphrase_file, confirm=False)
    roster = renewed(directory, approvals, passphrase)
    for approval in approvals:
        member = roster.members[approval.request.name]
        click.echo(
            f"{member.name} is {'an' if member.role == 'officer' else 'a'} {member.role} until "
            f"{member.certificate.not_valid_after_utc:%Y-%m-%d}, in roster version "
            f"{roster.file.version}.\n{approval.certificate}: send it back to {member.name}"
        )
    click.echo(
        "A run over processes takes the roster up with its next round. For processes that start "
        f"later: securefl keys export --keys {shlex.quote(str(directory))} --out …"
    )

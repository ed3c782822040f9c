"""`securefl keys rotate` and `revoke`: the keys of the next epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl_cli.key_options import KEYS, PASSPHRASE_FILE
from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from securefl_keys.folder import NewPair

_NEXT = (
    "The old secret keys are deleted, and what was sealed under them is refused.\n"
    "Processes (securefl server serve) take up the new keys with their next round. A simulation\n"
    "that runs ends with the keys that it holds; one that was stopped goes on with the new ones:\n"
    "securefl run --resume RUN --keys DIR --identity …\n"
    "Next: export new bundles for whoever joins from now on."
)


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@PASSPHRASE_FILE
def rotate(directory: Path, passphrase_file: Path | None) -> None:
    """Make the keys of the next epoch in DIR, in the place of the old.

    Roster and policy are signed anew; identities and certificates stay.

    \b
    Example:
      securefl keys rotate my-keys
    """  # noqa: D301  (click wants the backspace itself)
    passphrase = read_passphrase(passphrase_file, confirm=False)

    from securefl_keys.rotation import rotate as rotated

    _tell(rotated(directory, passphrase))


@click.command()
@click.argument("name", metavar="NAME")
@KEYS
@PASSPHRASE_FILE
def revoke(name: str, directory: Path, passphrase_file: Path | None) -> None:
    """Take the client or server NAME out of the roster, and rotate the keys that it knew.

    \b
    Example:
      securefl keys revoke alice --keys my-keys
    """  # noqa: D301  (click wants the backspace itself)
    passphrase = read_passphrase(passphrase_file, confirm=False)

    from securefl_keys.rotation import rotate as rotated

    made = rotated(directory, passphrase, revoking=name)
    click.echo(f"{name} is revoked.")
    _tell(made)


def _tell(made: NewPair) -> None:
    click.echo(f"Epoch {made.card.epoch}.\nKey id: {made.card.key_id}\n\n{_NEXT}")

"""`securefl keys policy`: what the authority may open, in plain words, and how it is changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.io.text import printable
from securefl_cli.key_options import PASSPHRASE_FILE
from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from securefl_keys.policy import PolicyFile


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--sign",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Sign the policy in FILE, a TOML file, as DIR's next one.",
)
@PASSPHRASE_FILE
def policy(directory: Path, file: Path | None, passphrase_file: Path | None) -> None:
    """Print the policy of a key folder or a bundle, or give the key folder another.

    \b
    Example:
      securefl keys policy my-keys
      securefl keys policy my-keys --sign policy.toml
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_keys.policy import load_policy, read_policy
    from securefl_keys.policy_signing import sign_policy

    if file is None:
        click.echo("\n".join(told(load_policy(directory))))
        return
    wanted = read_policy(file)
    signed = sign_policy(directory, wanted, read_passphrase(passphrase_file, confirm=False))
    click.echo("\n".join(told(signed)))
    click.echo("Next: export new bundles; who has an old one still believes the old policy.")


def told(file: PolicyFile) -> list[str]:
    """The policy in words."""
    stated = file.policy()
    totals = (
        f"Totals of at least {stated.min_contributions} contributions are opened, at most "
        f"{stated.openings_per_run:,} in a run."
    )
    return [
        f"Policy version {file.version} of consortium {file.consortium}:",
        totals,
        "Opened are messages by their names, the first line that fits:",
        *(
            f"  {printable(rule.names)}  to {rule.precision_bits} bits after the leading one"
            for rule in stated.rules
        ),
        "Nothing else is opened.",
    ]

"""`securefl keys policy`: the authority's policy of openings, in plain words, and its change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.io.text import printable
from securefl_cli.as_json import json_option, say_json
from securefl_cli.key_options import PASSPHRASE_FILE
from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from securefl_keys.roster import OfficersFile


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
@json_option
def policy(directory: Path, file: Path | None, passphrase_file: Path | None, as_json: bool) -> None:
    """Print the policy of a key folder or a bundle, or give the key folder another.

    \b
    Example:
      securefl keys policy my-keys
      securefl keys policy my-keys --sign policy.toml
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_keys.policy import read_policy
    from securefl_keys.rotation import sign_policy

    if file is not None:
        wanted = read_policy(file)
        sign_policy(directory, wanted, read_passphrase(passphrase_file, confirm=False))
    if as_json:
        say_json(_as_one(directory))
        return
    click.echo("\n".join(told(directory)))
    if file is not None:
        click.echo("Next: export new bundles; who has an old one still believes the old policy.")


def _as_one(directory: Path) -> dict[str, Any]:
    """Return what `keys policy --json` says; raises as `told`."""
    from securefl_keys.policy import load_policy
    from securefl_keys.roster import load_officers
    from securefl_keys.signed_file import now

    at = now()
    file, officers = load_policy(directory, at), load_officers(directory, at)
    stated = file.policy()
    return {
        "version": file.version,
        "consortium": file.consortium,
        "min_contributions": stated.min_contributions,
        "openings_per_run": stated.openings_per_run,
        "rules": stated.rules,
        "officers": {of.name: of.card.key_id for of in officers.officers} if officers else {},
        "officers_needed": officers.needed if officers else 1,
    }


def told(directory: Path) -> list[str]:
    """Return the policy in words, and the officers, where the authority does not open alone.

    Raises:
        KeyFileError: and its subclasses, as `load_policy` and `load_officers`.
    """
    from securefl_keys.policy import load_policy
    from securefl_keys.roster import load_officers
    from securefl_keys.signed_file import now

    at = now()
    file, officers = load_policy(directory, at), load_officers(directory, at)
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
        *(_officers(officers) if officers and officers.told() else ()),
    ]


def _officers(file: OfficersFile) -> list[str]:
    k, n = file.needed, len(file.officers)
    liars = f", or with {2 * k - n} that lie to the others" if k < n else ""
    return [
        "",
        f"{file.told()}, by their card keys",
        *(f"  {officer.name}  {officer.card.key_id}" for officer in file.officers),
        "Each of them checks all of this policy but the bits, adds up keys, and sees no value.",
        "The server puts their answers together and reads what is opened, unrounded if it likes.",
        f"Fewer than {k} of them learn nothing.",
        f"The server reads single clients with {k} of them{liars}.",
    ]

"""`securefl keys rotate` and `revoke`: the keys of the next epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl_cli.key_options import KEYS, PASSPHRASE_FILE
from securefl_cli.passphrase import read_passphrase

if TYPE_CHECKING:
    from securefl_keys.consortium import NewPair
    from securefl_keys.officer_card import OfficerCard

CARDS = click.argument("cards", metavar="[CARD]...", nargs=-1, type=click.Path(path_type=Path))
_NEXT = (
    "The old secret keys are deleted, and what was sealed under them is refused.\n"
    "Processes (securefl server serve) take up the new keys with their next round. A simulation\n"
    "that runs ends with the keys that it holds; one that was stopped goes on with the new ones:\n"
    "securefl run --resume RUN --keys DIR --identity …\n"
    "Next: export new bundles for whoever joins from now on."
)


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@CARDS
@PASSPHRASE_FILE
def rotate(directory: Path, cards: tuple[Path, ...], passphrase_file: Path | None) -> None:
    """Make the keys of the next epoch in DIR, in the place of the old.

    Roster and policy are signed anew; identities and certificates stay. Where there are officers,
    each CARD is what one of them has made with `securefl keys officers card`.

    \b
    Example:
      securefl keys rotate my-keys
      securefl keys rotate my-keys olga-2.json otto-2.json
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_keys.rotation import rotate as rotated

    given = read_cards(cards)
    passphrase = read_passphrase(passphrase_file, confirm=False)
    tell_rotated(rotated(directory, passphrase, cards=given))


@click.command()
@click.argument("name", metavar="NAME")
@CARDS
@KEYS
@PASSPHRASE_FILE
def revoke(
    name: str, cards: tuple[Path, ...], directory: Path, passphrase_file: Path | None
) -> None:
    """Take the member NAME out of the roster, and rotate the keys that it knew.

    Where there are officers, each CARD is what one of them has made with `securefl keys officers
    card`. An officer in force is first left out by `securefl keys officers set`.

    \b
    Example:
      securefl keys revoke alice --keys my-keys
      securefl keys revoke alice olga-3.json otto-3.json --keys my-keys
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_keys.rotation import rotate as rotated

    given = read_cards(cards)
    passphrase = read_passphrase(passphrase_file, confirm=False)
    made = rotated(directory, passphrase, revoking=name, cards=given)
    click.echo(f"{name} is revoked.")
    tell_rotated(made)


def read_cards(files: Sequence[Path]) -> list[OfficerCard]:
    """Read the officers' card keys in these files; raises KeyFileError."""
    from securefl_keys.key_files import found_in, text_of
    from securefl_keys.officer_card import OfficerCard

    cards = []
    for file in files:
        text = text_of(file)
        with found_in(file):
            cards.append(OfficerCard.parse(text))
    return cards


def tell_rotated(made: NewPair) -> None:
    """Print the epoch that is in force now, and what is next."""
    click.echo(f"Epoch {made.card.epoch}.\nKey id: {made.card.key_id}\n\n{_NEXT}")

"""`securefl keys officers`: officers who open sums beside the authority."""

import shlex
from pathlib import Path

import click

from securefl_cli.key_options import PASSPHRASE_FILE
from securefl_cli.key_rotation import read_cards, tell_rotated
from securefl_cli.passphrase import read_passphrase


@click.group()
def officers() -> None:
    """Let k of n officers open sums, of whom the authority is one: none of them can alone.

    Each officer joins with --role officer, and makes a card key for each epoch.

    \b
    Example:
      securefl keys join request olga --role officer
      securefl keys officers card olga --epoch 2 --out olga-2.json
      securefl keys officers set my-keys --threshold 2 olga-2.json otto-2.json
    """  # noqa: D301  (click wants the backspace itself)


@officers.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--epoch",
    required=True,
    type=click.IntRange(2, 2**31 - 1),
    help="The next one: securefl keys show tells the one in force.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The card key's public part, for the authority.",
)
@PASSPHRASE_FILE
def card(directory: Path, epoch: int, out: Path, passphrase_file: Path | None) -> None:
    """Make the card key of the officer whose identity is in DIR, for one epoch.

    The secret stays in DIR, under the identity's passphrase. FILE is public: send it to the
    authority. Where DIR has a secret of that epoch, FILE is of that.

    \b
    Example:
      securefl keys officers card olga --epoch 2 --out olga-2.json
    """  # noqa: D301  (click wants the backspace itself)
    passphrase = read_passphrase(passphrase_file, confirm=False)

    from securefl_keys import layout
    from securefl_keys.officer_card import make_card

    made = make_card(directory, epoch, passphrase, out)
    click.echo(
        f"Card key of officer {made.name}, epoch {epoch}: {made.officer.card.key_id}\n"
        f"{directory / layout.card_secret_of(epoch)}: stays here\n"
        f"{out}: send it to the authority\n"
        "Next, at the authority: securefl keys officers set, or securefl keys rotate"
    )


@officers.command("set")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("cards", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--threshold",
    type=click.IntRange(min=1),
    metavar="K",
    help="How many of the officers open sums, the authority counted: more than half of them.",
)
@PASSPHRASE_FILE
def set_(
    directory: Path, cards: tuple[Path, ...], threshold: int | None, passphrase_file: Path | None
) -> None:
    """Set the officers of the key folder DIR: the authority, and one for each FILE, in this order.

    All keys are rotated. FILE is of the next epoch. Without any FILE, the authority is alone again.

    \b
    Example:
      securefl keys officers set my-keys --threshold 2 olga-2.json otto-2.json
      securefl keys officers set my-keys
    """  # noqa: D301  (click wants the backspace itself)
    if cards and threshold is None:
        raise click.UsageError("say how many of the officers are needed, with --threshold K")
    if threshold not in {None, 1} and not cards:
        raise click.UsageError("--threshold without any FILE: the authority alone is one officer")

    from securefl_keys.rotation import set_officers

    given = read_cards(cards)
    passphrase = read_passphrase(passphrase_file, confirm=False)
    made = set_officers(directory, passphrase, given, threshold or 1)
    names = ["authority", *(card.name for card in given)]
    click.echo(
        f"{threshold} of {len(names)} officers open sums: {', '.join(names)}."
        if given
        else "The authority opens sums alone."
    )
    tell_rotated(made)
    click.echo(f"securefl keys export --keys {shlex.quote(str(directory))} --out …")
    click.echo(
        "A run that goes on does so with its next round; one that is begun anew needs another "
        "run.seed: who opens now has no record of what was opened before."
    )

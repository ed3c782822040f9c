"""`securefl reproduce`: a whole table of a paper, printed and measured values side by side."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from securefl.errors import ConfigError
from securefl.io.text import printable
from securefl.recipes.recipe import Recipe, load_recipe, slug
from securefl.settings.load import read_tables
from securefl.settings.reasons import suggestion
from securefl_cli.as_json import json_option, say_json
from securefl_cli.completion import any_of
from securefl_cli.progress import table_bar

if TYPE_CHECKING:
    from securefl.recipes.table import RecipeTable


SCALES = ("digits", "natural", "paper")
INSTALLED = Path(__file__).parent / "recipes"
CHECKOUT = Path(__file__).parents[2] / "examples" / "recipes"


def shipped_recipes(scale: str) -> dict[str, Path]:
    """Return the shipped recipes' files by their names, in order."""
    folder = INSTALLED if INSTALLED.is_dir() else CHECKOUT
    return {path.stem: path for path in sorted((folder / scale).glob("*.toml"))}


def find_recipe(name: str, scale: str) -> Path:
    """Return the shipped recipe of that name, or the file of that path.

    Raises:
        ConfigError: neither exists.
    """
    if name.endswith(".toml"):
        return Path(name)
    known = shipped_recipes(scale)
    if name not in known:
        raise ConfigError(
            f"{name}: no recipe of this name at {scale} scale{suggestion([], name, known)}; "
            "a file of yours ends with .toml"
        )
    return known[name]


WIDE = 1000


@click.command()
@click.argument(
    "name",
    metavar="[RECIPE]",
    required=False,
    shell_complete=any_of(lambda: shipped_recipes("digits")),
)
@click.option(
    "--scale",
    type=click.Choice(SCALES),
    default="digits",
    show_default=True,
    help="Data and settings, see above.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), help="Runs of each cell; else the recipe's.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the runs and the table go; runs/<recipe>-<scale> where absent.",
)
@click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The data set's files; else where the recipe says, `data` in those of paper scale.",
)
@click.option(
    "--list",
    "listed",
    is_flag=True,
    help="List the recipes of the scale that --scale names, and stop.",
)
@json_option
def reproduce(  # noqa: PLR0913, PLR0917  (click gives each option)
    name: str | None,
    scale: str,
    seeds: int | None,
    out: Path | None,
    data_root: Path | None,
    listed: bool,
    as_json: bool,
) -> None:
    """Run a whole table of a paper over several seeds.

    RECIPE is a name that --list shows, of one scale at a time (--list --scale natural, --list
    --scale paper), or a .toml file of your own. Digits scale needs no files,
    and minutes to an hour; natural scale has data that were collected apart, and two larger sets of
    images, and needs what securefl data list says of them, and minutes; paper scale has the paper's
    settings, and needs its data sets and days.
    Give the same command again to go on after an interruption: complete runs are kept.

    \b
    Example:
      securefl reproduce --list
      securefl reproduce --list --scale natural
      securefl reproduce fedtan-table1
      securefl reproduce heart --scale natural
      securefl reproduce fedtan-table1 --scale paper --seeds 1 --data-root ~/cifar
    """  # noqa: D301  (click wants the backspace itself)
    if listed:
        others = " and ".join(f"--scale {other}" for other in SCALES if other != scale)
        titles = {n: read_tables(path)["title"] for n, path in shipped_recipes(scale).items()}
        if as_json:
            say_json(titles)
            return
        for known, title in titles.items():
            click.echo(f"{known:<16} {title}")
        click.echo(f"There are more with {others}.", err=True)
        return
    if name is None:
        raise click.UsageError("Name a recipe; securefl reproduce --list shows them.")
    path = find_recipe(name, scale)
    recipe = load_recipe(path, data_root)
    seeds = seeds or recipe.seeds
    own = name.endswith(".toml")
    folder = out or Path("runs") / (_named_after(path) if own else f"{name}-{scale}")
    scaled = [] if own else ["--scale", scale]
    root = ["--data-root", str(data_root)] if data_root else []
    parts = [name, *scaled, "--seeds", str(seeds), "--out", str(folder), *root]
    command = shlex.join(["securefl", "reproduce", *parts])
    click.echo(f"{printable(recipe.title)}\n{printable(recipe.paper)}", err=True)
    try:
        table = _run(recipe, folder, seeds)
    except KeyboardInterrupt:
        click.echo(f"\nGo on with: {command}", err=True)
        raise
    table.write(folder, command)
    if as_json:
        click.echo((folder / "results.json").read_text())
    else:
        _print(table)
    click.echo(f"Table: {folder / 'table.md'}", err=as_json)


def _named_after(path: Path) -> str:
    name = slug(path.stem)
    if not name:
        raise ConfigError(f"{path}: has no letter or digit to name a folder after; give --out DIR")
    return name


def _run(recipe: Recipe, folder: Path, seeds: int) -> RecipeTable:
    from securefl.recipes.reproduce import plan
    from securefl.recipes.reproduce import reproduce as run_table

    runs = {run.folder: run for cell in plan(recipe, folder, seeds).values() for run in cell}
    with table_bar(sum(run.config.run.rounds for run in runs.values())) as advance:
        return run_table(recipe, folder, seeds, advance)


def _print(table: RecipeTable) -> None:
    printed = RichTable(box=None, pad_edge=False)
    printed.add_column("", overflow="fold")
    for column in table.recipe.columns:
        printed.add_column(Text(f"{printable(column)}\npaper"), justify="right", overflow="fold")
        printed.add_column("\nmeasured", justify="right", overflow="fold")
    for line in table.lines():
        printed.add_row(*map(Text, map(printable, line)))
    # A file or a pipe has no width that cells would have to be folded to.
    terminal = Console()
    (terminal if terminal.is_terminal else Console(width=WIDE)).print(printed)

"""A shipped recipe's settings over fewer rounds: enough for what a test asks."""

from __future__ import annotations

from securefl import Config
from securefl.recipes.recipe import load_recipe
from securefl_cli.reproduce import shipped_recipes


def shortened(
    recipe: str,
    row: str,
    seed: int,
    rounds: int,
    column: str | None = None,
    scale: str = "digits",
) -> Config:
    """Of this cell; of the row's first where no column is named."""
    table = load_recipe(shipped_recipes(scale)[recipe])
    cell = next(c for c in table.cells if c.row == row and column in {None, c.column})
    config = cell.config(seed)
    return config.model_copy(update={"run": config.run.model_copy(update={"rounds": rounds})})

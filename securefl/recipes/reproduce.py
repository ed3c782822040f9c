"""Reproduction of a recipe: each cell and seed is a run's folder, kept, resumed or read back."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from securefl.build.run import resume, run
from securefl.errors import ConfigError, Diverged
from securefl.recipes.figures import RunFigures
from securefl.recipes.quantities import Measure
from securefl.recipes.recipe import Cell, Recipe
from securefl.recipes.table import MeasuredCell, NoValue, RecipeTable, Value
from securefl.runs.folder_files import holds_run, is_finished
from securefl.runs.folder_reader import read_config
from securefl.runs.round_metrics import RoundMetrics, read_metrics
from securefl.settings.tables import Config


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a recipe; cells that differ in their measure alone share it."""

    config: Config
    folder: Path


OnRun = Callable[[PlannedRun, int], None]


def plan(recipe: Recipe, out: Path, seeds: int) -> dict[Cell, tuple[PlannedRun, ...]]:
    """Return the runs of each cell, one for each seed.

    Raises:
        ConfigError: a folder in `out` holds a run of other settings; nothing has been run then.
    """
    planned: dict[str, PlannedRun] = {}
    runs = {}
    for cell in recipe.cells:
        configs = [cell.config(seed) for seed in range(seeds)]
        folders = [out / "runs" / f"{cell.name}.{seed}" for seed in range(seeds)]
        runs[cell] = tuple(
            planned.setdefault(_settings(config), PlannedRun(config, folder))
            for config, folder in zip(configs, folders, strict=True)
        )
    for one in planned.values():
        _check_settings(one)
    return runs


def reproduce(recipe: Recipe, out: Path, seeds: int, on_run: OnRun | None = None) -> RecipeTable:
    """Run the whole table: read runs that are complete in `out`, and make the others.

    A run that diverges is a cell that says so. After an interruption, the same call goes on.

    Args:
        recipe: what to run.
        out: holds the runs' folders, in `runs`.
        seeds: each cell is run with the seeds 0..seeds-1.
        on_run: called with a run and its rounds so far, before it goes on and after each round.

    Raises:
        ConfigError: a run in `out` has other settings than the recipe; nothing has been run then.
        DataError, RunFolderError: a run cannot be made, resumed or read.
    """
    outcomes: dict[Path, bool] = {}
    cells = []
    for cell, runs in plan(recipe, out, seeds).items():
        for one in runs:
            if one.folder not in outcomes:
                outcomes[one.folder] = _complete(one, on_run or (lambda *_: None))
        values = tuple(
            _value(one, cell) if outcomes[one.folder] else NoValue.DIVERGED for one in runs
        )
        cells.append(MeasuredCell(cell, values, tuple(one.folder for one in runs)))
    return RecipeTable(recipe, seeds, tuple(cells))


def _complete(one: PlannedRun, on_run: OnRun) -> bool:
    """Run to the end, and return whether it came there, as it now stands in its folder."""

    def on_round(metrics: RoundMetrics) -> None:
        on_run(one, metrics.round)

    started = holds_run(one.folder)
    on_run(one, len(read_metrics(one.folder)) if started else 0)
    try:
        if not started:
            run(one.config, out=one.folder, on_round=on_round)
        elif not is_finished(one.folder):
            resume(one.folder, on_round=on_round)
    except Diverged:
        return False
    return True


def measured(folder: Path, measure: Measure) -> float | None:
    """Return the quantity of a complete run; None where the target was never reached.

    Raises:
        RunFolderError: no run's folder, or a damaged one.
    """
    return measure.row.of(RunFigures(folder), measure)


def _value(one: PlannedRun, cell: Cell) -> Value:
    value = measured(one.folder, cell.measure)
    return NoValue.NEVER if value is None else value


def _settings(config: Config) -> str:
    """Return all settings but the run's name."""
    return _unnamed(config).model_dump_json()


def _unnamed(config: Config) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update={"name": None})})


def _check_settings(one: PlannedRun) -> None:
    if not holds_run(one.folder):
        return
    found, wanted = (
        _unnamed(c).model_dump(mode="json") for c in (read_config(one.folder), one.config)
    )
    changed = [
        f"{table}.{key} = {found.get(table, {}).get(key)!r}, not {value!r}"
        for table in wanted
        for key, value in wanted[table].items()
        if found.get(table, {}).get(key) != value
    ]
    if changed:
        raise ConfigError(
            f"{one.folder}: this run has other settings than the recipe ({'; '.join(changed)}): "
            "move the folder away, or name another one"
        )

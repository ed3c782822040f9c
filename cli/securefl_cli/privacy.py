"""`securefl privacy`: the noise that an ε takes, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from securefl.errors import ConfigError
from securefl.settings.load import load_config
from securefl_cli.as_json import json_option, say_json
from securefl_cli.completion import complete_runs

if TYPE_CHECKING:
    from securefl.privacy.history import History
    from securefl.privacy.plan import RecordPlan
    from securefl.report.protection import Protection
    from securefl.settings.tables import Config


@click.group()
def privacy() -> None:
    """Plan differential privacy, and see what it protects.

    \b
    Example:
      securefl privacy plan --target-epsilon 3 --delta 1e-5 --clients 5 --records 50000 \\
        --batch 200 --rounds 100 --local-steps 5
      securefl privacy cost job.toml --target-epsilon 3
      securefl privacy show runs/first
    """  # noqa: D301  (click wants the backspace itself)


@privacy.command()
@click.option("--target-epsilon", type=float, metavar="EPSILON", help="Print the noise for this ε.")
@click.option("--sigma", type=float, help="Print the ε of this noise multiplier instead.")
@click.option(
    "--delta", type=float, required=True, help="δ: how likely ε may fail; below 1 / records."
)
@click.option(
    "--records", type=int, required=True, metavar="N", help="That all clients hold together."
)
@click.option(
    "--clients",
    type=int,
    default=1,
    show_default=True,
    metavar="K",
    help="Who hold equal parts. Where parts differ, give the smallest as N, and K = 1.",
)
@click.option(
    "--batch", type=int, required=True, metavar="B", help="The expected size of a client's sample."
)
@click.option("--rounds", type=int, required=True, metavar="R")
@click.option(
    "--local-steps",
    type=int,
    default=5,
    show_default=True,
    metavar="E",
    help="Noisy steps of a client in a round.",
)
@json_option
def plan(  # noqa: PLR0913, PLR0917 -- one argument an option
    target_epsilon: float | None,
    sigma: float | None,
    delta: float,
    records: int,
    clients: int,
    batch: int,
    rounds: int,
    local_steps: int,
    as_json: bool,
) -> None:
    """Print the noise multiplier σ that an ε takes, or the ε of a σ, for DP-SGD at each client.

    ε is printed by two accountants, PLD and RDP: both are upper bounds, and PLD's is the tighter.
    All numbers must be public: give bounds that do not depend on anybody's data.

    \b
    Example:
      securefl privacy plan --target-epsilon 3 --delta 1e-5 --clients 5 --records 50000 \\
        --batch 200 --rounds 100 --local-steps 5
      securefl privacy plan --sigma 1 --delta 1e-5 --records 6000 --batch 64 --rounds 50
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.privacy.accountants import Accountant, epsilon
    from securefl.privacy.plan import RecordPlan

    if (target_epsilon is None) == (sigma is None):
        raise ConfigError("give one of --target-epsilon, for its σ, and --sigma, for its ε")
    planned = RecordPlan(records, batch, rounds, local_steps, clients)
    planned.check_delta(delta)
    if sigma is None:
        assert target_epsilon is not None  # noqa: S101 -- for mypy: one of the two is given
        sigma = _as_printed(planned.sigma_for(target_epsilon, delta))
    if as_json:
        by = {kind: epsilon([planned.event(sigma)], delta, kind) for kind in Accountant}
        counts = {"sample_rate": planned.sample_rate, "steps": planned.steps}
        say_json({"sigma": sigma, "delta": delta, **counts, "epsilon": by})
    else:
        _print(planned, sigma, delta)


@privacy.command()
@click.argument(
    "config_file", metavar="[CONFIG.toml]", required=False, type=click.Path(path_type=Path)
)
@click.option(
    "--target-epsilon", type=float, metavar="EPSILON", help="Print the privacy.sigma for this ε."
)
@click.option("--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Any setting.")
@json_option
def cost(
    config_file: Path | None,
    target_epsilon: float | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the ε of a job's settings, with all that it would release; nothing is trained.

    \b
    Example:
      securefl privacy cost job.toml
      securefl privacy cost job.toml --target-epsilon 3
      securefl privacy cost --set privacy.level=record --set privacy.records=250 \\
        --set algorithm.name=fixbn --set algorithm.weights=uniform --target-epsilon 3
    """  # noqa: D301  (click wants the backspace itself)
    config = load_config(config_file, settings)
    from securefl.build.job import planned_spending
    from securefl.privacy.calibration import sigma_for
    from securefl.privacy.events import Level
    from securefl.task import configured_task

    planned = planned_spending(config, configured_task(config))
    table, level = config.privacy, Level(config.privacy.level)

    def history(sigma: float) -> History:
        return planned(sigma).history(config.run.rounds)

    sigma = table.sigma
    if target_epsilon is not None:
        found = sigma_for(target_epsilon, table.delta, lambda s: history(s).events(level))
        sigma = _as_printed(found)
    if target_epsilon is not None and not as_json:
        click.echo(f"privacy.sigma = {sigma:.5g}")
    _say_spent(config.with_sigma(sigma), history(sigma), as_json=as_json)


@privacy.command()
@click.argument("run", type=click.Path(path_type=Path), shell_complete=complete_runs)
@json_option
def show(run: Path, as_json: bool) -> None:
    """Print what a run has spent so far, and what that protects from whom.

    \b
    Example:
      securefl privacy show runs/first
    """  # noqa: D301  (click wants the backspace itself)
    from securefl.privacy.history import History
    from securefl.runs.folder_reader import read_config
    from securefl.runs.folder_writer import RunFolder

    _say_spent(read_config(run), RunFolder(run).history() or History(), as_json=as_json)


def _say_spent(config: Config, history: History, *, as_json: bool) -> None:
    """Print the ε of a history, and what it protects from whom."""
    from securefl.privacy.events import Level
    from securefl.report.protection import epsilon_said, protections

    if not as_json:
        click.echo(epsilon_said(config, history) + "\n")
        _print_protections(protections(config))
        return
    table = config.privacy
    spent = history.epsilon(Level(table.level), table.delta) if table.private else math.inf
    noise = {"level": table.level, "sigma": table.sigma, "delta": table.delta}
    say_json({**noise, "epsilon": spent, "protections": protections(config)})


def _as_printed(sigma: float) -> float:
    """Round σ up to five digits: with fewer an ε would be above the one that was asked for."""
    return float(Context(prec=5, rounding=ROUND_CEILING).create_decimal(repr(sigma)))


def _print_protections(found: Iterable[Protection]) -> None:
    from securefl.report.protection import HEADINGS

    table = Table(*HEADINGS, box=None, pad_edge=False)
    for protection in found:
        table.add_row(*protection.cells)
    Console().print(table)


def _print(planned: RecordPlan, sigma: float, delta: float) -> None:
    from securefl.privacy.accountants import Accountant, epsilon
    from securefl.privacy.wording import record_protection

    events = [planned.event(sigma)]
    table = Table(box=None, pad_edge=False, show_header=False)
    sampled = f"each record of a client's {planned.records_each:,}, for {planned.batch:,} a step"
    per_round = f"{planned.rounds:,} rounds of {planned.local_steps:,}"
    for row in (
        ("noise multiplier σ", f"{sigma:.5g}", "standard deviation of the noise / clip norm"),
        ("sample rate q", f"{planned.sample_rate:.4g}", sampled),
        ("steps", f"{planned.steps:,}", per_round),
        ("ε by PLD", _shown(epsilon(events, delta)), f"at δ = {delta:g}"),
        ("ε by RDP", _shown(epsilon(events, delta, Accountant.RDP)), "a looser bound on the same"),
    ):
        table.add_row(*row)
    Console().print(table)
    click.echo("\n" + record_protection(planned.records_each))


def _shown(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.4g}"

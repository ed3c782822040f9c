"""Options that several of `securefl keys`' commands have, and the roles' own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def passphrase_file_option(**more: Any) -> Callable[[Command], Command]:
    """Return the option `--passphrase-file`."""
    return click.option(
        "--passphrase-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Take the passphrase from the first line of FILE. Without it: the environment "
        "variable SECUREFL_PASSPHRASE, else the terminal asks.",
        **more,
    )


def keys_option(**more: Any) -> Callable[[Command], Command]:
    """Return the option `--keys`."""
    return click.option(
        "--keys",
        "directory",
        required=True,
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="The folder that `securefl keys init --consortium` made.",
        **more,
    )


PASSPHRASE_FILE = passphrase_file_option()
KEYS = keys_option()

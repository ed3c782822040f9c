"""Options that several of `securefl keys`' commands have."""

from __future__ import annotations

from pathlib import Path

import click

PASSPHRASE_FILE = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take the passphrase from the first line of FILE. Without it: the environment variable "
    "SECUREFL_PASSPHRASE, else the terminal asks.",
)
KEYS = click.option(
    "--keys",
    "directory",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder that `securefl keys init --consortium` made.",
)

"""What the three processes' commands have alike: identity, roster, settings, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from securefl.errors import ConfigError, KeyFileError
from securefl_cli.passphrase import read_passphrase_file

if TYPE_CHECKING:
    from securefl.net.identity import Identity

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)

config_argument = click.argument("config_file", metavar="[CONFIG.toml]", required=False, type=FILE)
settings_option = click.option(
    "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Any setting."
)
roster_option = click.option(
    "--roster",
    required=True,
    type=FILE,
    metavar="PATH",
    help="The clients' certificates: a folder of *.pem, or one file.",
)


def identity_options(command: Command) -> Command:
    """`--ca`, `--cert`, `--key` and `--key-passphrase-file`."""
    options = [
        click.option("--ca", required=True, type=FILE, help="Vouches for all peers (PEM)."),
        click.option("--cert", required=True, type=FILE, help="This process's certificate (PEM)."),
        click.option("--key", required=True, type=FILE, help="Its Ed25519 key (PEM)."),
        click.option(
            "--key-passphrase-file",
            type=FILE,
            metavar="FILE",
            help="Its first line opens an encrypted --key; else the terminal.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def identity_of(ca: Path, cert: Path, key: Path, passphrase_file: Path | None) -> Identity:
    """The identity; asks at the terminal where its key is encrypted and no file is given."""
    from securefl.net.identity import Identity
    from securefl_keys.key_files import open_to_others, others_may_read

    if others_may_read(key):
        raise KeyFileError(f"{key}: {open_to_others(key)}")
    if passphrase_file:
        passphrase = read_passphrase_file(passphrase_file, "--key-passphrase-file")
    elif _is_encrypted(key):
        passphrase = _asked(key)
    else:
        passphrase = ""
    return Identity(ca, cert, key, passphrase)


def _is_encrypted(key: Path) -> bool:
    try:
        return b"ENCRYPTED" in key.read_bytes()
    except OSError as error:
        raise KeyFileError(f"{key}: cannot be read: {error.strerror or error}") from error


def _asked(key: Path) -> str:
    # Not from the environment: the server's is to hold no secret.
    if not sys.stdin.isatty():
        raise ConfigError(f"{key} is encrypted: give --key-passphrase-file FILE")
    typed: str = click.prompt(f"Passphrase of {key}", hide_input=True, err=True)
    return typed


def say(line: str) -> None:
    """A line of progress, on stderr."""
    from securefl.names import printable

    click.echo(printable(line), err=True)


def run_until_done(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; Ctrl-C and SIGTERM let it say goodbye, and are KeyboardInterrupt then."""

    async def interruptible() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            if task and signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, task.cancel)
        await work

    try:
        asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None

"""What the three processes' commands have alike: settings, bundle, identity, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)

config_argument = click.argument("config_file", metavar="[CONFIG.toml]", required=False, type=FILE)
settings_option = click.option(
    "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Any setting."
)
_bundle_option = click.option(
    "--bundle",
    required=True,
    type=FILE,
    metavar="DIR",
    help="What the consortium has signed for this role: `securefl keys export` made it.",
)
_identity_option = click.option(
    "--identity",
    required=True,
    type=FILE,
    metavar="DIR",
    help="This party's own folder: `securefl keys join request` made it, and its certificate lies "
    "there as identity.crt.",
)


def member_options(command: Command) -> Command:
    """`--bundle` and `--identity`."""
    return _bundle_option(_identity_option(command))


def seconds_option(name: str, default: float, least: float, what: str) -> Callable[..., Any]:
    """An option that says how long something may take."""
    return click.option(
        name,
        default=default,
        show_default=True,
        type=click.FloatRange(least, 10**6),
        metavar="S",
        help=f"Seconds {what}",
    )


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

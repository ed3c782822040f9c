"""Common parts of the three processes' commands: settings, bundle, identity, stopping."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from securefl.network.saying import Warned
from securefl_cli.key_options import keys_option, passphrase_file_option
from securefl_cli.log import lines_are_of, say

if TYPE_CHECKING:
    from securefl.network.connect import Address
    from securefl.network.identity import ProcessIdentity
    from securefl.network.monitor import Watched
    from securefl.network.trust import Role

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


def or_environment(name: str) -> dict[str, Any]:
    """Return arguments by which an option comes from SECUREFL_<name>, which its help shows."""
    return {"envvar": f"SECUREFL_{name}", "show_envvar": True}


config_argument = click.argument(
    "config_file",
    metavar="[CONFIG.toml]",
    required=False,
    type=FILE,
    envvar="SECUREFL_CONFIG",
)
settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Any setting, beside those of CONFIG.toml (which the environment variable SECUREFL_CONFIG "
    "may name, too).",
)
_bundle_option = click.option(
    "--bundle",
    required=True,
    type=FILE,
    metavar="DIR",
    help="What the consortium has signed for this role: `securefl keys export` made it.",
    **or_environment("BUNDLE"),
)
_identity_option = click.option(
    "--identity",
    required=True,
    type=FILE,
    metavar="DIR",
    help="This party's own folder: `securefl keys join request` made it, and its certificate lies "
    "there as identity.crt.",
    **or_environment("IDENTITY"),
)
AUTHORITY_KEYS = keys_option(**or_environment("KEYS"))
OWN_PASSPHRASE_FILE = passphrase_file_option(**or_environment("PASSPHRASE_FILE"))
server_option = click.option(
    "--server",
    default="127.0.0.1:7443",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the server listens.",
    **or_environment("SERVER"),
)


def member_options(command: Command) -> Command:
    """Add the options `--bundle` and `--identity`."""
    return _bundle_option(_identity_option(command))


def seconds_option(name: str, default: float, least: float, what: str) -> Callable[..., Any]:
    """Return an option for how long something may take, in seconds."""
    return click.option(
        name,
        default=default,
        show_default=True,
        type=click.FloatRange(least, 10**6),
        metavar="S",
        help=f"Seconds {what}",
    )


def introduce(mine: ProcessIdentity, role: Role, directory: Path) -> None:
    """Put this party's name in the log, and say so where its own certificates end soon.

    Raises:
        CertificateExpired: they have ended, or this machine's clock is wrong.
    """
    from securefl_keys.certificate_form import Holder, require_current
    from securefl_keys.certificates import way_out
    from securefl_keys.membership import ending
    from securefl_keys.signed_file import now

    lines_are_of(mine.name)
    at = now()
    for certificate in filter(None, (mine.certificate, mine.transport)):
        whose = f"{mine.name}'s certificate"
        require_current(certificate, at, whose, way_out(Holder(mine.name, role)))
    if told := ending(mine.certificate, at):
        command = f"securefl keys renew request {shlex.quote(str(directory))}"
        renewed = "with the consortium's: make new keys" if role == "authority" else command
        say(Warned(f"The certificate of {mine.name} ends on {told}: {renewed}"))


metrics_option = click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Answer /metrics (Prometheus), /healthz and /readyz there over HTTP, on this machine "
    "alone where no HOST is given; needs securefl[ops].",
    **or_environment("METRICS"),
)
health_option = click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="Answer gRPC's health service there, on this machine alone where no HOST is given: the "
    'services "" and "ready"; needs securefl[ops].',
    **or_environment("HEALTH"),
)


@contextmanager
def watched_at(
    metrics: str | None, health: str | None, watched: Watched, role: Role
) -> Iterator[None]:
    """Serve the page of `--metrics` and the service of `--health` within, where they are asked for.

    Raises:
        ConfigError: an address cannot be had, or what is needed there is not installed.
    """
    with ExitStack() as stack:
        if metrics is not None:
            from securefl.network.metrics_page import metrics_page

            where = stack.enter_context(metrics_page(watched, role, _operators_address(metrics)))
            say(f"Metrics on http://{where}/metrics")
        if health is not None:
            from securefl.network.health import health_service

            where = stack.enter_context(health_service(watched, _operators_address(health)))
            say(f"Health on {where}")
        yield


def _operators_address(text: str) -> Address:
    from securefl.network.connect import Address

    return Address.parse(f"127.0.0.1:{text}" if text.isdigit() else text)


_told_to_stop = threading.Event()
"""Set by SIGTERM, whose exit is lost where Python drops it, as in a callback after an import."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End the command with code 0 and a word on SIGTERM within, also before it is connected.

    A decorator of a command, too.
    """

    def stop(_number: int, _frame: object) -> None:
        _told_to_stop.set()
        _stopped()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _told_to_stop.clear()


def _stopped() -> NoReturn:
    say("Stopped.")
    sys.exit(0)


def run_until_done(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, which may say goodbye when it is stopped.

    Raises:
        KeyboardInterrupt: Ctrl-C has been pressed.
        SystemExit: SIGTERM has come, which asks a service to stop and is no failure: code 0.
    """
    asked = set[int]()
    if _told_to_stop.is_set():
        work.close()
        _stopped()

    async def stoppable() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop(number: int) -> None:
            asked.add(number)
            if task:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, stop, number)
        await work

    _allow_all_descriptors()
    try:
        asyncio.run(stoppable())
    except asyncio.CancelledError:
        if asked != {signal.SIGTERM}:
            raise KeyboardInterrupt from None
        _stopped()


def _allow_all_descriptors() -> None:
    """Raise the limit of open files as far as the system lets a process: each peer takes one."""
    with suppress(ImportError, ValueError, OSError):  # Windows; macOS, where there is no limit
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

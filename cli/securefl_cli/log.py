"""Lines on stderr: for people, or with date, level and role as well for a log."""

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import click

from securefl.io.text import printable
from securefl.network.saying import SESSION, Warned

ENVIRONMENT = "SECUREFL_LOG"
FORMS = ("plain", "text", "json")
_SESSION_LETTERS = 8
_LOGGER = logging.getLogger("securefl")


class _Lines(logging.Handler):
    """Handler that writes each record as one line, in the form that was asked for."""

    def __init__(self, form: str, role: str) -> None:
        super().__init__()
        self.form, self.role, self.whose = form, role, ""

    def emit(self, record: logging.LogRecord) -> None:
        # As text: click would write bytes, past a bar that moves what is written above itself.
        sys.stderr.write(f"{self._line(record)}\n")
        sys.stderr.flush()

    def _line(self, record: logging.LogRecord) -> str:
        message = printable(record.getMessage())
        at = datetime.fromtimestamp(record.created, UTC)
        run = printable(SESSION.get()[:_SESSION_LETTERS])
        if self.form == "plain":  # of a party that goes on for hours; other commands end soon
            stamp = [f"{at:%H:%M:%SZ}", run] if self.role else []
            return " ".join([*filter(None, stamp), message])
        fields = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "role": self.role,
            "name": printable(self.whose),
            "run": run,
        }
        if self.form == "text":
            who = f"{fields['role']}/{fields['name'] or '-'}"
            head = fields["time"], fields["level"].upper(), who, fields["run"] or "-"
            return " ".join((*head, message))
        fields["message"] = message
        if record.exc_info:
            fields["trace"] = logging.Formatter().formatException(record.exc_info)
        return json.dumps(fields)  # ASCII: no line break of any kind is left in it


_HANDLERS: list[_Lines] = []
"""Handler in use, if any."""


def log_option(role: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--log`, of a process of this role."""

    def begin_log(_context: click.Context, _option: click.Parameter, form: str) -> None:
        begin(form, role)

    return click.option(
        "--log",
        type=click.Choice(FORMS),
        default="plain",
        show_default=True,
        envvar=ENVIRONMENT,
        show_envvar=True,
        expose_value=False,
        is_eager=True,
        callback=begin_log,
        help="Lines on stderr: plain, with time (UTC) and session, or with date, level, role and "
        "name as well, as text or as one JSON object a line.",
    )


def begin(form: str = "plain", role: str = "") -> None:
    """Say lines in this form from now on; other libraries' warnings too, where it is a log's."""
    for old in _HANDLERS:
        _LOGGER.removeHandler(old)
        logging.getLogger().removeHandler(old)
    _HANDLERS[:] = [_Lines(form, role)]
    _LOGGER.addHandler(_HANDLERS[0])
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    logging.captureWarnings(form != "plain")
    if form != "plain":
        logging.getLogger().addHandler(_HANDLERS[0])
        sys.excepthook = _failed
    elif sys.excepthook is _failed:
        sys.excepthook = sys.__excepthook__
    if form == "json":
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core writes to stderr by itself


def lines_are_of(name: str) -> None:
    """Name the party whose lines these are, once it is known."""
    for handler in _HANDLERS:
        handler.whose = name


def say(line: str) -> None:
    """Say a line of progress, on stderr."""
    if not _HANDLERS:
        begin()
    _LOGGER.log(logging.WARNING if isinstance(line, Warned) else logging.INFO, line)


def say_error(error: str) -> None:
    """Say why the command ends, on stderr."""
    if not _HANDLERS:
        begin()
    _LOGGER.error(f"Error: {error}" if is_plain() else error)


def is_plain() -> bool:
    """Return whether lines are for people."""
    return all(handler.form == "plain" for handler in _HANDLERS)


def _failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log an error that nobody has foreseen."""
    _LOGGER.critical(f"{kind.__name__}: {error}", exc_info=(kind, error, trace))

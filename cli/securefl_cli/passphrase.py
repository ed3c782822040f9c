"""Passphrase of the secret key: from a file, the environment, or the terminal."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from securefl.errors import ConfigError

ENVIRONMENT = "SECUREFL_PASSPHRASE"
MAX_CHARACTERS = 10_000
_GIVEN = "securefl passphrase"


def from_environment() -> str | None:
    """Return what the environment holds or held when the command began, and take it out.

    No process that is started later gets it.
    """
    context = click.get_current_context(silent=True)
    kept: dict[str, str | None] = context.meta if context else {}
    return kept.setdefault(_GIVEN, os.environ.pop(ENVIRONMENT, None))


def no_core_dumps() -> None:
    """Keep crashes from now on from writing this process's memory to the disk."""
    with suppress(ImportError):  # Windows has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read_passphrase(file: Path | None, *, confirm: bool) -> str:
    """Return the first line of `file`, else the environment's, else what is typed.

    The environment's is taken out of it.

    Args:
        file: from `--passphrase-file`; None where it was not given.
        confirm: ask twice at the terminal, as a new passphrase may be mistyped.

    Raises:
        ConfigError: the file cannot be read, the passphrase is empty, or there is no terminal.
    """
    no_core_dumps()
    given = from_environment()
    if file is not None:
        return read_passphrase_file(file, "--passphrase-file")
    if given is not None:
        return _required(given, f"the environment variable {ENVIRONMENT}")
    if not sys.stdin.isatty():
        raise ConfigError(
            "no passphrase, and no terminal to ask for it: give --passphrase-file FILE, or set "
            f"the environment variable {ENVIRONMENT}"
        )
    typed: str = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return typed


def read_own_passphrase(file: Path | None, identity: Path) -> str:
    """Read a passphrase, but not from the environment: others on the machine may see that."""
    no_core_dumps()
    if file is not None:
        return read_passphrase_file(file, "--passphrase-file")
    if not sys.stdin.isatty():
        raise ConfigError(f"the passphrase of {identity}: give --passphrase-file FILE")
    typed: str = click.prompt(f"Passphrase of {identity}", hide_input=True, err=True)
    return typed


def read_passphrase_file(file: Path, option: str) -> str:
    """Return the first line of a file that `option` names; ConfigError where there is none."""
    return _required(_first_line(file, option), f"{option} {file}: its first line")


def _first_line(file: Path, option: str) -> str:
    try:
        with file.open(encoding="utf-8", newline="\n") as lines:
            line = lines.readline(MAX_CHARACTERS + 1)
    except OSError as error:
        raise ConfigError(f"{option} {file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option} {file}: not UTF-8 text: save it as UTF-8") from error
    if len(line) > MAX_CHARACTERS:
        raise ConfigError(f"{option} {file}: its first line has more than {MAX_CHARACTERS} letters")
    return line.removesuffix("\n").removesuffix("\r")


def _required(passphrase: str, source: str) -> str:
    if not passphrase:
        raise ConfigError(f"{source} is empty: write the passphrase there")
    return passphrase

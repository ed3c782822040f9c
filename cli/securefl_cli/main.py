"""The `securefl` command. Its help loads neither torch nor tenseal."""

import os
import sys
from importlib import import_module
from typing import Any

import click

from securefl.errors import ConfigError, DataError, KeyFileError, SecureFLError
from securefl.simulation.malloc import keep_freed_memory
from securefl_cli.log import begin, is_plain, say, say_error
from securefl_cli.passphrase import from_environment
from securefl_cli.progress import remembered_interrupts

# Threads that wait by spinning slow each other down tenfold where the machine has other work. Must
# be said before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
HOMES = {
    **{name: name for name in ("demo", "run", "data", "audit", "reproduce", "compare")},
    **{name: name for name in ("profiles", "keys", "privacy", "site", "nvflare", "status")},
    **{name: name for name in ("completion", "report", "schema", "track", "watch")},
    **dict.fromkeys(("export", "card"), "export"),
    **dict.fromkeys(("evaluate", "leave-one-out"), "evaluate"),
    **dict.fromkeys(("authority", "officer", "server"), "serve"),
}
"""Module of each command: a command loads no other's."""


class _Commands(click.Group):
    """Group of commands that turns the library's errors into one line and an exit code."""

    def list_commands(self, _context: click.Context | None) -> list[str]:
        return sorted(HOMES)

    def get_command(self, _context: click.Context | None, name: str) -> click.Command | None:
        if name not in HOMES:
            return None
        commands = vars(import_module(f"securefl_cli.{HOMES[name]}")).values()
        return next(c for c in commands if isinstance(c, click.Command) and c.name == name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        begin()
        try:
            with remembered_interrupts():
                return super().main(*args, **kwargs | {"standalone_mode": False})
        except click.ClickException as error:
            if is_plain():
                error.show()
            else:
                say_error(error.format_message())
            sys.exit(error.exit_code)
        except (ConfigError, DataError, KeyFileError) as error:
            say_error(str(error))
            sys.exit(MISUSED)
        except SecureFLError as error:
            say_error(str(error))
            sys.exit(FAILED)
        except (click.Abort, KeyboardInterrupt):
            say("Interrupted.")
            sys.exit(INTERRUPTED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="securefl")
@click.option(
    "--code",
    multiple=True,
    metavar="MODULE:CLASS",
    help="A solver, normalisation, server optimiser, selector or metric (a function) of your own "
    "that settings in files may name: loading it runs its module. What an option of the command "
    "names needs none of this.",
)
def main(code: tuple[str, ...]) -> None:
    """Federated learning in which all that clients send travels encrypted.

    \b
    Example:
      securefl demo
      securefl keys init my-keys
      securefl run --keys my-keys --out runs/first
      securefl audit runs/first
      securefl --code mypackage:MySolver run job.toml

    Exit codes: 0 done, 1 the run failed, 2 a setting or a file is wrong, 130 interrupted.
    """  # noqa: D301  (click wants the backspace itself)
    from_environment()  # also where the command asks for none: its processes would inherit it
    keep_freed_memory()
    if code:
        from securefl.io.allowed_code import allow_code

        for name in code:
            allow_code(name)


if __name__ == "__main__":
    main()

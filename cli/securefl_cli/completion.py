"""`securefl completion`: commands, options, choices and runs, completed by the shell."""

from collections.abc import Callable, Iterable
from glob import escape
from pathlib import Path
from typing import TypeAlias

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

Complete: TypeAlias = "Callable[[click.Context, click.Parameter, str], list[CompletionItem]]"
SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
DEPTH = 3
"""Largest number of folders between what was typed and a run that is found."""


def any_of(words: Callable[[], Iterable[str]]) -> Complete:
    """Return the completion of an option that is one of these words, or one of the user's own."""

    def complete(
        _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(word) for word in words() if word.startswith(incomplete)]

    return complete


def complete_runs(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the folders of runs that begin so; where there are none, the shell shows folders."""
    folder, slash, begin = incomplete.rpartition("/")
    patterns = (f"{escape(begin)}*{'/*' * depth}/config.json" for depth in range(DEPTH))
    files = (file for pattern in patterns for file in Path(folder + slash).glob(pattern))
    runs = [CompletionItem(file.parent.as_posix()) for file in sorted(files)]
    return runs or [CompletionItem(incomplete, type="dir")]


run_argument = click.argument(
    "run_folder", metavar="RUN", type=click.Path(path_type=Path), shell_complete=complete_runs
)
"""Argument of commands that read one run."""


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print a script by which a shell completes commands, options, choices and runs.

    Bash has to be 4.4 or newer.

    \b
    Example:
      eval "$(securefl completion bash)"    # in ~/.bashrc; with zsh in ~/.zshrc
      securefl completion fish > ~/.config/fish/completions/securefl.fish
    """  # noqa: D301  (click wants the backspace itself)
    from securefl_cli.main import main

    click.echo(SHELLS[shell](main, {}, "securefl", "_SECUREFL_COMPLETE").source())

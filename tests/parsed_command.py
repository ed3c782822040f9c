"""A command of a page, parsed as the command line would, and not run."""

from __future__ import annotations

import click

from securefl_cli.main import main


def parsed(arguments):
    """Return the innermost command's context, as if it were to run; raise for a wrong option."""
    context = click.Context(main)
    name, command, rest = main.resolve_command(context, list(arguments))
    while isinstance(command, click.Group):
        context = command.make_context(name, [*rest], parent=context)
        name, command, rest = command.resolve_command(context, rest)
    return command.make_context(name, [*rest], parent=context)

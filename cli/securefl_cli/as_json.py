"""`--json`: the results of a command as JSON, for programs."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")


def say_json(found: Any) -> None:
    """Print results on one line of ASCII, of which no terminal takes anything for an order.

    A number that is not finite, which JSON has not, is null.
    """
    click.echo(json.dumps(_plain(found)))


def _plain(found: Any) -> Any:
    if is_dataclass(found) and not isinstance(found, type):
        found = asdict(found)
    match found:
        case Mapping():
            return {str(name): _plain(value) for name, value in found.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(each) for each in found]
        case float() if not math.isfinite(found):
            return None
        case Path():
            return str(found)
    return found

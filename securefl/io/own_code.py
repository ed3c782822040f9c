"""Functions of a party's own installation, by the name `module:function`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from securefl.errors import ConfigError


def own_function(name: str, about: str) -> Callable[..., Any]:
    """Import a function.

    Args:
        name: `module:function`.
        about: stands in front of messages. These have no word of the code's own, which may be of
            patients.

    Raises:
        ConfigError: there is no such module or function, or importing it fails.
    """
    module, _, function = name.partition(":")
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{about}: cannot be had (no module {error.name}): install the module here, or put its "
            "folder into PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(
            f"{about}: importing {module} raised a {type(error).__name__}{line}: mend it, or what "
            "it needs here"
        ) from error
    found = getattr(imported, function, None)
    if not callable(found):
        kind = f"a {type(found).__name__}" if hasattr(imported, function) else "missing"
        raise ConfigError(f"{about}: cannot be had ({function} is {kind}): name a function")
    return found  # type: ignore[no-any-return]  # of whatever signature

"""Code of a party's own installation, by the name `module:function`, and its files."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import packages_distributions
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from securefl.errors import ConfigError
from securefl.io.allowed_code import is_allowed, not_allowed


def allowed_function(name: str, key: str) -> Callable[..., Any]:
    """Import the function that settings name under this key.

    Raises:
        ConfigError: nobody has allowed it; or as `own_function`.
    """
    if not is_allowed(name):
        raise ConfigError(not_allowed(key, name))
    return own_function(name, f'{key} = "{name}"')


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


def sources(code: Any, about: str) -> dict[str, Path]:
    """Return the files of a function's or class's module, and of all that it imports, by module.

    But for the standard library, SecureFL, and installed packages other than its own.

    Raises:
        ConfigError: no file has its source.
    """
    module = inspect.getmodule(inspect.unwrap(code))
    own = module.__name__ if module else ""
    found: dict[str, Path] = {}
    known, awaited = set[str](), [own]
    elsewhere = _of_others(own.partition(".")[0])
    while awaited:
        name = awaited.pop()
        if name in known or name.partition(".")[0] in elsewhere:
            continue
        known.add(name)
        if file := _file(name):
            found[name] = file
            with suppress(SyntaxError, ValueError, ImportError):  # of a file that nobody can import
                awaited += _imported(name, file)
    if own not in found or found[own].suffix != ".py":
        raise ConfigError(f"{about}: no file has its source: give a function or class of a file")
    return found


def _of_others(own: str) -> set[str]:
    """Return the names of packages that other installations have: each party its own version."""
    by_package = packages_distributions()
    mine = set(by_package.get(own, ()))
    installed = {name for name, of in by_package.items() if not mine & set(of)}
    return {*sys.stdlib_module_names, *sys.builtin_module_names, *installed, "securefl"} - {own}


def _file(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError, AttributeError):  # a name of a module, and none itself
        return None
    path = Path(spec.origin) if spec and spec.has_location and spec.origin else None
    return path if path and path.is_file() else None


def _imported(module: str, file: Path) -> Iterator[str]:
    """Yield the names of modules that a file may import, anywhere in it, and of their packages."""
    if file.suffix != ".py":
        return
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            base = resolve_name(base, package) if node.level else base
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))

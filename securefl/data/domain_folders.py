"""Folders of pictures that are domains, found without their pictures, and so without torch."""

from collections.abc import Mapping
from pathlib import Path

from securefl.errors import DataError
from securefl.io.text import MAX_FOLDER_BYTES, can_name_a_folder
from securefl.settings.data import DataTable


def folder_families(data: DataTable) -> Mapping[str, str]:
    """Return each domain as its own family; raises as `picture_domains`."""
    return {name: name for name in picture_domains(data.folder)}


def picture_domains(root: str | Path) -> list[str]:
    """Return the names of root's folders, in alphabetical order.

    Raises:
        DataError: there is none, or one whose name cannot name a client and its files.
    """
    names = [folder.name for folder in folders_in(Path(root))]
    for name in names:
        if not can_name_a_folder(name):
            raise DataError(
                f"{root}: the folder {name!r} names a client, and must be printable "
                f"UTF-8 of at most {MAX_FOLDER_BYTES} bytes: rename the folder"
            )
    if not names:
        raise DataError(f"{root}: no folders; put pictures under {Path(root) / 'domain' / 'class'}")
    return names


def folders_in(root: Path) -> list[Path]:
    """Return the folders in a folder, in alphabetical order; raises as `inside`."""
    return sorted(path for path in inside(root) if path.is_dir())


def inside(folder: Path) -> list[Path]:
    """Return all that is in a folder and not hidden.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}; put a folder of pictures there") from error

"""Folders of pictures, one client per domain: a camera, a shop, a hospital.

No checksum is checked: a folder has none.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from securefl.data.domain_folders import folders_in, inside, picture_domains
from securefl.data.files import Domains, check_sizes, locate, table_lines
from securefl.data.pictures import SUFFIXES, check_side, read_pictures
from securefl.errors import ConfigError, DataError
from securefl.settings.data import DataTable

CAMELYON17_SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType({"camelyon17": (455_954,)})
"""Patches of all hospitals."""

_MAX_CSV_BYTES = 1 << 28  # Camelyon17's metadata.csv has 456 000 lines: a tenth of this
_NUMBER = re.compile(r"[0-9]{1,9}")
_PATCH_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center")
_CAMELYON = "metadata.csv and patches/ of Camelyon17-WILDS"


def read_folders(data: DataTable, _seed: int) -> Domains:
    """Return the pictures by domain; raises as `load_domain_folders`."""
    return load_domain_folders(data.folder, data.side)


def read_camelyon17(data: DataTable, _seed: int) -> Domains:
    """Return the patches by hospital.

    Raises:
        ConfigError: as `load_camelyon17`.
        DataError: as `load_camelyon17`, or metadata.csv has another number of patches.
    """
    return load_camelyon17(data.folder, data.side, data.n_per_center, CAMELYON17_SIZES)


def camelyon17_families(data: DataTable) -> Mapping[str, str]:
    """Return each hospital as its own family; raises as `camelyon_centers`."""
    return {name: name for name in camelyon_centers(data.folder)}


def load_domain_folders(root: str | Path, side: int) -> Domains:
    """Load the pictures of root/domain/class/*.jpg by domain, as Office-Caltech10 comes.

    Labels count the class folders of all domains in alphabetical order, so that a label means the
    same everywhere; a domain may lack a class. Hidden folders and files other than JPEG, PNG and
    BMP are passed over.

    Args:
        root: holds one folder per domain.
        side: the pictures' new height and width in pixels.

    Raises:
        ConfigError: `side` is out of range.
        DataError: no pictures, or a damaged one.
    """
    check_side(side)
    classes_of = {
        Path(root) / name: folders_in(Path(root) / name) for name in picture_domains(root)
    }
    names = sorted({folder.name for folders in classes_of.values() for folder in folders})
    labels = {name: label for label, name in enumerate(names)}
    domains = {}
    for domain, folders in classes_of.items():
        found = [(path, labels[folder.name]) for folder in folders for path in _pictures(folder)]
        if not found:
            raise DataError(f"{domain}: no pictures; put them under {domain / 'class'}")
        domains[domain.name] = (
            read_pictures([path for path, _ in found], side),
            torch.tensor([label for _, label in found]),
        )
    return domains


def load_class_folders(
    root: str | Path, side: int
) -> tuple[Float[Tensor, "n 3 side side"], Int64[Tensor, " n"], list[str]]:
    """Load the pictures of root/class/*.jpg, class by class, their labels, and the classes' names.

    Labels count the folders in alphabetical order, empty ones too.

    Args:
        root: holds one folder per class: a single domain.
        side: the pictures' new height and width in pixels.

    Raises:
        ConfigError: `side` is out of range.
        DataError: no pictures, or a damaged one.
    """
    check_side(side)
    folders = folders_in(Path(root))
    found = [(path, label) for label, folder in enumerate(folders) for path in _pictures(folder)]
    if not found:
        raise DataError(f"{root}: no pictures; put them under {Path(root) / 'class'}")
    pictures = read_pictures([path for path, _ in found], side)
    return pictures, torch.tensor([label for _, label in found]), [f.name for f in folders]


def passed_over(root: str | Path) -> dict[str, int]:
    """Return the endings of files in root/class that are no pictures for us, with their numbers.

    Raises:
        DataError: a folder cannot be read.
    """
    files = (path for folder in folders_in(Path(root)) for path in inside(folder) if path.is_file())
    return dict(Counter(p.suffix.lower() for p in files if p.suffix.lower() not in SUFFIXES))


def load_camelyon17(
    root: str | Path,
    side: int = 96,
    n_per_center: int | None = None,
    sizes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Domains:
    """Load patches of lymph nodes by hospital: "center-0" to "center-4", label 1 for a tumour.

    Args:
        root: holds metadata.csv and patches/, or camelyon17_v1.0/ with both.
        side: the patches' new height and width in pixels; as files they have 96.
        n_per_center: so many patches of each hospital, evenly spaced over its lines in
            metadata.csv. All 456 000 would take 50 GB at 96 pixels.
        sizes: number of patches in metadata.csv, by the data set's name; not compared without one.

    Raises:
        ConfigError: `side` or `n_per_center` is out of range.
        DataError: metadata.csv or a patch is missing or damaged, or there are other patches than
            `sizes` says; the message says which.
    """
    check_side(side)
    if n_per_center is not None and n_per_center < 1:
        raise ConfigError(f"n_per_center = {n_per_center}: must be at least 1, or None for all")
    table = _table(root)
    patches = _patches(table)
    check_sizes(root, {"camelyon17": (len(patches),)}, sizes)
    lines_of: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for center, patch, label in patches:
        lines_of[center].append((patch, label))
    domains = {}
    for center, lines in sorted(lines_of.items()):
        n_kept = min(len(lines), n_per_center or len(lines))
        kept = [lines[i * len(lines) // n_kept] for i in range(n_kept)]
        paths = [locate(table.parent, (patch,), _CAMELYON) for patch, _ in kept]
        labels = torch.tensor([label for _, label in kept])
        domains[f"center-{center}"] = (read_pictures(paths, side), labels)
    return domains


def camelyon_centers(root: str | Path) -> list[str]:
    """Return the hospitals that metadata.csv speaks of: "center-0" to "center-4".

    Raises:
        DataError: metadata.csv is missing or damaged.
    """
    return [f"center-{center}" for center in sorted({c for c, _, _ in _patches(_table(root))})]


def _table(root: str | Path) -> Path:
    return locate(Path(root), ("metadata.csv", "camelyon17_v1.0/metadata.csv"), _CAMELYON)


def _patches(table: Path) -> list[tuple[int, str, int]]:
    """Return every line's (center, file of the patch, label), as WILDS names them."""
    patches = [_patch(line, where) for where, line in table_lines(table, _MAX_CSV_BYTES)]
    if not patches:
        raise DataError(f"{table}: has no lines; put {_CAMELYON} there")
    return patches


def _patch(line: Mapping[str, str | None], where: str) -> tuple[int, str, int]:
    patient, node, x, y, tumor, center = (_number(line, column, where) for column in _PATCH_COLUMNS)
    if tumor not in {"0", "1"}:
        raise DataError(f"{where}: tumor = {tumor}: must be 0 or 1")
    patch = f"patient_{patient}_node_{node}_x_{x}_y_{y}.png"
    return int(center), f"patches/patient_{patient}_node_{node}/patch_{patch}", int(tumor)


def _number(line: Mapping[str, str | None], column: str, where: str) -> str:
    # Digits only: the texts become part of a path.
    text = line.get(column) or ""
    if not _NUMBER.fullmatch(text):
        raise DataError(f'{where}: {column} = "{text}": must be a whole number')
    return text


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in inside(folder) if path.suffix.lower() in SUFFIXES)

"""Skin lesions of six centres: ISIC 2019 as FLamby's Fed-ISIC2019 prepares it.

Ogier du Terrail et al., FLamby, NeurIPS 2022. Choice of photographs, centres and division are those
of its table `train_test_split`. No checksum is checked: a folder has none.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from securefl.data.files import Domains, check_sizes, locate, table_lines
from securefl.data.pictures import check_side, read_centres
from securefl.data.split import Labelled, Split
from securefl.errors import DataError
from securefl.settings.data import DataTable

N_CENTERS = 6
N_CLASSES = 8
SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "center-0": (9930, 2483),
        "center-1": (3163, 791),
        "center-2": (2691, 672),
        "center-3": (1807, 452),
        "center-4": (655, 164),
        "center-5": (351, 88),
    }
)
"""Photographs of each centre that train and that test."""
_FOLDS = ("train", "test")
_MAX_CSV_BYTES = 1 << 25  # FLamby's has 1.6 MB
_TABLES = ("train_test_split", "train_test_split.csv")
_PICTURES = "ISIC_2019_Training_Input_preprocessed"
_SOURCE = f"train_test_split and {_PICTURES}/ of FLamby's Fed-ISIC2019"
_IMAGE = re.compile(r"[A-Za-z0-9_]{1,64}")


@dataclass(frozen=True, slots=True)
class _Photograph:
    """Line of the table."""

    image: str
    target: int
    center: int
    fold: str


def read_isic2019(data: DataTable, _seed: int) -> Domains:
    """Return the photographs by centre.

    Raises:
        ConfigError: as `load_isic2019`.
        DataError: as `load_isic2019`, or a centre has another number of photographs.
    """
    domains = load_isic2019(data.folder, data.side)
    check_sizes(data.folder, {name: split.sizes for name, split in domains.items()}, SIZES)
    return domains


def isic2019_families(data: DataTable) -> Mapping[str, str]:
    """Return each centre of the table as its own family.

    Raises:
        DataError: the table is missing or damaged.
    """
    return {name: name for name in _by_center(_table(data.folder))}


def load_isic2019(root: str | Path, side: int) -> Mapping[str, Split]:
    """Load photographs by centre, "center-0" to "center-5", each divided as the table says.

    The largest central square of each is resized to side × side. FLamby cuts 200 × 200 pixels out
    of 224 × about 300, from the centre to test, at random to train.

    Args:
        root: holds train_test_split, or train_test_split.csv, and the folder of the photographs
            ISIC_2019_Training_Input_preprocessed.
        side: the photographs' new height and width in pixels. All 23 247 take 1.1 GB at 64.

    Raises:
        ConfigError: `side` is out of range.
        DataError: the table or a photograph is missing or damaged, or a centre has none to train
            or to test; the message says which.
    """
    check_side(side)
    table = _table(root)
    domains = {}
    for name, found in _by_center(table).items():
        folds = [[of for of in found if of.fold == fold] for fold in _FOLDS]
        if not all(folds):
            missing = _FOLDS[not folds[1]]
            raise DataError(f'{table}: {name} has no line with fold = "{missing}"; get it again')
        train, test = (_read(of, table.parent / _PICTURES, side) for of in folds)
        domains[name] = Split(*train, *test)
    return domains


def _table(root: str | Path) -> Path:
    return locate(Path(root), _TABLES, _SOURCE)


def _by_center(table: Path) -> dict[str, list[_Photograph]]:
    of: dict[int, list[_Photograph]] = defaultdict(list)
    for where, line in table_lines(table, _MAX_CSV_BYTES):
        photograph = _photograph(line, where)
        of[photograph.center].append(photograph)
    if not of:
        raise DataError(f"{table}: has no lines; put {_SOURCE} there")
    return {f"center-{center}": of[center] for center in sorted(of)}


def _photograph(line: Mapping[str, str | None], where: str) -> _Photograph:
    image, fold = line.get("image") or "", line.get("fold") or ""
    if not _IMAGE.fullmatch(image):  # it becomes part of a path
        raise DataError(f'{where}: image = "{image:.80}": must be letters, digits and _')
    if fold not in _FOLDS:
        raise DataError(f'{where}: fold = "{fold:.80}": must be {" or ".join(_FOLDS)}')
    target = _below(N_CLASSES, line, "target", where)
    return _Photograph(image, target, _below(N_CENTERS, line, "center", where), fold)


def _below(n: int, line: Mapping[str, str | None], column: str, where: str) -> int:
    text = line.get(column) or ""
    if text not in set(map(str, range(n))):
        raise DataError(f'{where}: {column} = "{text:.80}": must be one of 0..{n - 1}')
    return int(text)


def _read(photographs: Sequence[_Photograph], folder: Path, side: int) -> Labelled:
    paths = [locate(folder, (f"{of.image}.jpg",), _SOURCE) for of in photographs]
    return read_centres(paths, side), torch.tensor([of.target for of in photographs])

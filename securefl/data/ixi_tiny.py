"""IXI Tiny: T1 images of heads in three hospitals of London, and masks of the brain.

Choice of people and their division are those of FLamby's Fed-IXI (Ogier du Terrail et al., NeurIPS
2022), in its table metadata_tiny.csv. Files as at https://data.mendeley.com/datasets/7kd5wj7v7p.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Bool, Float32
from torch import Tensor
from torch.nn import functional

from securefl.data.catalogue import DATA_SETS
from securefl.data.files import Domains, check_sizes, locate, table_lines
from securefl.data.nifti import read_nifti
from securefl.data.split import Labelled, Split
from securefl.errors import DataError
from securefl.settings.data import DataTable

HOSPITALS = tuple(DATA_SETS["ixi-tiny"].domains)
"""Guy's Hospital, Hammersmith Hospital and the Institute of Psychiatry."""
SHAPE = (48, 60, 48)
"""Voxels of a volume, as FLamby resizes it."""
SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"Guys": (249, 62), "HH": (145, 36), "IOP": (59, 15)}
)
"""People of each hospital that train and that test."""

_TABLE = "metadata_tiny.csv"
_FOLDERS = ("IXI_sample", "7kd5wj7v7p-3/IXI_sample", "7kd5wj7v7p-1/IXI_sample")
_SOURCE = f"{_TABLE} of FLamby's Fed-IXI, and IXI_sample/ of IXI Tiny"
_MAX_CSV_BYTES = 1 << 20  # FLamby's has 7 kB
_FOLDS = ("train", "test")
_NUMBER = re.compile(r"[0-9]{1,3}")
_PERSON = re.compile(r"IXI([0-9]{3})-([A-Za-z]+)-[0-9]+")


@dataclass(frozen=True, slots=True)
class _Person:
    """A person's image and mask."""

    hospital: str
    fold: str
    image: Path
    mask: Path


def read_ixi_tiny(data: DataTable, _seed: int) -> Domains:
    """Return the volumes by hospital.

    Raises:
        ConfigError: as `load_ixi_tiny`.
        DataError: as `load_ixi_tiny`, or a hospital has another number of people.
    """
    domains = load_ixi_tiny(data.folder)
    check_sizes(data.folder, {name: split.sizes for name, split in domains.items()}, SIZES)
    return domains


def load_ixi_tiny(root: str | Path) -> Mapping[str, Split]:
    """Load volumes of (1, 48, 60, 48) by hospital, and masks, 1 where the brain is.

    As in FLamby, volumes are resized by means over areas, and each has mean 0 and deviation 1. A
    mask is resized likewise, and a voxel is brain from a half on; in FLamby from 1 on.

    Args:
        root: holds metadata_tiny.csv, and IXI_sample or a folder 7kd5wj7v7p-3 around it, in which
            IXI002-Guys-0828/T1/*.nii.gz and IXI002-Guys-0828/label/*.nii.gz are one person's.

    Raises:
        ConfigError: nibabel is not installed.
        DataError: a file is missing or damaged, table and folders speak of other people, or a
            hospital has nobody to train or to test; the message says which.
    """
    table = locate(Path(root), (_TABLE,), _SOURCE)
    people = _people(table)
    domains = {}
    for hospital in HOSPITALS:
        of = [
            [person for person in people if (person.hospital, person.fold) == (hospital, fold)]
            for fold in _FOLDS
        ]
        if not all(of):
            fold = _FOLDS[bool(of[0])]
            raise DataError(f'{table}: nobody of {hospital} has Split = "{fold}"; get it again')
        train, test = map(_read, of)
        domains[hospital] = Split(*train, *test)
    return domains


def _people(table: Path) -> list[_Person]:
    """Return the people of the table, each of whom has a folder, and nobody else has."""
    folds = dict(_fold(line, where) for where, line in table_lines(table, _MAX_CSV_BYTES))
    folders = _person_folders(_samples(table.parent))
    for number in sorted(folds.keys() ^ folders.keys()):
        if number in folders:
            raise DataError(f"{table}: has no line of {folders[number].name}; get the table again")
        raise DataError(f"{table}: IXI{number} has no folder; put {_SOURCE} there")
    return [_person(folder, folds[number]) for number, folder in sorted(folders.items())]


def _fold(line: Mapping[str, str | None], where: str) -> tuple[str, str]:
    number, fold = line.get("Patient ID") or "", line.get("Split") or ""
    if not _NUMBER.fullmatch(number):
        raise DataError(f'{where}: Patient ID = "{number:.80}": must be a number of three digits')
    if fold not in _FOLDS:
        raise DataError(f'{where}: Split = "{fold:.80}": must be {" or ".join(_FOLDS)}')
    return number.zfill(3), fold


def _samples(root: Path) -> Path:
    found = [root / name for name in _FOLDERS if (root / name).is_dir()]
    if not found:
        raise DataError(f"{root / _FOLDERS[0]}: no such folder; put {_SOURCE} under {root}")
    return found[0]


def _person_folders(samples: Path) -> dict[str, Path]:
    """Return each person's folder by number; other files and folders are passed over."""
    folders: dict[str, Path] = {}
    for path in sorted(_inside(samples)):
        found = _PERSON.fullmatch(path.name)
        if not found:
            continue
        number, hospital = found.groups()
        if hospital not in HOSPITALS:
            raise DataError(f"{path}: its hospital must be one of {', '.join(HOSPITALS)}")
        if number in folders:
            raise DataError(f"{path}: is another folder of one person; get the files again")
        folders[number] = path
    return folders


def _person(folder: Path, fold: str) -> _Person:
    return _Person(folder.name.split("-")[1], fold, _only(folder / "T1"), _only(folder / "label"))


def _only(folder: Path) -> Path:
    files = [path for path in _inside(folder) if path.name.endswith((".nii", ".nii.gz"))]
    if len(files) != 1:
        raise DataError(f"{folder}: {len(files)} NIfTI files; put {_SOURCE} there, one in each")
    return files[0]


def _inside(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}; put {_SOURCE} there") from error


def _read(people: Sequence[_Person]) -> Labelled:
    images = torch.empty(len(people), 1, *SHAPE)
    masks = torch.empty(len(people), *SHAPE, dtype=torch.int64)
    for person, image, mask in zip(people, images, masks, strict=True):
        voxels, inside = read_nifti(person.image), read_nifti(person.mask)
        if voxels.shape != inside.shape:
            raise DataError(
                f"{person.mask}: {inside.shape} voxels, and its image has {voxels.shape}; get the "
                "files again"
            )
        image[0] = _standardised(_resized(voxels), person.image)
        mask[:] = _brain(inside, person.mask)
    return images, masks


def _standardised(voxels: Float32[Tensor, "x y z"], path: Path) -> Float32[Tensor, "x y z"]:
    centred = voxels - voxels.mean()
    deviation = centred.square().mean().sqrt()
    if not (torch.isfinite(deviation) and deviation > 0):
        raise DataError(f"{path}: its voxels are all alike, or too large; get the file again")
    return centred / deviation


def _brain(mask: Float32[np.ndarray, "x y z"], path: Path) -> Bool[Tensor, "48 60 48"]:
    if not np.isin(mask, (0, 1)).all():
        raise DataError(f"{path}: has values other than 0 and 1; get the file again")
    return _resized(mask) >= 0.5


def _resized(voxels: Float32[np.ndarray, "x y z"]) -> Float32[Tensor, "48 60 48"]:
    return functional.adaptive_avg_pool3d(torch.from_numpy(voxels)[None], SHAPE)[0]

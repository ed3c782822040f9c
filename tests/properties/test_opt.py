"""Pregnancies by clinic, of a table that a user must bring."""

from __future__ import annotations

import pytest
import torch
from made_women import made_women, write_women

import securefl
from securefl.data import opt
from securefl.data.opt import CLINICS, FORM, OUTCOME, load_opt
from securefl.errors import DataError
from securefl.settings.load import load_config

pytestmark = pytest.mark.shapes


@pytest.fixture
def women():
    return made_women()


@pytest.fixture
def folder(tmp_path, women, monkeypatch):
    monkeypatch.setattr(opt, "SHA256", "")
    write_women(tmp_path, women)
    return tmp_path


def by_hand(row):
    numbers, words, absent = [], [], []
    for column in FORM.columns[2:]:
        field = row[column].strip()
        empty = field in ("", "NA")
        if column in FORM.levels:
            words += [float(field == word) for word in FORM.levels[column]]
        else:
            numbers.append(0.0 if empty else float(field) / FORM.units.get(column, 1))
        if column in FORM.missing:
            absent.append(float(empty))
    return [*numbers, *words, *absent]


def test_other_women_of_the_right_number_are_refused(folder, monkeypatch):
    """By what is read of them, to millionths."""
    monkeypatch.setattr(opt, "SHA256", "ab" * 32)
    with pytest.raises(DataError, match=r"opt\.csv: its content is not this data set's"):
        load_opt(folder)


def test_women_are_read_by_clinic_but_for_those_lost(folder, women):
    """In the file's order; what is missing is zero, and marked."""
    found = load_opt(folder)
    assert list(found) == list(CLINICS)
    for (code, _), (x, y) in zip(CLINICS.values(), found.values(), strict=True):
        own = [w for w in women if w["Clinic"] == code and w[OUTCOME].strip() in ("No", "Yes")]
        torch.testing.assert_close(x, torch.tensor([by_hand(w) for w in own]).double())
        assert y.tolist() == [int(w[OUTCOME].strip() == "Yes") for w in own]
    fast = ("run.rounds=1", "run.metric=auc", "exchange.encrypt=none", "algorithm.name=fedavg")
    data = ("data.dataset=opt", f"data.root='{folder}'", "algorithm.local_steps=1")
    result = securefl.run(load_config(settings=[*fast, *data]))
    assert result.model(torch.zeros(2, 27)).shape == (2, 2)
    assert len(result.metrics[-1].clients) == 4


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("Live.PTB", "PTB", r"has no column Live\.PTB"),
        (",MN,", ",XX,", "'XX' is none of NY, MN, KY, MS"),
        (",MN,", ",NY,", "174 women of new-york, the data set has 173"),
    ],
)
def test_another_table_is_refused(folder, old, new, why):
    """By columns, words and the clinics' sizes."""
    path = folder / "opt.csv"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=why):
        load_opt(folder)

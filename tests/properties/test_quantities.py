"""What a recipe measures of a run, on folders written by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
from hand_made import PARTICIPANTS, QUALITIES, metrics, write_run
from pydantic import ValidationError

from securefl.data.quality import Quality
from securefl.errors import ConfigError, RunFolderError
from securefl.recipes.quantities import QUANTITIES, Measure, QualityName, Quantity
from securefl.recipes.recipe import load_recipe
from securefl.recipes.reproduce import measured
from securefl.runs.round_metrics import ClientScore

SELECTED = {"quantity": "selected-share", "qualities": ["irrelevant", "blurred"]}


@pytest.fixture
def run(tmp_path):
    """Four rounds of half a minute and 2 Wh each, best in the third; selections of three."""
    rows = metrics([0.5, 0.7, 0.9, 0.8], 30.0, 2.0)
    write_run(
        tmp_path / "run",
        "selection.name=fedprof",
        "devices.preset=emnist",
        rows=rows,
        participants=PARTICIPANTS,
        qualities=QUALITIES,
    )
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        ({"quantity": "mean-accuracy"}, 72.5),
        ({"quantity": "mean-accuracy", "last": 2}, 85.0),
        ({"quantity": "mean-accuracy", "last": 1}, 80.0),
        ({"quantity": "best-accuracy"}, 90.0),
        ({"quantity": "rounds-to-target", "target": 70.0}, 2),
        ({"quantity": "minutes-to-target", "target": 70.0}, 1.0),
        ({"quantity": "minutes-to-target", "target": 50.0}, 0.5),
        ({"quantity": "minutes-to-target", "target": 95.0}, None),
        ({"quantity": "wh-to-target", "target": 85.0}, 6.0),
        ({"quantity": "wh-to-target", "target": 95.0}, None),
        (SELECTED, 100 / 6),
        ({"quantity": "selected-share", "qualities": ["normal"]}, 500 / 6),
        ({"quantity": "selected-share", "qualities": ["noisy"]}, 0.0),
    ],
)
def test_a_quantity_is_what_the_folder_says(run, measure, value):
    """The mean is over ten rounds, or over all where there are fewer; a target may be missed."""
    found = measured(run, Measure.model_validate(measure))
    assert found == (None if value is None else pytest.approx(value))


def test_a_mean_is_over_the_last_ten_rounds(tmp_path):
    """What came before does not count."""
    write_run(tmp_path / "run", rows=metrics([0.0] * 5 + [0.6] * 10))
    assert measured(tmp_path / "run", Measure(quantity="mean-accuracy")) == pytest.approx(60)


def test_one_clients_accuracy_is_that_of_the_last_round(tmp_path):
    """By its name; another one's, or one of clients that share a test set, is none."""
    first, last = metrics([0.5, 0.6])
    own = {"client-1": ClientScore(0.75, 1.0), "client-2": ClientScore(0.45, 1.0)}
    write_run(tmp_path / "own", rows=[first, replace(last, clients=own)])
    write_run(tmp_path / "shared", rows=[first, last])
    measure = Measure(quantity="client-accuracy", client="client-2")
    assert measured(tmp_path / "own", measure) == pytest.approx(45)
    with pytest.raises(RunFolderError, match=r"those that are: client-1, client-2"):
        measured(tmp_path / "own", Measure(quantity="client-accuracy", client="client-3"))
    with pytest.raises(RunFolderError, match=r"those that are: none, as all share one test set"):
        measured(tmp_path / "shared", measure)


def test_a_new_quantity_is_one_row(run, monkeypatch):
    """Recipes take its name, refuse what it is not told, and read it from the folder."""
    row = Quantity("rounds", 0, lambda run, _: len(run.metrics), takes="last")
    monkeypatch.setitem(QUANTITIES, "rounds", row)
    measure = Measure(quantity="rounds", last=3)
    assert measured(run, measure) == 4
    assert measure.row.decimals == 0
    with pytest.raises(ValidationError, match=r'"rounds" with measure\.target = 1\.0'):
        Measure(quantity="rounds", target=1.0)


def test_every_quantity_has_its_decimals_and_asks_for_what_a_recipe_can_tell():
    """No table stops at a number that it cannot write."""
    for name, row in QUANTITIES.items():
        assert (row.name, row.decimals >= 0) == (name, True)
        assert {row.needs, row.takes} <= {"", *Measure.model_fields}


def test_a_recipe_knows_every_quality():
    """A slip in a quality's name would measure nothing, in silence."""
    assert set(get_args(QualityName)) == {quality.value for quality in Quality}
    with pytest.raises(ValidationError, match="qualities"):
        Measure(quantity="selected-share", qualities=("blury",))


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ({"quantity": "minutes-to-target"}, "needs a target in %"),
        ({"quantity": "wh-to-target"}, "needs a target in %"),
        ({"quantity": "best-accuracy", "target": 90.0}, "no other takes one"),
        ({"quantity": "best-accuracy", "last": 5}, 'it goes with "mean-accuracy" alone'),
        ({"quantity": "selected-share"}, 'needs some, such as ["blurred"]'),
        ({"quantity": "accuracy", "qualities": ["blurred"]}, "no other takes them"),
        ({"quantity": "client-accuracy"}, 'needs the name of one, such as "client-1"'),
        ({"quantity": "accuracy", "client": "client-1"}, "no other takes one"),
    ],
)
def test_what_a_quantity_does_not_take_is_refused(measure, message):
    """With the quantity that does."""
    with pytest.raises(ValidationError) as caught:
        Measure.model_validate(measure)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ('{ quantity = "wh-to-target", target = 90.0 }', "set devices.preset"),
        ('{ quantity = "minutes-to-target", target = 90.0 }', "set devices.preset"),
        (
            '{ quantity = "selected-share", qualities = ["blurred"] }',
            "all clients are in every round; set selection.name",
        ),
        (
            '{ quantity = "sealed-megabytes-to-target", target = 90.0 }',
            'nothing is encrypted; set exchange.encrypt = "model"',
        ),
        (
            '{ quantity = "client-accuracy", client = "client-1" }',
            "all clients share one model and one test set",
        ),
    ],
)
def test_a_recipe_cannot_measure_what_its_runs_do_not_leave(tmp_path, measure, message):
    """Better before a night of training than after it."""
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'title = "a"\npaper = "b"\nseeds = 1\nmeasure = {measure}\nexchange.encrypt = "none"\n'
        '[[columns]]\nname = "c"\n[[rows]]\nname = "r"\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    assert message in str(caught.value)
    assert "row 'r', column 'c'" in str(caught.value)


def test_a_client_of_unknown_quality_is_in_no_share(run):
    """A share of the others alone would be another number."""
    (run / "qualities.json").write_text(json.dumps({"client-2": "normal"}))
    with pytest.raises(RunFolderError, match=r"says nothing of client-10, client-3"):
        measured(run, Measure.model_validate(SELECTED))
    (run / "selections.jsonl").write_text("")
    with pytest.raises(RunFolderError, match="no selections"):
        measured(run, Measure.model_validate(SELECTED))


def test_a_round_without_its_cost_is_a_damaged_folder(tmp_path):
    """The file is named."""
    write_run(tmp_path / "run", rows=[*metrics([0.5], 1.0, 1.0), *metrics([0.9])])
    for quantity in ("minutes-to-target", "wh-to-target"):
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl: damaged"):
            measured(tmp_path / "run", Measure(quantity=quantity, target=50.0))

"""Digests by which parties know that their settings are alike, and where they are not."""

from __future__ import annotations

import pytest

import securefl
from securefl.settings.digests import differing, digests_by_setting, settings_digest, study_digest
from securefl.task import configured_task

TABLE = """
[samples]
columns = ["age", "pressure"]
target = "ill"
classes = ["no", "yes"]
most = 100
units = {units}
[data]
names = ["north", "south", "east", "west"]
"""


def read(tmp_path, units="{ age = 10.0, pressure = 100.0 }", *settings):
    (path := tmp_path / "job.toml").write_text(TABLE.format(units=units))
    return securefl.load_config(path, settings)


def told(one, other):
    return differing(digests_by_setting(one), digests_by_setting(other))


def test_the_order_of_keys_and_what_is_ones_own_make_no_difference(tmp_path):
    one = read(tmp_path)
    other = read(tmp_path, "{ pressure = 100.0, age = 10.0 }", "run.name=mine")
    assert settings_digest(one) == settings_digest(other)
    assert study_digest(one) == study_digest(other)
    assert told(one, other) == "what nobody knows"


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (["train.lr=0.25"], "train.lr"),
        (["train.lr=0.25", "run.rounds=3"], "run.rounds, train.lr"),
        (["server.name=fedadam"], "server.beta1, server.beta2, server.lr, server.name, server.tau"),
        (['samples.classes=["yes","no"]'], "samples.classes"),
        (["samples.units={age=11.0,pressure=100.0}"], "samples.units"),
    ],
)
def test_what_differs_is_named_by_table_and_key(tmp_path, settings, where):
    one, other = read(tmp_path), read(tmp_path, "{ age = 10.0, pressure = 100.0 }", *settings)
    assert settings_digest(one) != settings_digest(other)
    assert told(one, other) == told(other, one) == where


def test_a_table_that_one_has_alone_is_named_by_itself(tmp_path):
    assert "samples," in told(read(tmp_path), securefl.load_config(None, [])) + ","


def test_clients_of_low_quality_are_dealt_alike_in_either_order():
    """As parties with one digest deal by themselves."""
    shares = "irrelevant=0.25", "blurred=0.5"
    one, other = (
        securefl.load_config(None, [f"data.quality={{{','.join(order)}}}", "data.clients=8"])
        for order in (shares, shares[::-1])
    )
    assert settings_digest(one) == settings_digest(other)
    assert list(one.data.quality) != list(other.data.quality)
    assert configured_task(one).qualities == configured_task(other).qualities

"""The schema of the settings accepts what settings are, with each choice, and no wrong key."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from securefl.settings.axes import AXES
from securefl.settings.load import load_config
from securefl.settings.schema import settings_schema
from securefl_cli.schema import schema

EXAMPLES = Path(__file__).parents[2] / "examples"
SCHEMA = json.loads(json.dumps(settings_schema()))
VALIDATOR = Draft202012Validator(SCHEMA)


def test_it_is_a_schema_of_its_dialect_and_the_command_writes_it(tmp_path):
    Draft202012Validator.check_schema(SCHEMA)
    found = CliRunner().invoke(schema, [])
    assert json.loads(found.output) == SCHEMA
    CliRunner().invoke(schema, ["--out", str(tmp_path / "s.json")])
    assert json.loads((tmp_path / "s.json").read_text()) == SCHEMA


@pytest.mark.parametrize("path", [*EXAMPLES.glob("*.toml"), *EXAMPLES.glob("fedprof/*.toml")])
def test_it_accepts_the_examples(path):
    VALIDATOR.validate(tomllib.loads(path.read_text()))


def test_it_accepts_each_choice_with_all_of_its_keys():
    """As `securefl run` writes them into a run's folder."""
    tables = load_config().tables()
    VALIDATOR.validate(tables)
    for axis in AXES:
        for kind in axis.own().values():
            keys = kind.model_construct().model_dump(mode="json")
            VALIDATOR.validate({axis.table: {k: v for k, v in keys.items() if v is not None}})


WRONG = {
    "no such table": {"trian": {}},
    "no such key": {"train": {"learning_rate": 0.1}},
    "out of range": {"run": {"rounds": 0}},
    "another type": {"run": {"rounds": "10"}},
    "no such choice": {"algorithm": {"name": "fedtann"}},
    "no key of a choice": {"algorithm": {"name": "fedtan", "fast": True}},
    "another choice's key": {"solver": {"name": "sgd", "clip": 0.5}},
    "no such data set": {"data": {"dataset": "digit"}},
    "no such metric": {"run": {"metric": "acuracy"}},
    "no name where one is needed": {"server": {"tau": 0.5}},
}


@pytest.mark.parametrize("tables", WRONG.values(), ids=WRONG)
def test_it_refuses_what_a_run_refuses(tables):
    assert not VALIDATOR.is_valid(tables)


def test_it_accepts_what_is_written_in_other_ways():
    for tables in (
        {"exchange": {"encrypt": "none"}},
        {"exchange": {"encrypt": ["statistics", "profiles"]}},
        {"solver": {"name": "mypackage:MySolver", "any": 1}},
        {"solver": {"name": "fedprox", "mu": 0.5, "clip": 0.16}},
    ):
        VALIDATOR.validate(tables)


def test_each_key_says_what_it_is():
    """But for those whose name does: rates, rounds, types, names of choices."""
    plain = {"rounds", "lr", "lr_drop_factor", "momentum", "weight_decay", "dtype", "weights"}
    plain |= {"name", "level", "clock_ghz_deviation", "bandwidth_mhz_deviation", "bits_per_sample"}
    tables = [table.get("properties", {}) for table in SCHEMA["$defs"].values()]
    keys = [(key, of) for table in tables for key, of in table.items() if of and "const" not in of]
    silent = {key for key, of in keys if "description" not in of}
    assert silent <= plain

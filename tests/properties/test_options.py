"""Options of `securefl run` are settings, written shorter."""

from __future__ import annotations

import tomllib
from typing import get_args

import pytest
from click.testing import CliRunner
from click.types import FloatParamType, IntParamType

from securefl.errors import ConfigError
from securefl.settings.axes import AXES
from securefl.settings.load import load_config
from securefl.settings.tables import Config, Encrypt
from securefl_cli.main import main
from securefl_cli.options import KEYS, settings_of
from securefl_cli.run import run

NUMBERS = (IntParamType, FloatParamType)


CHOICES = {axis.table: axis.own() for axis in AXES}


def config_of(**options):
    return load_config(None, settings_of(options))


def test_a_selector_is_named_with_its_other_keys():
    """NAME:KEY=VALUE,... is selection.name and the other keys; numbers and names arrive as such."""
    table = config_of(select="fedprof:alpha=theorem1,aggregation=full,fraction=0.1").selection
    assert (table.name, table.alpha) == ("fedprof", "theorem1")
    assert (table.aggregation, table.fraction) == ("full", 0.1)
    assert config_of(select="fedprof:alpha=25").selection.alpha == 25
    assert config_of(select="afl").selection.name == "afl"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fedprof:alhpa=3", "selection.alhpa: no such key; did you mean selection.alpha?"),
        ("fedporf", "selection.name = 'fedporf'"),
        ("random:alpha=3", 'selection.alpha = 3 is read with selection.name = "fedprof"'),
        ("random:fraction=many", "selection.fraction = 'many'"),
        ("fedprof:alpha", "--select fedprof:alpha: write NAME:KEY=VALUE"),
        ("fedprof:", "--select fedprof:: write NAME:KEY=VALUE"),
        ("fedprof:=3", "--select fedprof:=3: write NAME:KEY=VALUE"),
        ("fedprof:alpha=", "--select fedprof:alpha=: write NAME:KEY=VALUE"),
        ("", "selection.name = ''"),
    ],
)
def test_a_slip_in_a_selector_is_one_clear_line(value, message):
    """It names the key or the way to write it."""
    with pytest.raises(ConfigError) as caught:
        config_of(select=value)
    assert message in str(caught.value)


def test_qualities_are_a_table_of_shares():
    """NAME:SHARE,... is a table of numbers, also where they are written as .2 or 0."""
    (setting,) = settings_of({"quality": "irrelevant:0.15, blurred:.2,salt-and-pepper:0"})
    assert setting == 'data.quality={"irrelevant" = 0.15, "blurred" = 0.2, "salt-and-pepper" = 0.0}'
    assert tomllib.loads(setting.removeprefix("data."))["quality"]["blurred"] == 0.2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("blurred", "write NAME:SHARE"),
        ("blurred:", "write NAME:SHARE"),
        ("blurred:half", "write NAME:SHARE"),
        ("blurred:0.1,", "write NAME:SHARE"),
        ("blurred:0.1,blurred:0.2", "blurred more than once"),
    ],
)
def test_a_slip_in_a_quality_is_one_clear_line(value, message):
    """It shows how shares are written."""
    with pytest.raises(ConfigError, match=message):
        settings_of({"quality": value})


def test_several_things_can_be_encrypted():
    """--encrypt takes a list with commas."""
    config = config_of(select="fedprof", encrypt="statistics,profiles")
    assert set(config.exchange.encrypt) == {Encrypt.STATISTICS, Encrypt.PROFILES}
    assert config_of(encrypt="none").exchange.encrypt == ()


def test_devices_and_fnr_are_named():
    """--devices is a preset, --fnr a way to refine."""
    config = config_of(devices="emnist", fnr="server")
    assert (config.devices.preset, config.fnr.name) == ("emnist", "server")


def test_an_option_that_is_not_given_is_no_setting():
    """What nobody says stays with the file."""
    assert settings_of({"select": None, "rounds": None, "seed": 3}) == ["run.seed=3"]


def test_a_number_is_typed_as_one_in_the_help():
    """Each option of `securefl run` whose setting is a number takes a number, and says so."""
    for name, key in KEYS.items():
        table, field = key.split(".")
        tables = [Config.model_fields[table].annotation, *CHOICES.get(table, {}).values()]
        kind = next(t.model_fields[field].annotation for t in tables if field in t.model_fields)
        numeric = {int, float} & {kind, *get_args(kind)}
        (option,) = (parameter for parameter in run.params if parameter.name == name)
        assert isinstance(option.type, NUMBERS) == bool(numeric), name


def all_commands(group, *path):
    """Every command below `group`, by its path."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from all_commands(command, *path, name)


@pytest.mark.parametrize("path", list(all_commands(main)), ids=" ".join)
def test_h_is_help(path, monkeypatch):
    """-h prints on every command what --help prints."""
    command = main
    for name in path:  # a test that called it without `main` has left the option of its own
        command = command.get_command(None, name)
        monkeypatch.setattr(command, "_help_option", None)
    short, long = (CliRunner().invoke(main, [*path, option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, long.output)
    assert "-h, --help" in short.output

"""A new data set is one new file with its reader, and one line in the catalogue."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

import securefl
from securefl.data import heart, opt, tcga_brca
from securefl.data.catalogue import DATA_SETS, DataSet, Inputs, Targets
from securefl.data.domains import leave_out_choices
from securefl.errors import ConfigError
from securefl.settings.load import load_config
from securefl.task import configured_task
from securefl_cli.main import main

DEALT = """
import torch
from securefl.data.split import Split

def read(data, seed):
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.rand(60, 1, 8, 8, generator=rng), torch.arange(60) % 3
    return Split(x[:48], y[:48], x[48:], y[48:])
"""
BY_DOMAIN = """
import torch

def read(data, seed):
    shades = {"dark": 0.0, "bright": 0.5}
    rng = torch.Generator().manual_seed(seed)
    return {
        name: (shade + torch.rand(20, 1, 8, 8, generator=rng) / 2, torch.arange(20) % 2)
        for name, shade in shades.items()
    }
"""
FAST = ("run.rounds=1", 'exchange.encrypt="none"', "algorithm.name=fedavg", "model.name=cnn")


@pytest.fixture
def new_module(tmp_path, monkeypatch):
    """A function that writes a module of a stranger's."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


def test_a_data_set_that_a_partition_deals_runs_a_round(new_module, monkeypatch):
    """Its classes, its samples and its model's type come from its reader alone."""
    new_module("shades", DEALT)
    monkeypatch.setitem(DATA_SETS, "shades", DataSet(reader="shades:read"))
    config = load_config(
        settings=[*FAST, "data.dataset=shades", "data.clients=3", 'model.dtype="float64"']
    )
    task = configured_task(config)
    assert sum(len(y) for _, y in task.clients) == 48
    assert {x.dtype for x, _ in task.clients} == {torch.float64}
    assert task.model(task.test[0]).shape == (12, 3)
    result = securefl.run(config)
    assert {entry.sender for entry in result.ledger.entries} >= {"client-1", "client-3"}


def test_a_data_set_that_comes_by_domain_runs_a_round(new_module, monkeypatch):
    """Each domain is a client, and can be left out."""
    new_module("lamps", BY_DOMAIN)
    line = DataSet(
        reader="lamps:read", domains={"dark": "dark", "bright": "bright"}, files="nothing at all"
    )
    monkeypatch.setitem(DATA_SETS, "lamps", line)
    chosen = [*FAST, "data.dataset=lamps", 'data.root="."']
    assert leave_out_choices(load_config(settings=chosen).data) == ["dark", "bright"]
    assert list(configured_task(load_config(settings=chosen)).external) == []
    config = load_config(settings=[*chosen, "data.leave_out=dark"])
    task = configured_task(config)
    assert [len(y) for _, y in task.clients] == [16]
    assert list(task.external) == ["dark"]
    result = securefl.run(config)
    assert "client-2" not in {entry.sender for entry in result.ledger.entries}


def test_the_rules_of_settings_hold_for_it(monkeypatch):
    """They ask its traits, and its module is not looked for."""
    monkeypatch.setitem(
        DATA_SETS,
        "flows",
        DataSet(reader="nowhere:read", inputs=Inputs.READINGS, targets=Targets.NUMBERS),
    )
    wrong = {
        "partition=iid": r'model.name = "cnn" with data.dataset = "flows": readings are no images',
        "root=x": r'data.root = "x": the flows need no files; leave data.root out',
        "dataset=flow": r"data.dataset = 'flow': must be one of digits, .*, flows$",
    }
    for setting, rule in wrong.items():
        with pytest.raises(ConfigError, match=rule):
            load_config(settings=["data.dataset=flows", f"data.{setting}", "model.name=cnn"])


@pytest.mark.parametrize(
    ("name", "read"),
    [("heart", heart.HOSPITALS), ("opt", opt.CLINICS), ("tcga-brca", tcga_brca.REGIONS)],
)
def test_the_catalogue_names_the_domains_that_a_reader_reads(name, read):
    """In their order; the other readers take their names from it."""
    assert list(DATA_SETS[name].domains) == list(read)


@pytest.mark.parametrize("name", DATA_SETS)
def test_help_names_every_data_set(name):
    """Words that click has broken at their hyphens are put together again."""
    shown = CliRunner().invoke(main, ["run", "--help"]).output
    options = "".join(shown.split("Options:")[1].split("--data-root")[0].split())
    assert f"{name}," in options or f"{name};" in options


def test_the_catalogue_is_read_without_torch():
    """Settings are checked before torch is imported, which takes seconds."""
    script = "import sys, securefl.settings.load; print({'torch', 'numpy'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"

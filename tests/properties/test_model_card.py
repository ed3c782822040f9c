"""The model card: front matter of hubs, counts and scores of the run, and no site's name."""

import re
import shutil

import pytest
import torch
import yaml
from click.testing import CliRunner
from torch import nn

import securefl
from securefl.errors import RunFolderError
from securefl.export.card import model_card
from securefl_cli.export import card

SITES = ("Charité", "Mayo|Clinic", "Rigshospitalet")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three hospitals' own task, with test data of their own."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 4, generator=generator)
    data = {n: (x[i::3], (x[i::3, 0] > 0).long()) for i, n in enumerate(SITES)}
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    task = securefl.Task(model, data, data[SITES[0]], client_tests=list(data.values()))
    out = tmp_path_factory.mktemp("runs") / "card"
    settings = ["run.rounds=2", "run.name=three-hospitals"]
    return securefl.run(securefl.load_config(settings=settings), task, out=out), out


def test_a_hub_reads_its_front_matter(run):
    result, folder = run
    _, front, page = model_card(folder).split("---\n", 2)
    found = yaml.safe_load(front)
    assert found["library_name"] == "pytorch"
    assert {"federated-learning", "fedtan"} <= set(found["tags"])
    (index,) = found["model-index"]
    assert index["name"] == "three-hospitals"
    (measured,) = index["results"][0]["metrics"]
    assert measured == {"type": "accuracy", "value": pytest.approx(result.metrics[-1].compared)}
    assert page.startswith("\n# three-hospitals\n")


def test_data_are_counts_and_no_site_is_named(run):
    result, folder = run
    page = model_card(folder)
    assert "3 clients" in page
    assert "90 samples to train, 30 to 30 a client; 30 to test" in page
    assert not any(name in page or name.replace("|", "\\|") in page for name in SITES)
    assert "| 2 (last) |" in page
    scores = [of.score for of in result.clients.values()]
    assert f"{100 * min(scores):.1f} % to {100 * max(scores):.1f} %" in page
    assert "ε is infinite" in page
    assert "was not audited" in page


def test_it_has_the_verdicts_of_an_audit(run, tmp_path):
    _, folder = run
    audited = shutil.copytree(folder, tmp_path / "audited")
    (audited / "audit.json").write_text(
        '{"chapters": {"a": {"title": "Who | reads", "verdict": "leaks", "words": "All."}}}'
    )
    assert "| Who \\| reads | leaks | All. |" in model_card(audited)
    (audited / "audit.json").write_text('{"chapters": []}')
    with pytest.raises(RunFolderError, match="no findings of an audit"):
        model_card(audited)


def test_the_command_prints_or_writes_it(run, tmp_path):
    _, folder = run
    assert CliRunner().invoke(card, [str(folder)]).output == model_card(folder)
    CliRunner().invoke(card, [str(folder), "--out", str(tmp_path / "README.md")])
    assert (tmp_path / "README.md").read_text() == model_card(folder)


def test_a_run_without_a_round_has_no_model(run, tmp_path):
    _, folder = run
    empty = shutil.copytree(folder, tmp_path / "empty")
    (empty / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match="no round is complete"):
        model_card(empty)


def test_each_table_has_as_many_cells_as_columns(run):
    for table in re.findall(r"(?:^\|.*\n)+", model_card(run[1]), re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", row) for row in table.splitlines()]
        assert len({len(row) for row in rows}) == 1

"""The model card: front matter of hubs, counts and scores of the run, and no site's name."""

import json
import re
import shutil

import pytest
import torch
import yaml
from click.testing import CliRunner
from markdown_it import MarkdownIt  # a part of rich
from torch import nn

import securefl
from securefl.errors import RunFolderError
from securefl.export.card import model_card
from securefl_cli.compare import compare
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


@pytest.mark.parametrize("score", [float("nan"), float("-inf"), 1e-05, 2.5e7, 0.5])
def test_a_hub_reads_a_score_as_the_number_that_it_is(run, tmp_path, score):
    folder = shutil.copytree(run[1], tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[-1] = json.dumps(
        json.loads(lines[-1]) | {"metric": "mae", "score": score, "accuracy": None, "pooled": None}
    )
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    front = yaml.safe_load(model_card(folder).split("---\n")[1])
    (measured,) = front["model-index"][0]["results"][0]["metrics"]
    assert measured["value"] == pytest.approx(score, nan_ok=True)


def test_data_are_counts_and_no_site_is_named(run):
    result, folder = run
    page = model_card(folder)
    assert "\n3 clients, simulated: whoever ran it had the data of all.\n" in page
    assert "90 samples to train, 30 to 30 a client; 90 to test" in page
    assert not any(name in page or name.replace("|", "&#124;") in page for name in SITES)
    assert "| 2 (last) |" in page
    scores = [of.score for of in result.clients.values()]
    assert f"{100 * min(scores):.1f} % to {100 * max(scores):.1f} %" in page
    assert "ε is infinite" in page
    assert "was not audited" in page


def test_data_stay_at_sites_alone(run, tmp_path):
    """It is said of a federation's folder, and neither of a simulation nor of pooled data."""
    folder = shutil.copytree(run[1], tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["algorithm"] = {"name": "centralised"}
    (folder / "server.json").write_text("{}")
    assert "\n3 clients, each with data of its own that did not leave it.\n" in model_card(folder)
    (folder / "server.json").unlink()
    config["exchange"]["encrypt"] = "none"
    (folder / "config.json").write_text(json.dumps(config))
    page = model_card(folder)
    assert "\nAll data were pooled: one party trained on them.\n" in page
    assert "federated learning, with" not in page


def test_it_has_the_verdicts_of_an_audit(run, tmp_path):
    _, folder = run
    audited = shutil.copytree(folder, tmp_path / "audited")
    (audited / "audit.json").write_text(
        '{"chapters": {"a": {"title": "Who | reads", "verdict": "leaks", "words": "All."}}}'
    )
    assert "| Who &#124; reads | leaks | All. |" in model_card(audited)
    (audited / "audit.json").write_text('{"chapters": []}')
    with pytest.raises(RunFolderError, match="no findings of an audit"):
        model_card(audited)


ATTACKS = (
    "![p](http://evil.example/p.png)",
    '<img src="http://evil.example" onerror="alert(1)">',
    "</td><script>alert(1)</script>",
    "`` ` `<b>x</b> [a](javascript:alert(1)) &lt;i&gt; http://evil.example",
)


def test_a_folder_from_elsewhere_puts_nothing_live_on_the_page(run, tmp_path):
    """Each file's texts are text: no picture, link, HTML or code span, by a reader of Markdown."""
    folder = shutil.copytree(run[1], tmp_path / "run")

    def change(name, with_it):
        of = json.loads((folder / name).read_text())
        with_it(of)
        (folder / name).write_text(json.dumps(of))

    bad = " ".join(ATTACKS)
    change("environment.json", lambda of: of["sessions"][0].update(began=bad, torch=bad))
    change("task.json", lambda of: (of["test"].update(x=bad, y=bad), of["model"].update(name=bad)))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    for i, line in enumerate(lines):
        lines[i] = json.dumps(json.loads(line) | {"at": bad, "metric": bad})
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    named = f"{SITES[0]}, {SITES[1]} and the Charités. {bad}"
    said = {"title": bad, "verdict": bad, "words": named}
    (folder / "audit.json").write_text(json.dumps({"chapters": {"a": said}}))
    page = model_card(folder)
    assert yaml.safe_load(page.split("---\n")[1])["metrics"] == [bad]
    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    flat = [t for block in reader.parse(page) for t in (block, *(block.children or ()))]
    assert not {t.type for t in flat} & {"image", "link_open", "html_inline", "html_block"}
    assert not [t for t in flat if t.type == "code_inline" and "securefl" not in t.content]
    text = " ".join(t.content for t in flat if t.type == "text")
    assert text.count("<img src=") == 10
    assert "a client, a client and the Charités." in text
    assert not any(re.search(rf"{re.escape(name)}\b", text) for name in SITES)


def test_the_command_prints_or_writes_it(run, tmp_path):
    _, folder = run
    assert CliRunner().invoke(card, [str(folder)]).output == model_card(folder)
    page = tmp_path / "README.md"
    CliRunner().invoke(card, [str(folder), "--out", str(page)])
    assert page.read_text() == model_card(folder)
    page.write_text("mine")
    for arguments in ([card, str(folder), "--out"], [compare, str(folder), "--html"]):
        refused = CliRunner().invoke(arguments[0], [*arguments[1:], str(page)]).exception
        assert "README.md: is there already; give another name, or remove it" in str(refused)
    assert page.read_text() == "mine"


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

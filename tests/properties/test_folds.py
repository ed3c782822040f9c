"""Leave-one-out: who is scored by which model, and that work which is done is not done again."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import securefl
from securefl.errors import ConfigError, DataError, RunFolderError
from securefl.report.external import ExternalScore, LeaveOneOut
from securefl_cli.main import main

ROUNDS = 3
PLAIN = {"exchange": {"encrypt": "none"}, "run": {"rounds": ROUNDS}}


def data(seed, n=20):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=rng), torch.randint(3, (n,), generator=rng)


@pytest.fixture
def tasks(tiny_task):
    """Two domains; the second has two clients that are left out together."""
    return {
        "north": tiny_task(external={"hospital-1": data(1, 20)}),
        "south": tiny_task(external={"hospital-2": data(2, 30), "hospital-3": data(3, 40)}),
    }


def watcher(stop_after=None):
    """Writes down which rounds of which domain are run; may stop in the middle."""
    seen = []

    @contextmanager
    def watch(domain, rounds, done):
        def on_round(metrics):
            seen.append((domain, metrics.round))
            if len(seen) == stop_after:
                raise KeyboardInterrupt

        seen.append((domain, f"from {done} of {rounds}"))
        yield on_round

    return seen, watch


def test_each_external_client_is_scored_by_the_model_that_has_not_seen_its_domain(
    tmp_path, tiny_config, tasks
):
    """With both kinds of statistics; the model is the one in the run's folder."""
    report = securefl.leave_one_out(
        tiny_config(**PLAIN), tmp_path, tasks=tasks, adapt_bn=0.5, batch_size=8
    )
    expected = []
    for domain, task in tasks.items():
        model = securefl.load_trained(tmp_path / f"without-{domain}", task).model
        for client, (x, y) in task.external.items():
            own = securefl.evaluate(model, (x, y))
            adapted = securefl.evaluate(model, (x, y), adapt_bn=0.5, batch_size=8)
            expected.append(ExternalScore(domain, client, len(y), own.value, adapted.value))
    assert list(report.scores) == expected
    assert report.accuracy == pytest.approx(sum(s.score for s in expected) / 3)
    assert report.adapted == pytest.approx(sum(s.adapted for s in expected) / 3)


def test_the_report_stands_in_the_folder_as_json_and_as_a_table(tmp_path, tiny_config, tasks):
    """The same figures in both, and the settings that made them."""
    config = tiny_config(**PLAIN)
    report = securefl.leave_one_out(config, tmp_path, tasks=tasks)
    written = json.loads((tmp_path / "report.json").read_text())
    assert (written["adapt_bn"], written["batch_size"]) == (0.9, 32)
    # Of a task of one's own, whose data and model the settings do not know.
    assert written["settings"] == config.model_dump(mode="json", exclude={"data", "model"})
    assert [ExternalScore(**client) for client in written["clients"]] == list(report.scores)
    assert written["mean"] == {"score": report.accuracy, "adapted": report.adapted}
    header, _, *rows, mean = (tmp_path / "report.md").read_text().splitlines()
    assert "Adapted, τ = 0.9, batches of 32" in header
    assert [row.split(" | ")[1] for row in rows] == ["hospital-1", "hospital-2", "hospital-3"]
    assert mean == f"| mean |  |  | {100 * report.accuracy:.1f} % | {100 * report.adapted:.1f} % |"
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.json",
        "report.md",
        "without-north",
        "without-south",
    }


def test_a_report_that_was_interrupted_goes_on_and_ends_the_same(tmp_path, tiny_config, tasks):
    """Complete runs are not run again, the one that was cut goes on where it was."""
    config = tiny_config(**PLAIN)
    securefl.leave_one_out(config, tmp_path / "whole", tasks=tasks)
    _, watch = watcher(stop_after=1 + ROUNDS + 1 + 2)
    with pytest.raises(KeyboardInterrupt):
        securefl.leave_one_out(config, tmp_path / "cut", tasks=tasks, watch=watch)
    assert not (tmp_path / "cut/report.json").exists()
    seen, watch = watcher()
    securefl.leave_one_out(config, tmp_path / "cut", tasks=tasks, watch=watch)
    assert seen == [("south", f"from 2 of {ROUNDS}"), ("south", 3)]
    for name in ("report.json", "report.md"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    seen, watch = watcher()
    securefl.leave_one_out(config, tmp_path / "cut", tasks=tasks, watch=watch, adapt_bn=0.0)
    assert not seen
    assert json.loads((tmp_path / "cut/report.json").read_text())["adapt_bn"] == 0


def test_runs_of_other_settings_are_not_reported_as_these(tmp_path, tiny_config, tasks):
    """Nothing is run, and what stands there stays."""
    config = tiny_config(**PLAIN)
    securefl.leave_one_out(config, tmp_path, tasks={"south": tasks["south"]})
    seen, watch = watcher()
    other = tiny_config(**PLAIN | {"train": {"lr": 0.2}})
    with pytest.raises(RunFolderError, match=r"without-south: holds a run of other settings"):
        securefl.leave_one_out(other, tmp_path, tasks=tasks, watch=watch)
    assert not seen
    assert not (tmp_path / "without-north").exists()


@pytest.mark.parametrize(
    ("options", "error", "rule"),
    [
        ({"adapt_bn": 1.0}, ConfigError, "tau = 1.0"),
        ({"batch_size": 0}, ConfigError, "batch_size = 0"),
        ({"tasks": {}}, ConfigError, "there is none"),
        ({"tasks": None}, ConfigError, "leaving one out needs two"),
    ],
)
def test_what_cannot_be_reported_is_refused_before_anything_runs(
    tmp_path, tiny_config, tasks, options, error, rule
):
    """No folder is made."""
    with pytest.raises(error, match=rule):
        securefl.leave_one_out(tiny_config(**PLAIN), tmp_path / "out", **{"tasks": tasks} | options)
    assert not (tmp_path / "out").exists()


def test_a_task_without_external_clients_or_batch_norm_is_refused_before_training(
    tmp_path, tiny_config, tiny_task, tasks
):
    """There would be nobody to test on, or nothing to adapt."""
    config = tiny_config(**PLAIN)
    with pytest.raises(ConfigError, match=r'tasks\["east"\]: has no external clients'):
        securefl.leave_one_out(config, tmp_path / "out", tasks=tasks | {"east": tiny_task()})
    bare = tiny_task(model=nn.Linear(4, 3), external={"hospital-1": data(1)})
    with pytest.raises(DataError, match="has no BN layer"):
        securefl.leave_one_out(config, tmp_path / "out", tasks={"north": bare})
    assert not (tmp_path / "out").exists()


def test_a_name_cannot_break_the_table(tiny_config):
    """A folder's name may hold a bar or a new line."""
    score = ExternalScore("a|b", "c\nd", 2, 0.5, 0.5)
    lines = LeaveOneOut(tiny_config(), 0.9, 32, (score,)).to_markdown().splitlines()
    assert len(lines) == 4
    assert lines[2] == "| a\\|b | c d | 2 | 50.0 % | 50.0 % |"


TOML = """
[run]
rounds = 2
[data]
partition = "iid"
clients = 3
corruptions = ["fog", "gaussian_noise", "impulse_noise"]
[algorithm]
name = "fedavg"
[exchange]
encrypt = "none"
"""


def test_the_command_leaves_out_each_family_of_corruptions(tmp_path):
    """Clients of one family are external together; a second call only prints."""
    (tmp_path / "job.toml").write_text(TOML)
    arguments = ["leave-one-out", tmp_path / "job.toml", "--adapt-bn", "0.5"]
    call = [*map(str, arguments), "--out", str(tmp_path / "out"), "--set", "run.seed=4"]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.output
    rows = [line.split()[:3] for line in result.stdout.splitlines() if "%" in line]
    assert rows == [
        ["weather", "fog", "360"],
        ["noise", "gaussian_noise", "360"],
        ["noise", "impulse_noise", "360"],
        ["mean", "1080", rows[3][2]],
    ]
    assert "τ = 0.5" in result.stdout
    trained = securefl.load_trained(tmp_path / "out/without-noise")
    assert trained.config.run.seed == 4
    assert len(trained.task.clients) == 1
    again = CliRunner().invoke(main, call)
    assert again.stdout == result.stdout
    assert "round" not in again.stderr


def test_the_command_says_which_settings_have_no_domains(tmp_path):
    """One line, and no folder."""
    (tmp_path / "job.toml").write_text("[run]\nrounds = 2\n")
    call = ["leave-one-out", str(tmp_path / "job.toml"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 2
    assert "data.corruptions" in result.stderr
    assert not (tmp_path / "out").exists()

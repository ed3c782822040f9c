"""Rounds of a run in a frame, in TensorBoard and in MLflow: the numbers that the run has."""

import shutil
import sys
import threading
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import securefl
from securefl.errors import ConfigError
from securefl.runs.folder_files import METRICS, TRAFFIC
from securefl.runs.folder_writer import RunFolder
from securefl.runs.follow import follow
from securefl.runs.frame import row
from securefl.trackers.mlflow import MLflow
from securefl.trackers.tensorboard import TensorBoard
from securefl_cli.track import track

SETTINGS = ["run.rounds=3", "exchange.encrypt=none", "algorithm.name=fedbn"]


@pytest.fixture(scope="module", autouse=True)
def store_of_files():
    """MLflow without a server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of own models, told to both trackers."""
    folder = tmp_path_factory.mktemp("tracked")
    config = securefl.load_config(settings=SETTINGS)
    trackers = TensorBoard(config, folder / "logs"), MLflow(config, f"file://{folder}/m")

    def on_round(metrics):
        for tracker in trackers:
            tracker.on_round(metrics)

    def on_end(result):
        for tracker in trackers:
            tracker.on_end(result)

    return securefl.run(config, out=folder / "run", on_round=on_round, on_end=on_end), folder


def scalars_of(folder):
    found = EventAccumulator(str(folder))
    found.Reload()
    return {n: [(e.step, e.value) for e in found.Scalars(n)] for n in found.Tags()["scalars"]}


def expected_of(result):
    rows = [row(metrics) for metrics in result.metrics]
    return {name: [(of["round"], of[name]) for of in rows] for name in rows[0]}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in wanted]
        values = [value for _, value in wanted]
        assert [value for _, value in found[name]] == pytest.approx(values, rel=1e-6)


def test_tensorboard_has_each_number_of_each_round(made):
    result, folder = made
    expected = expected_of(result)
    assert {"score", "loss", "lr", "clients/client-1/score"} <= expected.keys()
    same(scalars_of(folder / "logs"), expected)


def mlflow_of(uri):
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("securefl").experiment_id])
    history = {n: client.get_metric_history(run.info.run_id, n) for n in run.data.metrics}
    return run, {
        n: [(m.step, m.value) for m in sorted(h, key=lambda m: m.step)] for n, h in history.items()
    }


def test_mlflow_has_numbers_settings_and_end(made):
    result, folder = made
    run, history = mlflow_of(f"file://{folder}/m")
    same(history, expected_of(result))
    assert run.info.status == "FINISHED"
    assert run.info.run_name == result.config.name
    assert run.data.params["algorithm.name"] == "fedbn"
    assert run.data.params["train.lr"] == "0.5"


def test_a_frame_has_a_row_for_each_round(made, monkeypatch):
    result, _ = made
    frame = result.frame()
    assert list(frame["round"]) == [1, 2, 3]
    assert list(frame["score"]) == [m.score for m in result.metrics]
    monkeypatch.setattr("securefl.runs.frame.find_spec", lambda _: None)
    assert result.frame() == frame.to_dict("records")


def test_the_command_writes_a_folders_rounds_and_waits_for_more(made, tmp_path):
    """Of a process that is at work; a round that is taken back comes once."""
    result, folder = made
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    (run / TRAFFIC).unlink()
    lines = (run / METRICS).read_text().splitlines(keepends=True)
    (run / METRICS).write_text("".join(lines[:2]))
    seen = []

    def watch():
        seen.extend(follow(run, pause_s=0.01))

    with RunFolder(run).locked():
        watching = threading.Thread(target=watch)
        watching.start()
        _until(lambda: len(seen) == 2)
        (run / METRICS).write_text(lines[0])
        time.sleep(0.05)
        (run / METRICS).write_text("".join(lines))
        _until(lambda: len(seen) == 3)
    watching.join(10)
    assert not watching.is_alive()
    assert seen == list(result.metrics)


def _until(done):
    for _ in range(1000):
        if done():
            return
        time.sleep(0.01)
    raise AssertionError("waited for 10 s")


def test_the_command_says_where_a_run_has_stopped(made, tmp_path):
    result, folder = made
    (shutil.copytree(folder / "run", tmp_path / "stopped") / TRAFFIC).unlink()
    shutil.copytree(folder / "run", tmp_path / "complete")
    ends = {"stopped": (", where the run has stopped", "FAILED"), "complete": ("\n", "FINISHED")}
    for name, (said, status) in ends.items():
        logs, uri = tmp_path / f"{name}-logs", f"file://{tmp_path}/{name}-m"
        arguments = [str(tmp_path / name), "--tensorboard", str(logs), "--mlflow", uri]
        found = CliRunner().invoke(track, arguments, catch_exceptions=False)
        assert f"Rounds written: 3{said}" in found.output
        same(scalars_of(logs), expected_of(result))
        assert mlflow_of(uri)[0].info.status == status


def test_what_mlflow_takes_no_number_for_is_left_out(made, tmp_path):
    result, _ = made
    tracker = MLflow(result.config, uri := f"file://{tmp_path}/m")
    tracker.on_round(replace(result.metrics[0], epsilon=float("inf"), loss=float("nan")))
    _, history = mlflow_of(uri)
    assert "score" in history
    assert not {"epsilon", "loss"} & history.keys()


@pytest.mark.parametrize(("kind", "module"), [(TensorBoard, "tensorboard"), (MLflow, "mlflow")])
def test_a_package_that_is_missing_is_named(kind, module, monkeypatch, made, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("securefl.trackers.tracker.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"pip install 'securefl\[{module}\]'"):
        kind(made[0].config, str(tmp_path))

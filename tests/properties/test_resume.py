"""A run that stops goes on as if it had not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from datetime import UTC, datetime

import pytest
import torch
from click.testing import CliRunner
from interruptible import SECUREFL
from processes import ONE_THREAD
from safetensors.torch import load_file
from threads import one_torch_thread
from torch import nn

import securefl
from securefl import Config
from securefl.errors import ConfigError, RunFolderError
from securefl.runs.folder_writer import RunFolder
from securefl.runs.session import PROCESSES, ServerStart
from securefl.task import configured_task
from securefl_cli.main import main

BASE = (
    "run.rounds=6",
    "train.momentum=0.9",
    "train.momentum_across_rounds=local",
    "train.lr=0.05",
)
COMMAND = [*SECUREFL, "run"]
FORTY_ROUNDS = ["--set", "run.rounds=40", "--encrypt", "none", "--out"]


class StopError(Exception):
    """Stands for a crash."""


TIMES = {"seconds", "phases", "at", "run"}


def stop_after(rounds):
    def on_round(metrics):
        if metrics.round == rounds:
            raise StopError

    return on_round


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_time(rows):
    """Return rows without what differs between two runs of the same settings."""
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


@pytest.fixture
def no_pictures(monkeypatch):
    """They take longer than all else here."""
    monkeypatch.setattr("securefl.report.finish.pictures", lambda run: {})


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("algorithm", ["fedtan", "fedavg"])
@pytest.mark.parametrize("stopped_after", [1, 3, 5])
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(tmp_path, algorithm, stopped_after):
    """Model, metrics and ledger do not show that the run was interrupted, momentum included."""
    config = securefl.load_config(
        None, [*BASE, f"algorithm.name={algorithm}", "exchange.encrypt=none"]
    )
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    securefl.run(config, out=whole)
    with pytest.raises(StopError):
        securefl.run(config, out=halves, on_round=stop_after(stopped_after))
    securefl.resume(halves)
    assert (whole / "model.safetensors").read_bytes() == (halves / "model.safetensors").read_bytes()
    for name in ("metrics.jsonl", "ledger.jsonl"):
        one, other = (without_time(lines(folder / name)) for folder in (whole, halves))
        assert one == other
    assert [row["round"] for row in lines(halves / "metrics.jsonl")] == list(range(1, 7))


@pytest.mark.usefixtures("no_pictures")
def test_each_line_has_its_time_and_the_id_of_its_session(tmp_path):
    """A resumed run keeps those of the first session, and an older folder's lines have none."""
    sets = [*BASE, "algorithm.name=fedtan", "run.rounds=2"]
    sets += ["selection.name=random", "selection.fraction=0.8"]
    run, older = tmp_path / "run", tmp_path / "older"
    with pytest.raises(StopError):
        securefl.run(securefl.load_config(None, sets), out=run, on_round=stop_after(1))
    shutil.copytree(run, older)
    logs = ("ledger.jsonl", "openings.jsonl", "metrics.jsonl", "selections.jsonl")
    for name in logs:
        rows = [
            {k: v for k, v in row.items() if k not in {"at", "run"}} for row in lines(run / name)
        ]
        (older / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for folder in (run, older):
        securefl.resume(folder)
    for name in set(logs) - {"openings.jsonl"}:  # that one is never written again
        stamps = {(row["round"], bool(row["at"]), bool(row["run"])) for row in lines(older / name)}
        assert stamps == {(1, False, False), (2, True, True)}
    sessions = json.loads((run / "environment.json").read_text())["sessions"]
    began = [session["began"] for session in sessions]
    assert began == sorted(began)
    for name in logs:
        rows = lines(run / name)
        found = {(row["round"], row["run"]) for row in rows}
        assert found == {(i, session["run"]) for i, session in enumerate(sessions, 1)}
        times = [row["at"] for row in rows]
        assert began[0] <= times[0] <= times[-1] <= lines(run / "metrics.jsonl")[-1]["at"]
        assert times == sorted(times)
        assert datetime.fromisoformat(times[0]).tzinfo is UTC


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("algorithm", ["fedtan", "fedavg"])
def test_layers_that_draw_random_numbers_resume_too(tmp_path, algorithm):
    """A model with dropout ends bit for bit the same, and no global generator is moved."""
    rng = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(9, 4, generator=rng), torch.randint(2, (9,), generator=rng)) for _ in range(3)
    ]
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 2)]
    task = securefl.Task(nn.Sequential(*layers), clients, clients[0])
    config = securefl.load_config(
        None, [*BASE, f"algorithm.name={algorithm}", "exchange.encrypt=none"]
    )
    torch.manual_seed(1)
    securefl.run(config, task, out=tmp_path / "whole")
    after = torch.rand(1)
    with pytest.raises(StopError):
        securefl.run(config, task, out=tmp_path / "halves", on_round=stop_after(2))
    securefl.resume(tmp_path / "halves", task)
    models = [(tmp_path / d / "model.safetensors").read_bytes() for d in ("whole", "halves")]
    assert models[0] == models[1]
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)


@pytest.mark.usefixtures("no_pictures")
def test_lines_of_an_unfinished_round_are_dropped(tmp_path):
    """What a crash leaves behind the last checkpoint, half a line too, does not count."""
    config = securefl.load_config(None, [*BASE, "exchange.encrypt=none"])
    with pytest.raises(StopError):
        securefl.run(config, out=tmp_path / "run", on_round=stop_after(2))
    metrics = tmp_path / "run" / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write(metrics.read_text().splitlines()[-1].replace('"round": 2', '"round": 3') + "\n")
        file.write('{"round": 3, "accu')
    (tmp_path / "run" / ".checkpoint.safetensors.partial").write_bytes(b"half")
    securefl.resume(tmp_path / "run")
    assert [row["round"] for row in lines(metrics)] == list(range(1, 7))


@pytest.mark.usefixtures("no_pictures")
def test_an_encrypted_run_resumes_under_a_new_key(tmp_path):
    """Ephemeral keys end with their process; the run goes on under others, and both are named.

    No two openings have the same noise, and six rounds of training amplify what 2^-24 it moves.
    """
    config = securefl.load_config(None, BASE)
    securefl.run(config, out=tmp_path / "whole")
    with pytest.raises(StopError):
        securefl.run(config, out=tmp_path / "halves", on_round=stop_after(2))
    securefl.resume(tmp_path / "halves")
    one, other = (load_file(tmp_path / d / "model.safetensors") for d in ("whole", "halves"))
    assert max(float((one[k] - other[k]).abs().max()) for k in one if "num" not in k) < 1e-3
    environment = json.loads((tmp_path / "halves" / "environment.json").read_text())
    assert len({session["key_id"] for session in environment["sessions"]}) == 2


@pytest.mark.usefixtures("no_pictures")
def test_openings_are_never_taken_back(tmp_path):
    """What the authority opened in a round that then failed stays in its log."""
    config = securefl.load_config(None, BASE)
    with pytest.raises(StopError):
        securefl.run(config, out=tmp_path / "run", on_round=stop_after(1))
    log = tmp_path / "run" / "openings.jsonl"
    before = lines(log)
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    securefl.resume(tmp_path / "run")
    assert lines(log)[: len(before)] == before
    assert len(lines(log)) == len(before) + 6 * 5


def test_a_complete_run_is_not_resumed(tmp_path):
    """There is nothing left to do, and the message says so."""
    config = securefl.load_config(None, ["run.rounds=1", "exchange.encrypt=none"])
    securefl.run(config, out=tmp_path / "run")
    with pytest.raises(RunFolderError, match="complete"):
        securefl.resume(tmp_path / "run")


def test_a_run_that_stopped_after_its_last_round_still_gets_its_model(tmp_path):
    """A disk that was full at the very end costs no model: resuming writes what is missing."""
    config = securefl.load_config(None, ["run.rounds=2", "exchange.encrypt=none"])
    securefl.run(config, out=tmp_path / "run")
    whole = (tmp_path / "run" / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "traffic.png"):
        (tmp_path / "run" / name).unlink()
    result = securefl.resume(tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == whole
    assert (tmp_path / "run" / "traffic.png").exists()
    assert [m.round for m in result.metrics] == [1, 2]


@pytest.mark.usefixtures("no_pictures")
def test_a_run_with_a_task_of_its_own_is_not_continued_on_other_data(tmp_path):
    """The folder knows that its data were the caller's."""
    config = securefl.load_config(None, [*BASE, "exchange.encrypt=none"])
    task = configured_task(config)
    with pytest.raises(StopError):
        securefl.run(config, task, out=tmp_path / "run", on_round=stop_after(2))
    with pytest.raises(ConfigError, match="task of its own"):
        securefl.resume(tmp_path / "run")
    assert len(securefl.resume(tmp_path / "run", task).metrics) == 6


@pytest.mark.usefixtures("no_pictures")
def test_two_processes_do_not_write_one_run(tmp_path):
    """The second is refused while the first is at work, and nothing is lost."""
    config = securefl.load_config(None, [*BASE, "exchange.encrypt=none"])

    def resume_too(metrics):
        with pytest.raises(RunFolderError, match="another process"):
            securefl.resume(tmp_path / "run")

    securefl.run(config, out=tmp_path / "run", on_round=resume_too)
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 6


def test_ctrl_c_twice_ends_the_process(tmp_path):
    """An impatient user is not left with a process that hangs."""
    process = subprocess.Popen(
        [*COMMAND, "--rounds", "500", "--model", "resnet20", "--out", tmp_path / "run"],
        stderr=subprocess.PIPE,
    )
    ledger = tmp_path / "run" / ".lock"
    give_up = time.monotonic() + 60
    while not ledger.exists():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    time.sleep(1)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    process.communicate(timeout=60)
    assert process.returncode in {130, -signal.SIGINT}  # the second may come while it ends


@pytest.mark.usefixtures("no_pictures")
def test_a_damaged_checkpoint_is_refused(tmp_path):
    """A truncated or foreign checkpoint is one clear error, and the folder stays as it was."""
    config = securefl.load_config(None, [*BASE, "exchange.encrypt=none"])
    with pytest.raises(StopError):
        securefl.run(config, out=tmp_path / "run", on_round=stop_after(2))
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()
    for damaged in (b"", whole[:50], whole[:-10], os.urandom(300)):
        checkpoint.write_bytes(damaged)
        with pytest.raises(RunFolderError, match="damaged checkpoint"):
            securefl.resume(tmp_path / "run")
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 2


@pytest.fixture(scope="module")
def one_thread():
    """As the processes have it here: the last bit of torch's sums depends on their number."""
    with one_torch_thread():
        yield


@pytest.fixture(scope="module")
def uninterrupted(one_thread, tmp_path_factory):
    """The model of forty rounds."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert CliRunner().invoke(main, ["run", *FORTY_ROUNDS, str(out)]).exit_code == 0
    return (out / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_process_can_be_resumed(uninterrupted, tmp_path, signal_number):
    """Ctrl-C says how to go on; after it, or a kill, the run ends with the same model."""
    process = subprocess.Popen(
        [*COMMAND, *FORTY_ROUNDS, tmp_path / "cut"],
        env=os.environ | ONE_THREAD,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "cut" / "metrics.jsonl"
    give_up = time.monotonic() + 60
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 3):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    process.send_signal(signal_number)
    _, stderr = process.communicate(timeout=60)
    if signal_number == signal.SIGINT:
        assert process.returncode == 130
        assert f"securefl run --resume {tmp_path / 'cut'}" in stderr
        assert "Traceback" not in stderr
    assert len(metrics.read_text().splitlines()) < 40
    resumed = CliRunner().invoke(main, ["run", "--resume", str(tmp_path / "cut")])
    assert resumed.exit_code == 0, resumed.output
    assert "Learning rate: " in resumed.stderr
    assert [row["round"] for row in lines(metrics)] == list(range(1, 41))
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == uninterrupted


def test_a_servers_folder_says_what_goes_on_in_it(tmp_path):
    """Its clients' data are nowhere here."""
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.note_session(Config(), "", "", PROCESSES, own_task=True)
    with pytest.raises(RunFolderError, match=r"continue with `securefl server serve`.*--out .*run"):
        securefl.resume(tmp_path / "run")


def test_a_folder_that_says_how_its_server_was_started_goes_on_by_itself(tmp_path):
    """`run --resume` says what it needs of the command line, and asks for no key of a client."""
    run, hub = tmp_path / "run", tmp_path / "hub"
    folder = RunFolder.create(run, Config())
    start = ServerStart(
        bundle=tmp_path / "bundle",
        identity=hub,
        listen="127.0.0.1:0",
        joining_s=1.0,
        timeout_s=1.0,
        away_s=1.0,
        data=tmp_path / "server.toml",
    )
    folder.note_server(start)
    assert folder.server_start() == start
    assert folder.is_over_processes()  # from its start on, also before the first session
    with pytest.raises(RunFolderError, match=r"continue with `securefl run --resume .*run`"):
        securefl.resume(run)
    resume = ["run", "--resume", str(run)]
    done = CliRunner().invoke(main, [*resume, "--keys", str(tmp_path)])
    assert (done.exit_code, "have their own keys" in done.stderr) == (2, True)
    done = CliRunner().invoke(main, resume)
    assert done.exit_code == 2
    gone = " and ".join(str(path) for path in (start.bundle, hub, start.data))
    assert f"{gone}: no longer there" in done.stderr
    assert f"--bundle DIR --identity DIR --data FILE --out {run}" in done.stderr
    assert "ephemeral" not in done.stderr
    (run / "server.json").write_text('{"bundle": 1}')
    done = CliRunner().invoke(main, resume)
    assert (done.exit_code, "server.json: damaged" in done.stderr) == (1, True)

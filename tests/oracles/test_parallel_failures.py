"""Workers die, or are not there: no bit changes, and whoever is at the screen is told."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from by_hand import task
from hired import SIZES, Deadly, Garbling, Returning, require_alike, trained
from interruptible import SECUREFL
from securefl.simulation.processes.shared_round import SharedRound
from side_by_side import vector

import securefl
from securefl.errors import ConfigError, PeerError
from securefl.simulation.processes import worker_process
from securefl.simulation.processes.ipc import Gone


@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize(
    ("algorithm", "encrypt"),
    [
        ("fedtan", "none"),
        pytest.param("fedavg", "none", marks=pytest.mark.slow),
        pytest.param("fedtan", "statistics", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_is_killed_changes_no_bit(tmp_path, caplog, algorithm, encrypt):
    """Another one trains its clients from the round's start; sums that were opened stay opened."""
    settings = [f"algorithm.name={algorithm}", f"exchange.encrypt={encrypt}"]
    one = trained(settings, "sequential")
    job = task(sizes=SIZES, loss=Deadly(tmp_path, call=9), metric="accuracy")
    other = trained(settings, "parallel", job)
    assert len(list(tmp_path.iterdir())) == 1
    (told,) = caplog.messages
    assert re.match(r"round [12]: a worker has died \(exit code -9\); another one trains", told)
    if encrypt == "none":
        require_alike(one, other)
    else:
        assert float((vector(one.model) - vector(other.model)).abs().max()) < 1e-3
        assert one.ledger.entries == other.ledger.entries
        assert [o.name for o in one.openings] == [o.name for o in other.openings]


@pytest.mark.usefixtures("no_hang")
def test_a_worker_that_is_killed_in_a_sum_is_added_once(monkeypatch):
    """The other that takes its place posts anew what has been added, which does not count."""
    settings = ["algorithm.name=fedtan"]
    one = trained(settings, "sequential")
    taken, take = [], SharedRound._take

    def killing(shared, posted):
        take(shared, posted)
        taken.append(posted.client)
        if len(taken) == len(SIZES) + 1:  # the first client of the second sum
            worker = shared._owner[posted.client].worker
            os.kill(worker.pid, signal.SIGKILL)
            with suppress(Gone):
                while True:
                    worker.hear()  # what it had posted is lost with it

    monkeypatch.setattr(SharedRound, "_take", killing)
    require_alike(one, trained(settings, "parallel"))
    assert taken[: 2 * len(SIZES)] == 2 * [f"client-{i}" for i in range(1, 6)]


@pytest.mark.slow
@pytest.mark.usefixtures("no_hang")
def test_a_worker_that_dies_again_and_again_ends_the_run(tmp_path):
    """With the way out; and none is left."""
    job = task(sizes=SIZES[:2], loss=Deadly(tmp_path, call=1, deaths=9), metric="accuracy")
    with pytest.raises(PeerError, match=r'round 1: a worker has died 3 times .*"sequential"'):
        trained(["algorithm.name=fedavg"], "parallel", job, n_workers=1)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 3
    assert not any(alive(pid) for pid in pids)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.usefixtures("no_hang")
def test_what_is_raised_in_a_worker_is_raised():
    """As it is, and no worker is left."""
    before = {process.pid for process in multiprocessing.active_children()}
    job = task(sizes=SIZES[:2], algorithm=Returning(1))
    with pytest.raises(ConfigError, match=r"client\(\) gave a NoneType: it must return"):
        trained([], "parallel", job, n_workers=1)
    assert not [p for p in multiprocessing.active_children() if p.pid not in before]


@pytest.mark.usefixtures("no_hang")
def test_what_is_raised_far_ahead_is_no_death(monkeypatch, caplog):
    """A worker with as many posts as may wait has ended: what it said last is heard."""
    monkeypatch.setattr(worker_process, "MOST_SLOTS", 1)
    job = task(sizes=SIZES, algorithm=Garbling(n_samples=SIZES[4]))  # the last of its worker
    with pytest.raises(AttributeError, match="detach"):
        trained([], "parallel", job)
    assert not caplog.messages


def test_what_no_other_process_can_have_is_refused_before_anything_starts(tmp_path):
    """A lambda as loss: the message says which part it is, and the way out."""
    job = task(sizes=SIZES, loss=lambda output, y: output.sum() * y.sum(), metric="accuracy")
    with pytest.raises(ConfigError, match=r"the loss cannot be given .*module.*\"sequential\""):
        trained([], "parallel", job, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_number_of_workers_needs_an_engine_that_has_some():
    """Not silently ignored."""
    with pytest.raises(ConfigError, match=r'run\.workers = 2 goes with run\.engine = "parallel"'):
        securefl.load_config(None, ["run.engine=sequential", "run.workers=2"])


JOB = """
import securefl
from torch import nn
{net}
config = securefl.load_config(None, [
    "run.rounds=1", "run.engine=parallel", "run.workers=1", "exchange.encrypt=none",
])
print("accuracy", securefl.run(config{task}).accuracy)
"""


def python(*args, **more):
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, timeout=120, check=False, **more
    )


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    """Each worker would run it again."""
    script = tmp_path / "script.py"
    script.write_text(JOB.format(net="", task=""))
    done = python(script)
    assert done.returncode == 1
    assert 'put what the script does under `if __name__ == "__main__":`' in done.stderr
    assert "accuracy" not in done.stdout


def test_a_command_without_a_main_guard_runs():
    """There is nothing for a worker to run again."""
    assert python("-c", JOB.format(net="", task="")).stdout.startswith("accuracy 0.")


def test_a_class_that_was_typed_in_is_refused():
    """No worker could find it."""
    net = "class Net(nn.Linear): pass"
    more = (
        "\nimport torch; d = torch.zeros(4, 3), torch.zeros(4, dtype=int)"
        "\ntask = securefl.Task(nn.Sequential(Net(3, 2), nn.BatchNorm1d(2)), [d] * 3, d)"
    )
    done = python("-c", JOB.format(net=net + more, task=", task"))
    assert "Net is defined in a notebook or at a prompt): define it in a module" in done.stderr


@pytest.mark.parametrize(
    "signal_number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_no_worker_outlives_its_run(tmp_path, signal_number):
    """Neither after Ctrl-C nor where the main process is killed."""
    settings = ["run.rounds=5000", "run.engine=parallel", "run.workers=2", "exchange.encrypt=none"]
    sets = [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(
        [*SECUREFL, "run", *sets, "--out", tmp_path / "run"], stderr=subprocess.PIPE, text=True
    )
    metrics, give_up = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 100
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 2):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = [int(pid) for pid in children.read_text().split()]
    assert len(workers) >= 2
    process.send_signal(signal_number)
    _, stderr = process.communicate(timeout=60)
    if signal_number == signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in stderr
        assert "leaked" not in stderr  # shared memory
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < give_up
        time.sleep(0.05)

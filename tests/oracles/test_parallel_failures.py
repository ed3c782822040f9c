"""Workers die, or are not there: no bit changes, and whoever is at the screen is told."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from by_hand import task
from hired import SIZES, Deadly, Garbling, Returning, require_alike, trained
from interruptible import SECUREFL
from side_by_side import vector
from torch.nn import functional

import securefl
from securefl.errors import ConfigError, PeerError
from securefl.federation.remote import Sites


@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize(
    ("algorithm", "encrypt"),
    [
        ("fedtan", "none"),
        pytest.param("fedavg", "none", marks=pytest.mark.full),
        pytest.param("fedtan", "statistics", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_is_killed_changes_no_bit(tmp_path, caplog, algorithm, encrypt):
    """The round runs again from its start; sums that were opened stay opened."""
    settings = [f"algorithm.name={algorithm}", f"exchange.encrypt={encrypt}"]
    one = trained(settings, "sequential")
    job = task(sizes=SIZES, loss=Deadly(tmp_path, call=9), metric="accuracy")
    other = trained(settings, "parallel", job)
    assert len(list(tmp_path.iterdir())) == 1
    (told,) = caplog.messages
    assert re.match(r"round [12]: a worker has died \(exit code -9\); the round runs again", told)
    if encrypt == "none":
        require_alike(one, other)
    else:
        assert float((vector(one.model) - vector(other.model)).abs().max()) < 1e-6
        assert one.ledger.entries == other.ledger.entries
        assert [o.name for o in one.openings] == [o.name for o in other.openings]
        assert not any(opening.refused for opening in other.openings)


@pytest.mark.usefixtures("no_hang")
def test_a_total_that_was_opened_before_a_worker_died_is_not_opened_again(monkeypatch):
    """The round that runs again is given it, and clients train as if nothing had happened."""
    settings = ["algorithm.name=fedtan", "exchange.encrypt=statistics", "run.rounds=1"]
    one = trained(settings, "sequential")
    names, ask = [], Sites.ask

    def killing(sites, requests, *more):
        names.append({type(request).__name__ for request in requests.values()})
        if len(names) == 3:  # both have sent cards, and are to hear the first sum
            os.kill(sites.transport._transport._workers["1"].pid, signal.SIGKILL)
        return ask(sites, requests, *more)

    monkeypatch.setattr(Sites, "ask", killing)
    other = trained(settings, "parallel")
    assert names[:5] == [{"Ask"}, {"Begin"}, {"Continue"}, {"Begin"}, {"Continue"}]
    assert float((vector(one.model) - vector(other.model)).abs().max()) < 1e-6
    assert one.ledger.entries == other.ledger.entries
    opened = [(o.name, o.signers, o.refused) for o in other.openings]
    assert opened == [(o.name, o.signers, "") for o in one.openings]
    assert not other.incidents


@pytest.mark.slow
@pytest.mark.usefixtures("no_hang")
def test_a_worker_that_dies_again_and_again_ends_the_run(tmp_path):
    """With the way out; and none is left."""
    job = task(sizes=SIZES[:2], loss=Deadly(tmp_path, call=1, deaths=9), metric="accuracy")
    with pytest.raises(PeerError, match=r'round 1: workers have died 3 times .*"sequential"'):
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


def no_label_server(output, y):
    """A loss that asks elsewhere, and is refused in workers."""
    if multiprocessing.parent_process():
        raise PeerError("my label server is gone")
    return functional.cross_entropy(output, y)


@pytest.mark.usefixtures("no_hang")
def test_an_error_of_a_connection_that_a_user_has_is_not_the_workers(caplog):
    """It is raised at once, and nobody is said to have died."""
    job = task(sizes=SIZES[:2], loss=no_label_server, metric="accuracy")
    with pytest.raises(PeerError, match=r"^my label server is gone\n"):
        trained([], "parallel", job, n_workers=1)
    assert not caplog.messages


@pytest.mark.usefixtures("no_hang")
def test_what_is_raised_while_others_wait_is_no_death(caplog):
    """A worker has ended while the other waits in a sum: what it said last is heard."""
    job = task(sizes=SIZES, algorithm=Garbling(n_samples=SIZES[4]))  # the last of its worker
    with pytest.raises(AttributeError, match="detach"):
        trained([], "parallel", job)
    assert not caplog.messages


def test_what_no_other_process_can_have_is_refused_before_anything_starts(tmp_path):
    """An open file in the loss: the message says which part it is, and the way out."""
    with (tmp_path / "log").open("w") as file:
        loss = Logging(file)
        job = task(sizes=SIZES, loss=loss, metric="accuracy")
        refusal = r"the loss cannot be given .*such as an open file.*\"sequential\""
        with pytest.raises(ConfigError, match=refusal):
            trained([], "parallel", job, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@dataclass
class Logging:
    """A loss that writes itself down."""

    file: object

    def __deepcopy__(self, memo):
        return self

    def __call__(self, output, y):
        value = functional.cross_entropy(output, y)
        self.file.write(f"{float(value)}\n")
        return value


@pytest.mark.parametrize("engine", ["auto", "sequential", "vectorised"])
def test_a_number_of_workers_needs_the_engine_that_has_some(engine):
    """Not silently ignored."""
    goes_with = r'run\.workers = 2 goes with run\.engine = "parallel" or "ray"'
    with pytest.raises(ConfigError, match=goes_with):
        securefl.load_config(None, [f"run.engine={engine}", "run.workers=2"])


JOB = """
import securefl
from torch import nn
{net}
config = securefl.load_config(None, [
    "run.rounds=1", "run.engine=parallel", "run.workers=1", "exchange.encrypt=none",
])
print("accuracy", securefl.run(config{task}).accuracy)
"""


OWN = """
import torch
from torch.nn import functional

class Net(nn.Linear):
    pass

d = torch.zeros(4, 3), torch.zeros(4, dtype=int)
model = nn.Sequential(Net(3, 2), nn.BatchNorm1d(2))
loss = lambda output, y: functional.cross_entropy(output, y)
task = securefl.Task(model, [d] * 3, d, loss, metric="accuracy")
"""
"""A class and a lambda that no module has."""


def python(*args, **more):
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, timeout=120, check=False, **more
    )


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    """Each worker would run it again."""
    script = tmp_path / "script.py"
    script.write_text(JOB.format(net=OWN, task=", task"))
    done = python(script)
    assert done.returncode == 1
    assert 'put what the script does under `if __name__ == "__main__":`' in done.stderr
    assert "accuracy" not in done.stdout


def test_what_was_typed_in_crosses():
    """At a prompt, or in a notebook: no main guard is asked for, nothing is there to run again."""
    done = python("-c", JOB.format(net=OWN, task=", task"))
    assert done.stdout.startswith("accuracy "), done.stderr


@pytest.mark.full
def test_what_a_script_defines_crosses(tmp_path):
    """Above its guard."""
    script = tmp_path / "script.py"
    *above, last = JOB.format(net=OWN, task=", task").strip().splitlines()
    script.write_text("\n".join([*above, 'if __name__ == "__main__":', f"    {last}"]))
    done = python(script)
    assert done.stdout.startswith("accuracy "), done.stderr


@pytest.mark.parametrize(
    "signal_number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.full),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
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
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < give_up
        time.sleep(0.05)

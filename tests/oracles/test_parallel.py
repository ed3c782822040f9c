"""Workers make the bits that one process makes, whatever happens to them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from by_hand import task
from hired import Agency, Deadly, Returning, Spoiling, spoilt_loss
from interruptible import SECUREFL
from side_by_side import REFINED, SMALL, vector, with_public

import securefl
from securefl.engines import choice, crossing, parallel, worker_process
from securefl.engines.shared_round import SharedRound
from securefl.errors import ConfigError, Diverged, PeerError

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import FNR, MOMENTA, POLICIES, PRIVACY, SELECTIONS, SERVERS, SOLVERS, reason

SIZES = (5, 9, 14, 8, 6)


@pytest.fixture(scope="module")
def agency():
    """Two workers for all tests that none of them dies in."""
    lender = Agency()
    yield lender
    lender.close()


@pytest.fixture
def lent(agency, monkeypatch):
    """Runs take the agency's workers."""
    agency.at_work.clear()
    monkeypatch.setattr(parallel, "WorkerProcess", agency)
    return agency


@pytest.fixture
def one_by_one(monkeypatch):
    """Within a worker, clients train one after the other, though these models need not."""
    monkeypatch.setattr(choice, "_slower", lambda _clients: "a test wants the same bits")


def trained(settings, engine, job=None, n_workers=2, **more):
    """What a run leaves."""
    chosen = [f"run.engine={engine}"]
    if engine == "parallel":
        chosen.append(f"run.workers={n_workers}")
    config = securefl.load_config(None, [*SMALL, *settings, *chosen])
    return securefl.run(config, job or task(sizes=SIZES), **more)


def require_same_bits(settings, job=None, agency=None):
    """Model, metrics, messages and incidents."""
    one = trained(settings, "sequential", job)
    if agency:
        agency.at_work.clear()
    other = trained(settings, "parallel", job)
    require_alike(one, other)
    return other


def require_alike(one, other):
    assert torch.equal(vector(one.model), vector(other.model))
    assert [m.loss for m in one.metrics] == [m.loss for m in other.metrics]
    assert one.ledger.entries == other.ledger.entries
    assert one.incidents == other.incidents
    assert one.turnouts == other.turnouts


USUAL = POLICIES["fedavg"], SOLVERS["sgd"], SERVERS["average"], MOMENTA["reset"]


def combination(number, choice_):
    """The usual settings, but for one axis."""
    return [s for i, part in enumerate(USUAL) for s in (choice_ if i == number else part)]


ONE_AXIS = {
    f"{name}": combination(number, axis[name])
    for number, axis in enumerate((POLICIES, SOLVERS, SERVERS, MOMENTA))
    for name in axis
}


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("name", ONE_AXIS)
def test_workers_make_the_same_bits(lent, name):
    """Each normalisation, solver, server optimiser and way with momentum."""
    require_same_bits(ONE_AXIS[name], agency=lent)


def test_convolutions_make_the_same_bits(lent):
    """In single precision, whose fastest layout a client's momentum has too."""
    job = task("cnn")
    clients = [(x.float(), y) for x, y in job.clients]
    x, y = job.test
    job = replace(job, model=job.model.float(), clients=clients, test=(x.float(), y))
    settings = ["algorithm.name=fedbn", "solver.name=scaffold", *MOMENTA["local"]]
    require_same_bits(settings, job, agency=lent)


@pytest.mark.slow
@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_workers_make_the_same_bits_in_all_combinations(lent, policy, solver):
    """All normalisations, solvers, servers and momenta that go together."""
    for server in SERVERS:
        for momentum in MOMENTA:
            parts = POLICIES[policy], SOLVERS[solver], SERVERS[server], MOMENTA[momentum]
            if not any(reason(*pair) for pair in combinations(parts, 2)):
                require_same_bits([s for part in parts for s in part], agency=lent)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("name", ["random", "random, full", "random, with replacement", "afl"])
def test_workers_train_who_is_selected(lent, name):
    """Whichever workers they are with."""
    fraction = "selection.fraction=0.6"
    settings = [*SELECTIONS[name], "algorithm.name=fedavg", "run.rounds=6", fraction]
    require_same_bits(settings, agency=lent)


@pytest.mark.usefixtures("one_by_one", "uncounted")
@pytest.mark.parametrize("level", ["record", "client"])
def test_workers_add_the_same_seeded_noise(lent, level):
    """Differential privacy is the clients' own, with noise that a test can repeat."""
    noise = ("privacy.noise=seeded", "privacy.sigma=1.0")
    settings = ["algorithm.name=fedavg", *PRIVACY[level], *noise, "run.rounds=2"]
    job = task(norm="group", sizes=(120, 110, 104, 100))
    require_same_bits(settings, job, agency=lent)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("name", [name for name in FNR if name != "none"])
def test_workers_refine_alike(lent, name):
    """FNR-FL, whose clients have public samples too."""
    x, y = task(sizes=(40,)).clients[0]
    job = task(sizes=(24, 30, 36, 24), public=(x + 1, y))
    settings = ["algorithm.name=fedavg", *FNR[name], "fnr.batch_size=16", "train.lr=0.01"]
    if reason(*[tuple(settings)]):
        pytest.skip("needs more")
    require_same_bits(settings, job, agency=lent)


@pytest.mark.parametrize("sizes", [SIZES, (5, 9, 5, 9, 9, 9, 5, 14, 9, 9, 9, 5)])
@pytest.mark.parametrize("settings", [["algorithm.name=fedavg"], ["algorithm.name=fedtan"]])
def test_clients_of_a_worker_can_be_side_by_side(lent, monkeypatch, sizes, settings):
    """Within rounding; also where workers finish them in another order than they are added in."""
    monkeypatch.setattr(worker_process, "MOST_SLOTS", 2)
    one = trained(settings, "sequential", task(sizes=sizes))
    other = trained(settings, "parallel", task(sizes=sizes))
    torch.testing.assert_close(vector(one.model), vector(other.model), rtol=1e-9, atol=1e-10)
    assert one.ledger.entries == other.ledger.entries


@pytest.mark.parametrize("n_workers", [1, 2, 3])
@pytest.mark.parametrize("settings", [["algorithm.name=fedavg"], ["algorithm.name=fedtan"]])
def test_clients_of_a_worker_can_be_refined_side_by_side(lent, settings, n_workers):
    """The weakest of all workers' clients, however many of them one worker has."""
    job, refined = with_public(task(sizes=(*SIZES, 7, 11))), [*settings, *REFINED]
    one = trained(refined, "sequential", job)
    said = []
    other = trained(refined, "parallel", job, n_workers, on_start=said.append)
    assert said[0].endswith("clients of each side by side")
    torch.testing.assert_close(vector(one.model), vector(other.model), rtol=1e-9, atol=1e-10)
    assert one.ledger.entries == other.ledger.entries
    plain = trained(settings, "sequential", job)
    assert not torch.allclose(vector(one.model), vector(plain.model))


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("solver", ["sgd", "scaffold"])
def test_a_worker_waits_for_room(lent, monkeypatch, solver):
    """With two slots for six clients of each worker, and with no shared memory at all."""
    monkeypatch.setattr(worker_process, "MOST_SLOTS", 2)
    job = task(sizes=(5, 9, 5, 9, 9, 9, 5, 14, 9, 9, 9, 5))
    settings = ["algorithm.name=fedavg", f"solver.name={solver}"]
    require_same_bits(settings, job, agency=lent)
    monkeypatch.setattr(crossing.Block, "made", lambda _n_bytes: None)
    require_same_bits(settings, job, agency=lent)


@pytest.mark.usefixtures("one_by_one")
def test_a_sum_in_the_middle_of_a_round_is_added_as_it_comes(lent, monkeypatch):
    """Of each worker's six clients one message waits, and no more, whoever is faster."""
    monkeypatch.setattr(worker_process, "MOST_SLOTS", 1)
    waiting, add = [], SharedRound._add_posted

    def noted(shared):
        waiting.extend(len(part.posted) for part in shared._parts)
        add(shared)

    monkeypatch.setattr(SharedRound, "_add_posted", noted)
    job = task(sizes=(5, 9, 5, 9, 9, 9, 5, 14, 9, 9, 9, 5))
    require_same_bits(["algorithm.name=fedtan"], job, agency=lent)
    assert max(waiting) == 1


@pytest.mark.parametrize(
    ("encrypt", "algorithm"),
    [("statistics", "fedtan"), ("statistics", "fedavg"), ("model", "fedavg")],
)
def test_workers_seal_and_sign(lent, encrypt, algorithm):
    """Totals differ by the openings' own noise; the messages are the same, to the byte."""
    settings = [f"exchange.encrypt={encrypt}", f"algorithm.name={algorithm}"]
    one, other = (trained(settings, engine) for engine in ("sequential", "parallel"))
    assert float((vector(one.model) - vector(other.model)).abs().max()) < 1e-3
    assert one.ledger.entries == other.ledger.entries
    signers = [[(o.name, o.signers, o.refused) for o in run.openings] for run in (one, other)]
    assert signers[0] == signers[1] != []


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("encrypt", ["none", "model"])
def test_a_client_whose_values_are_refused_is_left_out_alike(lent, encrypt):
    """The round goes on with the others."""
    job = task(sizes=SIZES, algorithm=Spoiling(n_samples=9))
    settings = ["algorithm.name=fedavg", f"exchange.encrypt={encrypt}"]
    one, other = (trained(settings, engine, job) for engine in ("sequential", "parallel"))
    assert one.incidents == other.incidents
    assert [m.dropped for m in other.metrics] == [(), ("client-2",), ()]


@pytest.mark.usefixtures("one_by_one")
def test_a_client_that_leaves_in_a_sum_is_left_out_alike(lent):
    """A loss of NaN shows in the gradients of the statistics; both clients of one worker leave."""
    job = task(sizes=SIZES, loss=spoilt_loss)
    clients = [(x, y.clamp_max(1) + (i in {1, 3}) * 9) for i, (x, y) in enumerate(job.clients)]
    clients = [(x, y.where(y < 9, torch.tensor(2))) for x, y in clients]
    other = require_same_bits(["algorithm.name=fedtan"], replace(job, clients=clients), agency=lent)
    assert other.metrics[0].dropped == ("client-2", "client-4")


@pytest.mark.usefixtures("one_by_one")
def test_workers_resume_with_the_same_bits(lent, tmp_path):
    """What clients remember is in the main process, and so in the checkpoint."""
    settings = ["algorithm.name=fedavg", "solver.name=feddyn", "run.rounds=4"]
    one, job = trained(settings, "sequential"), task(sizes=SIZES)

    def stop(metrics):
        if metrics.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(settings, "parallel", job, out=tmp_path / "run", on_round=stop)
    lent.at_work.clear()
    other = securefl.resume(tmp_path / "run", job)
    assert torch.equal(vector(one.model), vector(other.model))


# From here on workers die, or are not there.


@pytest.mark.usefixtures("one_by_one", "no_hang")
@pytest.mark.parametrize(
    ("algorithm", "encrypt"),
    [
        ("fedtan", "none"),
        pytest.param("fedavg", "none", marks=pytest.mark.slow),
        pytest.param("fedtan", "statistics", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_is_killed_changes_no_bit(tmp_path, algorithm, encrypt):
    """Another one trains its clients from the round's start; sums that were opened stay opened."""
    settings = [f"algorithm.name={algorithm}", f"exchange.encrypt={encrypt}"]
    one = trained(settings, "sequential")
    job = task(sizes=SIZES, loss=Deadly(tmp_path, call=9))
    other = trained(settings, "parallel", job)
    assert len(list(tmp_path.iterdir())) == 1
    if encrypt == "none":
        require_alike(one, other)
    else:
        assert float((vector(one.model) - vector(other.model)).abs().max()) < 1e-3
        assert one.ledger.entries == other.ledger.entries
        assert [o.name for o in one.openings] == [o.name for o in other.openings]


@pytest.mark.usefixtures("one_by_one", "no_hang")
def test_a_worker_that_is_killed_in_a_sum_is_added_once(monkeypatch):
    """The other that takes its place posts anew what has been added, which does not count."""
    settings = ["algorithm.name=fedtan"]
    one = trained(settings, "sequential")
    taken, take = [], SharedRound._take

    def killing(shared, posted):
        take(shared, posted)
        taken.append(posted.client)
        if len(taken) == len(SIZES) + 1:  # the first client of the second sum
            os.kill(shared._owner[posted.client].worker.pid, signal.SIGKILL)

    monkeypatch.setattr(SharedRound, "_take", killing)
    require_alike(one, trained(settings, "parallel"))
    assert taken[: 2 * len(SIZES)] == 2 * [f"client-{i}" for i in range(1, 6)]


@pytest.mark.slow
@pytest.mark.usefixtures("one_by_one", "no_hang")
def test_a_worker_that_dies_again_and_again_ends_the_run(tmp_path):
    """With the way out; and none is left."""
    job = task(sizes=SIZES[:2], loss=Deadly(tmp_path, call=1, deaths=9))
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


def test_training_that_diverges_in_workers_says_so(lent):
    """As in one process."""
    with pytest.raises(Diverged, match=r"no client's values can be used"):
        trained(["algorithm.name=fedavg", "train.lr=1e38", "algorithm.local_steps=9"], "parallel")


def test_what_no_other_process_can_have_is_refused_before_anything_starts(tmp_path):
    """A lambda as loss: the message says which part it is, and the way out."""
    job = task(sizes=SIZES, loss=lambda output, y: output.sum() * y.sum())
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

"""Workers make the bits that one process makes, whatever happens to them."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from by_hand import task
from hired import SIZES, Agency, Spoiling, require_alike, require_same_bits, spoilt_loss, trained
from pairs import each, marked
from side_by_side import vector

import securefl
from securefl.errors import Diverged
from securefl.models.build import build_model
from securefl.runs.session import torch_threads
from securefl.simulation.processes import worker_process

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import FNR, MOMENTA, POLICIES, PRIVACY, SELECTIONS, SERVERS, SOLVERS, reason


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
    monkeypatch.setattr(worker_process, "WorkerProcess", agency)
    return agency


USUAL = POLICIES["fedavg"], SOLVERS["sgd"], SERVERS["average"], MOMENTA["reset"]


def combination(number, choice_):
    """The usual settings, but for one axis."""
    return [s for i, part in enumerate(USUAL) for s in (choice_ if i == number else part)]


AXES = POLICIES, SOLVERS, SERVERS, MOMENTA
FEW = each(AXES, product(*AXES))
ONE_AXIS = {
    name: combination(number, axis[name]) for number, axis in enumerate(AXES) for name in axis
}


@pytest.mark.full
@pytest.mark.parametrize("name", ONE_AXIS)
def test_workers_make_the_same_bits_of_the_usual_but_for_one(lent, name):
    """Each normalisation, solver, server optimiser and way with momentum."""
    require_same_bits(ONE_AXIS[name], agency=lent)


@pytest.mark.parametrize(("policy", "solver", "server", "momentum"), marked(FEW, FEW))
def test_workers_make_the_same_bits(lent, policy, solver, server, momentum):
    """Each normalisation, solver, server optimiser and way with momentum, in few products."""
    names = policy, solver, server, momentum
    settings = [s for axis, name in zip(AXES, names, strict=True) for s in axis[name]]
    require_same_bits(settings, agency=lent)


def test_convolutions_make_the_same_bits(lent):
    """In single precision, whose fastest layout a client's momentum has too."""
    job = task("cnn")
    clients = [(x.float(), y) for x, y in job.clients]
    x, y = job.test
    job = replace(job, model=job.model.float(), clients=clients, test=(x.float(), y))
    settings = ["algorithm.name=fedbn", "solver.name=scaffold", *MOMENTA["local"]]
    require_same_bits(settings, job, agency=lent)


@pytest.mark.parametrize(
    ("n_threads", "algorithm"), [pytest.param(1, "fedavg", marks=pytest.mark.full), (2, "fedtan")]
)
def test_as_many_threads_make_the_same_bits(n_threads, algorithm):
    """Of sums that torch shares among threads, which are others with one and with two."""
    x = torch.randn(512, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    y = torch.arange(512) % 4
    clients = [(x[i::4], y[i::4]) for i in range(4)]
    job = securefl.Task(
        build_model("cnn", "batch", in_channels=3, n_features=192, n_classes=4), clients, (x, y)
    )
    with torch_threads(3):  # of the caller's, which are its own again
        settings = [f"algorithm.name={algorithm}", "train.batch_size=128"]
        one = trained([*settings, f"run.threads={n_threads}"], "sequential", job)
        other = trained([*settings, f"run.threads={n_threads}"], "parallel", job)
        assert torch.get_num_threads() == 3
    require_alike(one, other)
    others = trained([*settings, f"run.threads={3 - n_threads}"], "sequential", job)
    assert not torch.equal(vector(one.model), vector(others.model))


STEPPED = {name: SERVERS[name] for name in ("average", "fednova")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "solver", "server", "momentum"),
    marked(product(POLICIES, SOLVERS, STEPPED, MOMENTA), few=()),
)
def test_workers_make_the_same_bits_in_all_combinations(lent, policy, solver, server, momentum):
    """All normalisations, solvers and momenta; of the server optimisers, clients know FedNova.

    The others step from totals, whoever has trained; each has a run above.
    """
    parts = POLICIES[policy], SOLVERS[solver], SERVERS[server], MOMENTA[momentum]
    if any(reason(*pair) for pair in combinations(parts, 2)):
        pytest.skip("refused together")
    require_same_bits([s for part in parts for s in part], agency=lent)


@pytest.mark.parametrize("name", ["random", "random, full", "random, with replacement", "afl"])
def test_workers_train_who_is_selected(lent, name):
    """Whichever workers they are with."""
    fraction = "selection.fraction=0.6"
    settings = [*SELECTIONS[name], "algorithm.name=fedavg", "run.rounds=6", fraction]
    require_same_bits(settings, agency=lent)


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("level", ["record", "client"])
def test_workers_add_the_same_seeded_noise(lent, level):
    """Differential privacy is the clients' own, with noise that a test can repeat."""
    noise = ("privacy.noise=seeded", "privacy.sigma=1.0")
    settings = ["algorithm.name=fedavg", *PRIVACY[level], *noise, "run.rounds=2"]
    job = task(norm="group", sizes=(120, 110, 104, 100))
    require_same_bits(settings, job, agency=lent)


@pytest.mark.parametrize("name", [name for name in FNR if name != "none"])
def test_workers_refine_alike(lent, name):
    """FNR-FL, whose clients have public samples too."""
    x, y = task(sizes=(40,)).clients[0]
    job = task(sizes=(24, 30, 36, 24), public=(x + 1, y))
    settings = ["algorithm.name=fedavg", *FNR[name], "fnr.batch_size=16", "train.lr=0.01"]
    if reason(*[tuple(settings)]):
        pytest.skip("needs more")
    require_same_bits(settings, job, agency=lent)


@pytest.mark.parametrize(
    ("encrypt", "algorithm"),
    [("statistics", "fedtan"), ("statistics", "fedavg"), ("model", "fedavg")],
)
def test_workers_seal_and_sign(lent, encrypt, algorithm):
    """Totals differ by the noise of sealing; the messages are as many and as long."""
    settings = [f"exchange.encrypt={encrypt}", f"algorithm.name={algorithm}"]
    one, other = (trained(settings, engine) for engine in ("sequential", "parallel"))
    assert float((vector(one.model) - vector(other.model)).abs().max()) < 1e-6
    assert one.ledger.entries == other.ledger.entries
    signers = [[(o.name, o.signers, o.refused) for o in run.openings] for run in (one, other)]
    assert signers[0] == signers[1] != []


@pytest.mark.parametrize("encrypt", ["none", "model"])
def test_a_client_whose_values_are_refused_is_left_out_alike(lent, encrypt):
    """The round goes on with the others."""
    job = task(sizes=SIZES, algorithm=Spoiling(n_samples=9))
    settings = ["algorithm.name=fedavg", f"exchange.encrypt={encrypt}"]
    one, other = (trained(settings, engine, job) for engine in ("sequential", "parallel"))
    assert one.incidents == other.incidents
    assert [m.dropped for m in other.metrics] == [(), ("client-2",), ()]


@pytest.mark.parametrize(
    ("n_clients", "n_workers", "lost"),
    [(6, 2, (1, 3, 5)), pytest.param(3, 3, (1,), marks=pytest.mark.full)],
)
def test_a_worker_whose_clients_have_all_left_in_a_sum_goes_on(n_clients, n_workers, lost):
    """Nobody is left at it who could ask for the next one; the others' round is whole."""
    job = task(sizes=(10,) * n_clients)
    for i in lost:
        x, _ = job.clients[i]
        x.copy_(1.5e308 * x.sign())  # finite, and no sum of it is
    settings = ["algorithm.name=fedtan", "algorithm.weights=uniform", "run.rounds=2"]
    one = trained(settings, "sequential", job)
    other = trained(settings, "parallel", job, n_workers)
    torch.testing.assert_close(vector(one.model), vector(other.model), rtol=1e-9, atol=1e-10)
    # Which of its values overflows first depends on how they are added up.
    incidents = [[(i.round, i.name, i.client) for i in run.incidents] for run in (one, other)]
    assert incidents[0] == incidents[1]
    assert {i.client for i in other.incidents} == {f"client-{i + 1}" for i in lost}


def test_a_client_that_leaves_in_a_sum_is_left_out_alike(lent):
    """A loss of NaN shows in the gradients of the statistics; both clients of one worker leave."""
    job = task(sizes=SIZES, loss=spoilt_loss, metric="accuracy")
    clients = [(x, y.clamp_max(1) + (i in {1, 3}) * 9) for i, (x, y) in enumerate(job.clients)]
    clients = [(x, y.where(y < 9, torch.tensor(2))) for x, y in clients]
    other = require_same_bits(["algorithm.name=fedtan"], replace(job, clients=clients), agency=lent)
    assert other.metrics[0].dropped == ("client-2", "client-4")


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


def test_training_that_diverges_in_workers_says_so(lent):
    """As in one process."""
    with pytest.raises(Diverged, match=r"no client's values can be used"):
        trained(["algorithm.name=fedavg", "train.lr=1e38", "algorithm.local_steps=9"], "parallel")

"""FNR-FL by settings: what fnr.name wraps, whose the public set is, and what the wire tells."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import securefl
from securefl.algorithms.federated import Federated
from securefl.algorithms.fnr import FNR
from securefl.algorithms.public_training import PublicData
from securefl.data.samples import samples
from securefl.errors import ConfigError, DataError, TooFewContributions
from securefl.settings.load import load_config

SMALL = (
    "run.rounds=2",
    "algorithm.name=fedavg",
    "algorithm.local_steps=2",
    "train.batch_size=8",
    "train.lr=0.1",
    "exchange.encrypt=none",
)


def some(n, seed, n_classes=3):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=rng), torch.arange(n) % n_classes


def task(n_clients=5, **changes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    clients = [some(16, seed) for seed in range(n_clients)]
    job = securefl.Task(model, clients, some(16, 90), public=some(18, 91))
    return replace(job, **changes)


def run(*settings, job=None, **arguments):
    config = securefl.load_config(None, [*SMALL, *settings])
    return securefl.run(config, job or task(), **arguments)


def vector(model):
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


# --- what the settings mean ---


def test_literal_is_no_penalty_bit_for_bit():
    """What is printed trains as λ = 0; `matched` and `server` train otherwise, and `none` too."""
    models = [
        vector(run(*settings).model)
        for settings in (
            ["fnr.name=literal", "fnr.strength=0.5"],
            ["fnr.name=matched", "fnr.strength=0.0"],
            ["fnr.name=matched", "fnr.strength=0.5"],
            ["fnr.name=server"],
            ["fnr.name=none"],
        )
    ]
    assert torch.equal(models[0], models[1])
    others = models[1:]
    assert not any(torch.equal(a, b) for i, a in enumerate(others) for b in others[:i])


@pytest.mark.parametrize("name", ["matched", "literal", "server"])
@pytest.mark.parametrize("encrypt", ["statistics", "model"])
def test_encrypted_equals_plain(name, encrypt, key_set):
    """To the last digits of float32, with the same settings but for the encryption."""
    settings = [f"fnr.name={name}", "fnr.epochs=2", "run.rounds=3"]
    plain = run(*settings)
    sealed = run(*settings, f"exchange.encrypt={encrypt}", keys=key_set)
    assert sealed.openings
    assert (vector(plain.model) - vector(sealed.model)).abs().max() < 1e-5


@pytest.mark.parametrize(
    "setting", ["fnr.share=0.4", "fnr.strength=2.0", "fnr.epochs=1", "fnr.batch_size=5"]
)
def test_every_key_is_read(setting):
    """Each changes the model that comes out."""
    base, other = run("fnr.name=matched"), run("fnr.name=matched", setting)
    assert not torch.equal(vector(base.model), vector(other.model))


def test_the_public_batches_follow_the_runs_seed():
    """`server` alone, so that clients' batches differ in nothing but the public ones' order."""
    orders = [securefl.load_config(None, [*SMALL, f"run.seed={seed}"]).run.seed for seed in (0, 1)]
    data = [PublicData(samples(some(18, 91), "public"), 32, 1, seed) for seed in orders]
    first, second = (next(d.batches(0, torch.device("cpu")))[1].tolist() for d in data)
    assert first != second


@pytest.mark.parametrize("name", ["matched", "literal", "server"])
def test_without_public_samples_there_is_no_refinement(name, tmp_path):
    """The message says how to give some, and nothing was written."""
    with pytest.raises(ConfigError, match=rf'"{name}" .*Task\(public=\(x, y\)\); or set'):
        run(f"fnr.name={name}", job=task(public=None), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_algorithm_of_ones_own_is_not_wrapped():
    """[fnr] is of the settings' algorithm, as [solver] is."""
    own = task(algorithm=Federated())
    plain = run(job=own).model
    assert torch.equal(vector(run("fnr.name=matched", job=own).model), vector(plain))


@pytest.mark.parametrize(
    ("settings", "n_clients"),
    [
        (["fnr.share=0.1"], 5),
        (["fnr.share=0.6"], 5),
        (["fnr.share=0.3"], 3),
        (["selection.name=random", "selection.fraction=0.3"], 10),
    ],
)
def test_too_few_clients_are_refused_before_anything_is_written(settings, n_clients, tmp_path):
    """Of three clients, or of ten by thirds, none can be refined."""
    with pytest.raises(ConfigError, match=r"fnr\.share = .*: of \d clients \d are refined"):
        run("fnr.name=matched", *settings, job=task(n_clients), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def diverging(n, n_clients=5):
    """Clients of whom the first `n` end their local steps with NaN."""
    clients = [some(16, seed) for seed in range(n_clients)]
    return [(torch.full_like(x, 1e30), y) if i < n else (x, y) for i, (x, y) in enumerate(clients)]


def test_a_client_that_diverges_leaves_the_round():
    """It is refused and written down; of the other four one is refined."""
    result = run("fnr.name=matched", job=task(clients=diverging(1)))
    assert {incident.client for incident in result.incidents} == {"client-1"}
    assert "fnr/accuracies" in {incident.name for incident in result.incidents}
    assert torch.isfinite(vector(result.model)).all()
    assert not torch.equal(vector(result.model), vector(run(job=task(clients=diverging(1))).model))


def test_a_round_that_lost_too_many_stops_the_run():
    """Two of five clients diverge: of three none can be refined."""
    with pytest.raises(TooFewContributions, match="of 3 clients 0 are refined"):
        run("fnr.name=matched", job=task(clients=diverging(2)))


# --- whose the public set is ---


def overlapping(**changes):
    """Task fields in which someone holds the third public sample."""
    public = some(18, 91)
    x, y = some(16, 7)
    x[5] = public[0][2]
    return {name: make((x, y)) for name, make in changes.items()}


@pytest.mark.parametrize(
    ("field", "owner"),
    [
        ({"clients": lambda data: [*(some(16, s) for s in range(4)), data]}, "1 of client-5"),
        ({"test": lambda data: data}, "1 of the test data"),
        ({"test": lambda data: TensorDataset(*data)}, "1 of the test data"),
        (
            {"client_tests": lambda data: [data, *(some(16, 20 + s) for s in range(4))]},
            "1 of the test data of client-1",
        ),
        ({"external": lambda data: {"fog": data}}, "1 of the external client fog"),
    ],
)
@pytest.mark.parametrize("fnr", ["none", "matched", "server"])
def test_a_public_sample_that_someone_holds_is_refused(field, owner, fnr, tmp_path):
    """By content, on every run that has a public set, whether or not it reads it."""
    with pytest.raises(DataError, match=owner):
        run(f"fnr.name={fnr}", job=task(**overlapping(**field)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_test_set_is_no_public_set():
    """Also where the user's own algorithm brings it, as published FNR-FL code does."""
    job = task()
    own = FNR(Federated(), PublicData(samples(job.test, "test")), 0.3)
    with pytest.raises(DataError, match="16 of the test data"):
        run(job=replace(job, algorithm=own, public=None))


# --- encryption ---


@pytest.mark.parametrize("name", ["matched", "literal"])
def test_a_model_without_bn_has_statistics_to_encrypt_with_fnr(name, key_set):
    """Histograms and class norms are sealed; the server's own training sends none."""
    job = task(model=securefl.convert_norm(task().model, "layer"))
    sealed = run(f"fnr.name={name}", "exchange.encrypt=statistics", job=job, keys=key_set)
    assert {e.name for e in sealed.ledger.entries if e.form == "ciphertext"} == {
        "card",
        "fnr/accuracies",
        "fnr/confidences",
        "fnr/norms",
    }
    for other in ("none", "server"):
        with pytest.raises(ConfigError, match="nothing would be encrypted"):
            run(f"fnr.name={other}", "exchange.encrypt=statistics", job=job)


def test_fedbn_has_statistics_to_encrypt_with_fnr():
    """Its own stay with the clients."""
    base = ["algorithm.name=fedbn", "exchange.encrypt=statistics"]
    securefl.load_config(None, [*base, "fnr.name=matched"])
    for other in ("none", "server"):
        with pytest.raises(ConfigError, match="statistics stay with the clients"):
            securefl.load_config(None, [*base, f"fnr.name={other}"])


@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan", "fedbn", "static-bn"])
@pytest.mark.parametrize("solver", ["sgd", "scaffold"])
def test_no_message_tells_who_is_refined(algorithm, solver, key_set):
    """With encrypt = "model" every client sends the same messages of the same size, sealed."""
    settings = [f"algorithm.name={algorithm}", f"solver.name={solver}", "exchange.encrypt=model"]
    result = run("fnr.name=matched", *settings, keys=key_set)
    sent = {}
    for e in result.ledger.entries:
        if e.receiver == "server" and e.sender != "authority":
            sent.setdefault(e.sender, []).append((e.round, e.exchange, e.name, e.form, e.bytes))
    first, *others = sent.values()
    assert len(sent) == 5
    assert all(one == first for one in others)
    assert {form for _, _, _, form, _ in first} == {"ciphertext"}
    assert not result.incidents


def test_refinement_takes_simulated_time():
    """Nobody may know who is refined, so every client counts p E_re passes over the public set."""
    devices = ("devices.preset=emnist", "fnr.name=matched")
    short, long = (run(*devices, f"fnr.epochs={n}").participants[0] for n in (5, 30))
    table = load_config(settings=["devices.preset=emnist"]).devices.specification
    cycles = 0.3 * 25 * 18 * table.bits_per_sample * table.cycles_per_bit
    assert 0 < long.simulated_s - short.simulated_s < cycles / 1e8
    slowest = cycles / (long.simulated_s - short.simulated_s) / 1e9
    assert 0.2 < slowest < 1.6  # GHz, of N(1, 0.2²)


@pytest.mark.parametrize(
    "public",
    [
        (torch.randn(18, 5), torch.arange(18) % 3),
        (torch.arange(72).reshape(18, 4), torch.arange(18) % 3),
    ],
    ids=["wider", "of another type"],
)
@pytest.mark.parametrize("reader", ["fnr.name=matched", "selection.name=fedprof"])
def test_public_samples_of_another_form_are_refused(public, reader):
    """The message shows both forms."""
    message = r"a public sample is \([45],\) of torch\.(float32|int64), and one of client-1 \(4,\)"
    with pytest.raises(DataError, match=message):
        run(reader, job=task(public=public))


def test_qualities_are_named_for_each_client_or_for_none():
    """A name for some would leave the pictures wrong."""
    with pytest.raises(ConfigError, match="3 qualities for 5 clients"):
        run(job=task(qualities=["good"] * 3))

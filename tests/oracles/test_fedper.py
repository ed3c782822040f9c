"""FedPer and layers kept by name against a loop written by hand, and where its shared part ends."""

from __future__ import annotations

import copy
from statistics import fmean

import by_hand
import pytest
import quadratic
import torch
from torch import nn

import securefl
from securefl.errors import ConfigError, DataError
from securefl.models.build import build_model
from securefl.runs.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("quick")

ROUNDS, E = 5, 3
HEAD = ("3.weight", "3.bias")
BN = ("1.weight", "1.bias", "1.running_mean", "1.running_var")
KEPT = {
    "the head": ((), HEAD),
    "the head by name": (('algorithm.layers=["3"]',), HEAD),
    "BN and a bias": (('algorithm.layers=["1", "3.bias"]',), (*BN, "3.bias")),
    "all biases": (('algorithm.layers=["*.bias"]',), ("0.bias", "1.bias", "3.bias")),
}
SOME = ("selection.name=random", "selection.fraction=0.5")


def config(*settings, rounds=ROUNDS):
    return by_hand.config(
        "algorithm.name=fedper",
        f"algorithm.local_steps={E}",
        "algorithm.weights=samples",
        *settings,
        rounds=rounds,
    )


def loop(job, kept, present):
    """The global model and each client's own tensors, of rounds with these clients by number."""
    model = copy.deepcopy(job.model)
    start = by_hand.averaged(model)
    own = [{name: start[name] for name in kept} for _ in job.clients]
    for done, numbers in enumerate(present):
        ends = []
        for i in numbers:
            local = copy.deepcopy(model)
            local.load_state_dict(own[i], strict=False)
            local.train()
            by_hand.steps(local, by_hand.sgd(local, 0.0), by_hand.batches(job, done, i, E))
            ends.append(by_hand.averaged(local))
            own[i] = {name: ends[-1][name] for name in kept}
        sizes = [len(job.clients[i][1]) for i in numbers]
        mean = by_hand.mean([n / sum(sizes) for n in sizes], ends)
        model.load_state_dict({n: v for n, v in mean.items() if n not in kept}, strict=False)
    return model, own


def numbers_in(result):
    """Each round's clients, counted from zero."""
    return [
        [int(name.rpartition("-")[2]) - 1 for name in each.selected] for each in result.participants
    ]


@pytest.mark.parametrize("some", [(), SOME], ids=["all", "half"])
@pytest.mark.parametrize("name", KEPT)
def test_kept_layers_are_each_clients_own_and_the_rest_is_averaged(tmp_path, name, some):
    """Five rounds of three steps of clients of unequal size, of all or of a random half."""
    settings, kept = KEPT[name]
    job = by_hand.task("mlp")
    result = securefl.run(config(*settings, *some), job, out=tmp_path / "run")
    present = numbers_in(result)
    assert [len(of) for of in present] == [2 if some else 4] * ROUNDS
    expected, own = loop(job, kept, present)
    assert by_hand.largest_difference(result.model, expected) < 1e-12
    client_states = Checkpoint.read(tmp_path / "run" / "checkpoint.safetensors").client_states
    for i in {i for of in present for i in of}:
        found = client_states[f"client-{i + 1}"].own
        assert found.keys() == set(kept)
        for key, value in own[i].items():
            torch.testing.assert_close(found[key], value, atol=1e-12, rtol=1e-12)
    for key in kept:  # the global one is the first model's
        assert torch.equal(result.model.state_dict()[key], job.model.state_dict()[key])
    x, y = job.test
    scores = []
    for tensors in own:
        local = copy.deepcopy(expected)
        local.load_state_dict(tensors, strict=False)
        scores.append(float((local.eval()(x).argmax(1) == y).double().mean()))
    assert result.accuracy == pytest.approx(fmean(scores))


def test_fedper_of_all_of_bn_is_fedbn():
    """Bit for bit: client-specific BN is layers kept by name."""
    found, fedbn = (
        securefl.run(config(*settings), by_hand.task("mlp"))
        for settings in (['algorithm.layers=["1"]'], ["algorithm.name=fedbn"])
    )
    assert by_hand.largest_difference(found.model, fedbn.model) == 0
    for one, other in zip(found.client_models.values(), fedbn.client_models.values(), strict=True):
        assert by_hand.largest_difference(one, other) == 0


@pytest.mark.parametrize("kind", ["parameters", "statistics"])
def test_kept_layers_never_travel(kind):
    """Not up in any round, nor down after the first model; all else does."""
    job = by_hand.task("mlp")
    n = {key: value.numel() for key, value in by_hand.averaged(job.model).items()}
    result = securefl.run(config(), job)
    of_kind = {key for key in n if ("running" in key) == (kind == "statistics")}
    travelling = {sum(n[key] for key in of_kind - set(HEAD))}
    for number in range(1, ROUNDS + 1):
        up, down = by_hand.sent_values(result, kind, number)
        assert up == travelling
        assert down == ({sum(n[key] for key in of_kind)} if number == 1 else travelling)


class Halves(nn.Module):
    """Two linear maps of the same input, one beside the other: a loss of both is separable."""

    def __init__(self, start):
        super().__init__()
        self.shared, self.own = copy.deepcopy(start), copy.deepcopy(start)

    def forward(self, x):
        return torch.cat([self.shared(x), self.own(x)], dim=1)


def separable(output, y):
    """f_i(w) + f_i(u)."""
    shared, own = output.chunk(2, dim=1)
    return quadratic.least_squares(shared, y) + quadratic.least_squares(own, y)


@pytest.mark.parametrize("steps", [1, 6])
def test_on_a_separable_quadratic_both_parts_end_where_they_should(steps):
    """The shared part at FedAvg's fixed point, for one step the minimiser; own ones at b_i."""
    job, lr = quadratic.task(), 0.4
    task = securefl.Task(Halves(job.model), job.clients, job.test, separable, metric="accuracy")
    settings = ["train.batch_size=32", "train.lr_drops=[]", "exchange.encrypt=none"]
    settings += ["algorithm.name=fedper", 'algorithm.layers=["own"]', f"train.lr={lr}"]
    settings += [f"run.rounds={600 // steps}", f"algorithm.local_steps={steps}"]
    result = securefl.run(securefl.load_config(None, settings), task)
    clients = list(quadratic.quadratics(job))
    shared = result.model.shared.weight.detach().T
    expected = quadratic.fedavg_fixed_point(clients, steps, lr)
    torch.testing.assert_close(shared, expected, atol=1e-8, rtol=0)
    if steps == 1:
        torch.testing.assert_close(expected, quadratic.minimiser(clients), atol=1e-9, rtol=0)
    for model, client in zip(result.client_models.values(), clients, strict=True):
        own = model.own.weight.detach().T
        torch.testing.assert_close(own, client.b, atol=1e-8, rtol=0)
        assert (own - shared).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20", "alexnet"])
def test_of_the_settings_own_models_the_classifier_stays(name):
    """By default the last linear layer, whatever its name."""
    shape = (64,) if name == "mlp" else (1, 8, 8)
    model = build_model(name, "group", in_channels=1, n_features=64, n_classes=4, width=4)
    x = torch.rand(6, *shape)
    task = securefl.Task(model, [(x, torch.arange(6) % 4)] * 3, (x, torch.arange(6) % 4))
    settings = ["algorithm.name=fedper", "run.rounds=1", "exchange.encrypt=none"]
    result = securefl.run(securefl.load_config(None, settings), task)
    last = list(model.state_dict())[-2:]
    assert {last[0].rpartition(".")[2], last[1].rpartition(".")[2]} == {"weight", "bias"}
    assert set(result.own["client-1"]) == set(last)


def test_encrypted_it_ends_where_it_ends_in_the_clear():
    """In the global model and at each client, to the rounding of what is sealed."""
    plain, sealed = (
        securefl.run(config(f"exchange.encrypt={part}"), by_hand.task("mlp"))
        for part in ("none", "model")
    )
    assert not sealed.ledger.server_reads()
    assert by_hand.largest_difference(plain.model, sealed.model) < 1e-6
    assert all(0 < apart < 1e-6 for apart in by_hand.own_differences(plain, sealed))


def test_over_workers_it_gives_the_same_bits():
    """Clients in two processes, or one after the other here."""
    one, other = (
        securefl.run(config("run.threads=1", f"run.engine={engine}"), by_hand.task("mlp"))
        for engine in ("sequential", "parallel")
    )
    assert by_hand.largest_difference(one.model, other.model) == 0
    assert set(by_hand.own_differences(one, other)) == {0}


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ('["head"]', r'"head" is none of this model, whose layers are 0, 1, 3: name one'),
        ('["1", "3.wieght"]', r'"3\.wieght" is none of this model'),
        ('["*"]', r'leaves nothing to share: .* algorithm\.name = "singlenet"'),
    ],
)
def test_names_that_do_not_fit_the_model_are_refused(layers, message):
    """Before anything runs, with the model's names."""
    with pytest.raises(DataError, match=message):
        securefl.run(config(f"algorithm.layers={layers}"), by_hand.task("mlp"))


def test_a_model_without_a_last_linear_layer_needs_names():
    """The message says both ways out."""
    job = by_hand.task("cnn")
    layers = [nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    task = securefl.Task(nn.Sequential(*layers).double(), job.clients, job.test)
    with pytest.raises(DataError, match=r"end with an nn\.Linear.*; or name the layers"):
        securefl.run(config(), task)


def test_a_model_without_its_head_serves_nobody_else(tmp_path):
    """The global head is the first model's, so a run is not scored on other data."""
    settings = ["algorithm.name=fedper", "run.rounds=1", "exchange.encrypt=none"]
    securefl.run(securefl.load_config(None, settings), out=tmp_path / "run")
    with pytest.raises(ConfigError, match='"fedper" keeps layers at its clients, and those of the'):
        securefl.load_trained(tmp_path / "run")

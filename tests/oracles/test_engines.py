"""Every engine makes the same models of the same seed: the whole grid of algorithms."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from by_hand import single, task
from pairs import grid
from side_by_side import ALONE, SMALL, require_same, trained, vector
from torch import nn

import securefl
from securefl.errors import ConfigError
from securefl.federation.client import Client, Identities
from securefl.federation.message import Roster
from securefl.simulation import choice, workspace
from securefl.simulation.stacked import engine as vectorised
from securefl.simulation.workspace import Workspace

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import MOMENTA, POLICIES, SERVERS, SOLVERS, reason

BESIDE = MOMENTA | {"fednova": SERVERS["fednova"]}


@pytest.mark.parametrize(("policy", "solver", "beside"), grid(POLICIES, SOLVERS, BESIDE))
def test_clients_side_by_side_end_where_they_end_one_by_one(policy, solver, beside):
    """All normalisations and solvers, with every momentum; of the servers, clients know FedNova."""
    parts = POLICIES[policy], SOLVERS[solver], BESIDE[beside]
    if any(reason(*pair) for pair in combinations(parts, 2)):
        pytest.skip("refused together")
    settings = [setting for part in parts for setting in part]
    if {policy, solver} & ALONE:
        with pytest.raises(ConfigError, match='"sequential", or "auto"'):
            trained(settings, "vectorised")
    else:
        require_same(settings)


@pytest.mark.parametrize("norm", ["batch", "group", "layer", "instance", "group-ws", "scaled-ws"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_every_norm_goes_side_by_side(name, norm):
    """Convolutions have groups, weights are standardised client by client."""
    if (name, norm) == ("mlp", "instance"):
        pytest.skip("one value a channel")
    require_same(["algorithm.name=fedavg"], task(name, norm, width=8))


def test_convolutions_are_laid_out_channels_last_whatever_they_take_in():
    """Of one input channel, too: torch goes by the strides, which then say neither layout."""
    model = nn.Sequential(nn.Conv2d(1, 6, 5), nn.Conv2d(6, 4, 3))
    placed = Workspace(model).model
    assert placed[0].weight.stride() == (25, 1, 5, 1)
    assert placed(torch.rand(2, 1, 9, 9)).is_contiguous(memory_format=torch.channels_last)
    assert model[1].weight.is_contiguous()


@pytest.mark.parametrize(
    ("n_in", "kernel", "stride", "last"), [(4, 1, 2, False), (8, 1, 2, True), (4, 3, 2, True)]
)
def test_no_model_is_laid_out_for_a_kernel_that_spoils_memory(n_in, kernel, stride, last):
    """Not its other convolutions, either: what they give out lies as their weights do."""
    layers = nn.Conv2d(3, n_in, 3), nn.Conv2d(n_in, 8, kernel, stride)
    trained = Workspace(nn.Sequential(*layers)).model
    assert (trained[0].weight.stride()[1] == 1) is last
    for _ in range(50):
        trained(torch.rand(8, 3, 10, 10)).square().mean().backward()


@pytest.mark.parametrize("settings", [(), ("train.momentum=0.9",), ("solver.name=scaffold",)])
def test_the_layout_of_a_gpu_changes_no_value(settings, monkeypatch):
    """On a GPU weights side by side are in channels_last, too."""
    job, models = single(task("cnn", width=8)), []
    for laid_out in (False, True):
        monkeypatch.setattr(workspace, "_fill_tensor_cores", lambda *_, answer=laid_out: answer)
        models.append(
            vector(trained(["algorithm.name=fedavg", *settings], "vectorised", job).model)
        )
    torch.testing.assert_close(*models, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan"])
def test_a_network_that_pads_channels_goes_side_by_side(algorithm):
    """ResNet-20's shortcuts append channels of zeros, of each client beside its own."""
    require_same([f"algorithm.name={algorithm}", "run.rounds=1"], task("resnet20", sizes=(5, 6, 7)))


class Padding(nn.Module):
    """It appends channels of zeros, as no layer that is known side by side."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(14, 4)

    def forward(self, x):
        return self.layer(nn.functional.pad(x, (0, 2)))


@pytest.mark.parametrize(
    "settings",
    [
        ["selection.name=random", "selection.fraction=0.5"],
        ["selection.name=random", "selection.fraction=0.75", "selection.replacement=with"],
        ["algorithm.local_epochs=2"],
        ["train.batch_size=32"],
        ["solver.name=scaffold", "selection.name=random", "selection.fraction=0.5"],
        ["algorithm.name=fedbn", "selection.name=random", "selection.fraction=0.5"],
        ["train.momentum=0.9", "train.momentum_across_rounds=local", "run.rounds=4"],
    ],
    ids=lambda settings: settings[-1],
)
def test_who_takes_part_and_for_how_long_changes_nothing(settings):
    """Clients of other batches and steps are beside their like, and states are each one's own."""
    require_same(["algorithm.name=fedavg", *settings])


def test_who_counts_several_times_does_so_in_fedtans_sums():
    """Drawn with replacement, a client's moments have as much more weight."""
    drawn = [
        "selection.name=random",
        "selection.fraction=0.84",
        "selection.replacement=with",
        "algorithm.weights=uniform",
    ]
    job = task(sizes=(10,) * 6)
    require_same(["algorithm.name=fedtan", *drawn], job)
    participants = trained(["algorithm.name=fedtan", *drawn], "vectorised", job).participants
    assert any(times > 1 for each in participants for times in each.selected.values())


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.MultiMarginLoss()], ids=str)
def test_a_loss_of_ones_own_is_summed_over_clients(loss):
    """Not only the means that are known by name."""
    require_same(["algorithm.name=fedavg"], task(loss=loss))


@pytest.mark.parametrize("encrypt", ["statistics", "model"])
def test_sealed_sums_are_those_of_the_clear(encrypt, key_set):
    """FedTAN's sums of clients side by side are sealed and added client by client."""
    settings = ["algorithm.name=fedtan", "algorithm.local_steps=1"]
    plain = trained(settings, "sequential")
    config = securefl.load_config(
        None, [*SMALL, *settings, "run.engine=vectorised", f"exchange.encrypt={encrypt}"]
    )
    sealed = securefl.run(config, task(sizes=(5, 9, 14, 8)), keys=key_set)
    torch.testing.assert_close(vector(plain.model), vector(sealed.model), rtol=1e-4, atol=1e-5)


def test_fedtans_sums_are_one_reduction_over_clients_and_each_is_in_the_ledger(monkeypatch):
    """No client hands over values by itself, but at the round's end."""
    settings, handed = ["algorithm.name=fedtan"], []
    hand_over = Client.hand_over

    def noted(client, spec, *about):
        handed.append(spec.name)
        return hand_over(client, spec, *about)

    monkeypatch.setattr(Client, "hand_over", noted)
    job = task(sizes=(10, 10, 10, 10))
    one_by_one = trained(settings, "sequential", job)
    n_one_by_one, names = len(handed), set(handed)
    handed.clear()
    together = trained(settings, "vectorised", job)
    assert len(names) == 3 + 2  # of one BN layer, and at the end
    assert set(handed) == {"update/parameters", "update/statistics"}
    assert len(handed) < n_one_by_one
    assert Counter(together.ledger.entries) == Counter(one_by_one.ledger.entries)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan"])
def test_a_client_that_is_not_finite_is_left_out_beside_others(engine, algorithm):
    """It costs itself alone, whoever trains beside it."""
    job = task(sizes=(10, 10, 10, 10))
    x, _ = job.clients[1]
    x.copy_(1.5e308 * x.sign())  # finite, and no sum of it is
    run = trained([f"algorithm.name={algorithm}", "algorithm.weights=uniform"], engine, job)
    assert {incident.client for incident in run.incidents} == {"client-2"}
    assert torch.isfinite(vector(run.model)).all()
    assert [m.dropped for m in run.metrics] == [("client-2",)] * 3


class Mixing(nn.Module):
    """Its forward looks at all channels at once."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x):
        return self.layer(x).log_softmax(dim=1)


class Bounded(nn.Sequential):
    """What is large it divides by the largest."""

    def __init__(self):
        super().__init__(nn.Linear(12, 4))

    def forward(self, x):
        return super().forward(x * (20 / x.abs().max()).clamp(max=1))


class Warming(nn.ReLU):
    """It warms up."""

    n_calls = 0

    def forward(self, x):
        self.n_calls += 1
        return super().forward(x) * min(1, self.n_calls / 10)


class Smoothed:
    """A loss that remembers."""

    mean = 0.0

    def __call__(self, outputs, y):
        loss = nn.functional.cross_entropy(outputs, y)
        self.mean = 0.9 * self.mean + 0.1 * float(loss.detach())
        return loss * self.mean


class Scaled(nn.Module):
    """It has a parameter outside of its layers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.layer(x) * self.scale


def shared():
    """Two layers with one weight."""
    model = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Padding(), "its forward does not run side by side"),
        (Mixing(), "mixes channels beyond its layers"),
        (Scaled(), "'' is a Scaled, which is not known side by side"),
        (Bounded(), "mixes channels beyond its layers"),
        (shared(), "share a parameter"),
        (nn.Sequential(nn.Linear(12, 4), nn.Dropout(0.5)), "layer '1' draws at random"),
    ],
    ids=["padding", "mixing", "scaled", "bounded", "shared", "dropout"],
)
def test_a_model_that_cannot_be_side_by_side_is_refused_and_auto_trains_it_alone(model, why):
    """It is tried on the clients' own samples before anything is trained."""
    job = securefl.Task(model.double(), task().clients, task().test)
    with pytest.raises(ConfigError, match=why):
        trained(["algorithm.name=fedavg"], "vectorised", job)
    said = []
    config = securefl.load_config(None, [*SMALL, "algorithm.name=fedavg"])
    securefl.run(config, job, on_start=said.append)
    assert said[0].startswith("sequential: ")
    assert why.split("'")[-1] in said[0]


class Noisy(torch.utils.data.Dataset):
    """Each item is drawn anew."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i] + torch.randn_like(self.x[i]), self.y[i]


class PerSample(nn.Module):
    """It looks at all channels of a sample, which batch normalisation hides where all are alike."""

    def forward(self, x):
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


def noisy_loss(outputs, y):
    return nn.functional.cross_entropy(outputs + 0.1 * torch.randn_like(outputs), y)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": nn.Sequential(PerSample(), nn.Linear(12, 8), nn.BatchNorm1d(8))}, "mixes"),
        ({"loss": noisy_loss}, "the loss draws at random"),
    ],
    ids=["alike", "loss"],
)
def test_samples_that_are_alike_hide_nothing_and_a_loss_may_not_draw(changes, why):
    """A sensor at rest is tried with noise beside it."""
    job = task()
    job.clients[0][0][:4] = 0
    model = changes.pop("model", job.model).double()
    job = securefl.Task(model, job.clients, job.test, **changes, metric="accuracy")
    with pytest.raises(ConfigError, match=why):
        trained(["algorithm.name=fedavg"], "vectorised", job)
    assert torch.equal(
        *(vector(trained(["algorithm.name=fedavg"], "auto", job).model) for _ in range(2))
    )


@pytest.mark.parametrize(
    "changes",
    [{"loss": Smoothed()}, {"model": nn.Sequential(nn.Linear(12, 8), Warming())}],
    ids=["loss", "model"],
)
def test_what_counts_its_calls_is_not_shared_and_its_trial_does_not_count(changes):
    """Buffers are each client's own; other attributes are one for all."""
    job = task()
    model = changes.get("model", job.model).double()
    job = securefl.Task(
        model, job.clients, job.test, loss=changes.get("loss", job.loss), metric="accuracy"
    )
    with pytest.raises(ConfigError, match="changes attributes that are no buffers"):
        trained(["algorithm.name=fedavg"], "vectorised", job)
    assert not getattr(job.loss, "mean", 0)


def test_data_that_are_drawn_anew_are_the_same_for_the_same_seed():
    """A Dataset may draw from torch's global generators, which side by side are nobody's."""
    job = task()
    job = securefl.Task(job.model, [Noisy(*data) for data in job.clients], job.test)
    with pytest.raises(ConfigError, match="a Dataset, which may draw at random"):
        trained(["algorithm.name=fedavg"], "vectorised", job)
    one, other = (trained(["algorithm.name=fedavg"], "auto", job) for _ in range(2))
    assert torch.equal(vector(one.model), vector(other.model))


def test_samples_that_are_too_many_to_copy_are_taken_client_by_client(monkeypatch):
    """The same batches, without a second copy of all data."""
    monkeypatch.setattr("securefl.data.resident.MOST_CPU_BYTES", 0)
    require_same(["algorithm.name=fedavg"])


@pytest.mark.parametrize(("local_steps", "n_copied"), [(4, 3), (1, 0)])
def test_of_too_many_samples_a_blocks_are_copied_where_it_draws_as_many(
    monkeypatch, local_steps, n_copied
):
    """In each of three rounds; the same batches."""
    calls, resident = [], vectorised.resident

    def of_a_block(*about):
        calls.append(about)
        return resident(*about) if len(calls) > 1 else None  # the first are all clients'

    monkeypatch.setattr(vectorised, "resident", of_a_block)
    require_same(["algorithm.name=fedavg", f"algorithm.local_steps={local_steps}"])
    assert len(calls) == 1 + n_copied


@pytest.mark.parametrize("policy", ["fedbn", "local-affine", "silobn"])
@pytest.mark.parametrize("beside", ["solver.name=scaffold", "solver.name=feddc"])
def test_who_keeps_nothing_yet_begins_with_the_models_own(policy, beside):
    """Not with the control variate of the same name."""
    some = ["selection.name=random", "selection.fraction=0.5", "run.rounds=5"]
    require_same([f"algorithm.name={policy}", beside, *some])


def test_labels_that_are_ignored_are_each_clients_own():
    """Of a mean over a client's labels, the neighbour's do not count."""
    job = task(sizes=(10, 10, 10))
    job.clients[0][1][2:] = -100
    require_same(["algorithm.name=fedavg"], job)


def two_numbers(model):
    rng = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(8, 12, generator=rng, dtype=torch.float64),
            torch.randint(2, (8, 4), generator=rng).double(),
        )
        for _ in range(3)
    ]
    return clients, model.double()


def flat_loss(outputs, y):
    return nn.functional.binary_cross_entropy_with_logits(outputs.view(-1), y.view(-1))


def test_a_loss_may_look_at_its_labels_as_one_vector():
    """It gets what it gets alone."""
    clients, model = two_numbers(nn.Sequential(nn.Linear(12, 4)))
    require_same(
        ["algorithm.name=fedavg"], securefl.Task(model, clients, clients[0], flat_loss, metric="r2")
    )


class Squeezed(nn.Module):
    """One number for each sample, without an axis for it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 1)

    def forward(self, x):
        return self.layer(x).squeeze(-1)


class Strict(nn.Linear):
    """It insists on its width."""

    def forward(self, x):
        assert x.shape[1] == 12
        return super().forward(x)


class Drawing(nn.Sequential):
    """Its forward may skip noise, and says so to nobody."""

    def forward(self, x):
        return super().forward(x) + (torch.rand(()) if torch.rand(()) < 1e-6 else 0)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / grad.norm()


class Backward(nn.Sequential):
    """Its backward pass looks at all channels at once."""

    def forward(self, x):
        return _Scaled.apply(super().forward(x))


@pytest.mark.parametrize(
    "model",
    [Squeezed(), Strict(12, 4), Drawing(nn.Linear(12, 4)), Backward(nn.Linear(12, 4))],
    ids=lambda model: type(model).__name__,
)
def test_auto_trains_alone_what_is_not_the_same_side_by_side(model):
    """Whatever its forward raises, draws, or does backward."""
    clients, model = two_numbers(model)
    if isinstance(model, Squeezed):
        clients = [(x, y[:, 0]) for x, y in clients]
    job = securefl.Task(model, clients, clients[0], loss=nn.functional.mse_loss)
    said, before = [], torch.get_rng_state()
    config = securefl.load_config(None, [*SMALL, "algorithm.name=fedavg"])
    securefl.run(config, job, on_start=said.append)
    assert said[0].startswith("sequential: ")
    if not isinstance(model, Drawing):  # which draws when it is scored, too
        assert torch.equal(before, torch.get_rng_state())


def test_clients_of_other_labels_are_beside_their_like():
    """Classes of some, shares of classes of others."""
    job = task()
    clients = [
        (x, nn.functional.one_hot(y, 4).to(x) if i % 2 else y)
        for i, (x, y) in enumerate(job.clients)
    ]
    require_same(["algorithm.name=fedavg"], replace(job, clients=clients))


def test_who_is_left_out_of_a_sum_is_told_in_the_clients_order():
    """One whose values are refused, after one whose certificate is."""
    names = [f"client-{i}" for i in range(1, 7)]
    keys = Identities.ephemeral(names)
    left = {name: keys.keys[name].public_key() for name in names if name != "client-2"}
    roster = Identities(keys.keys, Roster(left, revoked=["client-2"]))
    job = task(sizes=(10,) * 6)
    x, _ = job.clients[4]
    x.copy_(1.5e308 * x.sign())
    settings = [*SMALL, "algorithm.name=fedtan"]
    one, other = (
        securefl.run(
            securefl.load_config(None, [*settings, f"run.engine={engine}"]),
            job,
            identities=roster,
        ).incidents
        for engine in ("sequential", "vectorised")
    )
    assert [incident.client for incident in one][:2] == ["client-2", "client-5"]
    assert one == other


@pytest.mark.parametrize("policy", ["fedavg", "fedbn"])
def test_a_block_that_memory_does_not_hold_is_halved(monkeypatch, policy):
    """Until it fits, and from then on: the halves are remembered."""
    sizes, trains = [], vectorised.Stacked._trained

    def short(engine, names, ongoing):
        sizes.append(len(names))
        if len(names) > 2:
            raise torch.OutOfMemoryError
        return trains(engine, names, ongoing)

    monkeypatch.setattr(vectorised.Stacked, "_trained", short)
    require_same(POLICIES[policy], task(sizes=(8, 8, 8, 8, 8, 8, 8)))
    assert sizes[:3] == [7, 4, 2]
    assert set(sizes[4:]) <= {1, 2, 3}


def test_clients_that_wait_for_sums_are_not_halved(monkeypatch):
    """Others go on by a sum that was made."""

    def short(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(vectorised.Stacked, "_trained", short)
    with pytest.raises(torch.OutOfMemoryError):
        trained(POLICIES["fedtan"], "vectorised")


def test_auto_trains_large_models_one_by_one(monkeypatch):
    """And says how large they are."""
    monkeypatch.setattr(choice, "MOST_PARAMETERS", 50)
    said = []
    config = securefl.load_config(None, [*SMALL, "algorithm.name=fedavg"])
    job = task()
    securefl.run(config, job, on_start=said.append)
    n_parameters = sum(p.numel() for p in job.model.parameters())
    assert f"more than 50 parameters, as this one of {n_parameters}, are no faster" in said[0]


def test_clients_of_other_shapes_are_beside_their_like():
    """A network that takes pictures of any size."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 4),
    )
    rng = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(6, 1, n, n, generator=rng).double(), torch.randint(4, (6,), generator=rng))
        for n in (8, 10, 8)
    ]
    require_same(["algorithm.name=fedavg"], securefl.Task(model.double(), clients, clients[0]))


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan"])
def test_who_is_not_on_the_roster_hands_nothing_over(algorithm, engine):
    """As over a wire: a revoked client is left out, with the reason."""
    keys = Identities.ephemeral([f"client-{i}" for i in range(1, 5)])
    left = {name: keys.keys[name].public_key() for name in keys.keys if name != "client-2"}
    roster = Identities(keys.keys, Roster(left, revoked=["client-2"]))
    settings = [*SMALL, f"algorithm.name={algorithm}", f"run.engine={engine}"]
    config = securefl.load_config(None, settings)
    run = securefl.run(config, task(sizes=(10, 10, 10, 10)), identities=roster)
    assert {i.client for i in run.incidents} == {"client-2"}
    assert "revoked" in run.incidents[0].reason

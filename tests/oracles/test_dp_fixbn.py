"""DP-FixBN's statistics against the moments of all clients' records, pooled by hand."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import by_hand
import numpy as np
import pytest
import torch
from fnr_by_hand import public
from on_the_wire import nothing_is_handed_over
from played import place, played
from privately_by_hand import config as private_config
from privately_by_hand import generator, require_scatter, work_of
from silent import Silent
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

import securefl
from securefl.algorithms.public_training import PublicData
from securefl.build.simulation import simulated
from securefl.errors import ConfigError, DataError, TooFewContributions
from securefl.federation.client import Client
from securefl.federation.training import round_generator
from securefl.models.layers import batch_norm_1d
from securefl.models.mlp import mlp
from securefl.privacy.distributed_noise import DistributedNoise
from securefl.privacy.dp_fixbn import StatisticsRelease, evenly
from securefl.privacy.randomness import Seeded
from securefl.privacy.record_moments import MomentRelease
from securefl.types import Kind, Total

pytestmark = pytest.mark.usefixtures("quick", "uncounted")

RECORDS, WIDE = 9, 100.0
SIZES = (12, 9, 14, 10)
DP_FIXBN = (
    "algorithm.name=fixbn",
    "train.batch_size=4",
    "privacy.level=record",
    f"privacy.records={RECORDS}",
)


def moved_off(model):
    """With running statistics, γ and β of its own, and a counter that is not at zero."""
    rng = generator(7)
    for layer in norms(model).values():
        layer.running_mean.normal_(generator=rng)
        layer.running_var.uniform_(0.5, 2, generator=rng)
        layer.num_batches_tracked.fill_(7)
        layer.weight.data.uniform_(0.5, 2, generator=rng)
        layer.bias.data.normal_(generator=rng)
    return model


def task(name="mlp", sizes=SIZES, width=5, **changes):
    """An mlp with two BN layers, or a cnn with four."""
    job = by_hand.task(name, sizes=sizes, width=3)
    if name == "mlp":
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = mlp(batch_norm_1d, (12, width, 4, 4)).double()
        job = replace(job, model=model)
    return replace(job, model=moved_off(job.model), **changes)


def config(*settings, rounds=2):
    return private_config(*DP_FIXBN, *settings, rounds=rounds)


def norms(model):
    return {n: module for n, module in model.named_modules() if isinstance(module, _BatchNorm)}


def statistics_of(tensors):
    """Running means and variances, of a model's or a state's tensors."""
    return {n: v for n, v in tensors.items() if n.endswith(("running_mean", "running_var"))}


def pooled(model, clients):
    """Each layer's moments over the union of the records, the lower layers at rest at theirs."""
    model, x = copy.deepcopy(model).eval(), torch.cat([x for x, _ in clients])
    for layer in norms(model).values():
        with torch.no_grad():
            heard = []
            handle = layer.register_forward_pre_hook(lambda _, inputs, to=heard: to.extend(inputs))
            model(x)
            handle.remove()
            values_CN = heard[0].transpose(0, 1).flatten(1)
            mean_C = values_CN.sum(1) / values_CN.shape[1]
            layer.running_mean.copy_(mean_C)
            layer.running_var.copy_(((values_CN - mean_C[:, None]) ** 2).mean(1))
    return statistics_of(model.state_dict())


def with_state(model, state):
    model = copy.deepcopy(model)
    for named in state.tensors.values():
        model.load_state_dict(named, strict=False)
    return model


@pytest.fixture
def without_noise(monkeypatch):
    """In statistics alone; gradients have theirs."""
    monkeypatch.setattr(MomentRelease, "deviation", property(lambda _: 0.0))


def largest(one, other):
    assert one.keys() == other.keys()
    assert one
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# --- what is released ---


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize(("encrypt", "tolerance"), [("none", 1e-10), ("statistics", 1e-5)])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_without_noise_and_clip_statistics_are_those_of_the_union(name, encrypt, tolerance):
    """Mean and biased variance over all clients' records, the second time of a trained model.

    Layer by layer: with the old statistics below, those above would be others.
    """
    settings = ["algorithm.switch=2", "privacy.releases=2", f"privacy.statistics_clip={WIDE}"]
    job = task(name)
    run = played(config(*settings, f"exchange.encrypt={encrypt}", rounds=3), job)
    for done in (0, 2):
        model = with_state(job.model, run.rounds[done].before)
        wanted = pooled(model, job.clients)
        assert largest(run.rounds[done].after.tensors[Kind.STATISTICS], wanted) < tolerance
    first, last = (run.rounds[done].after.tensors[Kind.STATISTICS] for done in (0, 2))
    assert largest(first, last) > 1e-3
    top = list(norms(job.model))[-1]
    model = with_state(job.model, run.rounds[0].before).eval()
    heard = []
    model.get_submodule(top).register_forward_pre_hook(lambda _, inputs: heard.extend(inputs))
    model(torch.cat([x for x, _ in job.clients]))
    of_old = heard[0].transpose(0, 1).flatten(1).mean(1)
    assert (of_old - first[f"{top}.running_mean"]).abs().max() > 0.1


@pytest.mark.usefixtures("without_noise")
def test_of_some_clients_statistics_are_those_of_their_records_alone():
    """Those who stay away do not count, nor do the statistics from before."""
    settings = [f"privacy.statistics_clip={WIDE}"]
    selected = ["selection.name=random", "selection.fraction=0.75"]
    job = task()
    run = played(config(*settings, *selected), job)
    assert len(run.selected[0]) == 3
    theirs = [job.clients[place(client)] for client in run.selected[0]]
    wanted = pooled(job.model, theirs)
    assert largest(run.rounds[0].after.tensors[Kind.STATISTICS], wanted) < 1e-10
    with pytest.raises(
        ConfigError, match=r'mix them into it; set selection\.aggregation = "partial"'
    ):
        config(*settings, *selected, "selection.aggregation=full")


def test_encrypted_and_plain_releases_are_the_same():
    """Of the same noise, to 1e-6."""
    settings = ["privacy.statistics_sigma=0.1"]
    job, found = task(), {}
    for encrypt in ("none", "statistics", "model"):
        run = played(config(*settings, f"exchange.encrypt={encrypt}", rounds=2), job)
        found[encrypt] = run.rounds[0].after.tensors[Kind.STATISTICS]
    assert 0 < largest(found["none"], found["statistics"]) < 1e-6
    assert 0 < largest(found["none"], found["model"]) < 1e-6
    assert largest(found["none"], pooled(job.model, job.clients)) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_statistics_are_those_of_the_last_release(dtype, monkeypatch):
    """To the bit from release to release, and at every client; no batch is ever counted.

    Where nothing is released none travel.
    """
    left, measure = {}, StatisticsRelease.measure

    def noted(self, work, exchange):
        measure(self, work, exchange)
        now = {n: v.clone() for n, v in statistics_of(work.model.state_dict()).items()}
        left.setdefault(seeds[work.rng.initial_seed()], []).append(now)

    job = task(sizes=(12, 9, 14, 10, 11))
    data = [(x.to(dtype), y) for x, y in job.clients]
    job = replace(job, model=job.model.to(dtype), clients=data, test=data[0])
    rounds = [done for done in range(6) for _ in job.clients]
    generators = [round_generator(by_hand.SEED, done, j % 5) for j, done in enumerate(rounds)]
    seeds = dict(zip((rng.initial_seed() for rng in generators), rounds, strict=True))
    monkeypatch.setattr(StatisticsRelease, "measure", noted)
    settings = ["algorithm.switch=4", "privacy.releases=3", "privacy.statistics_sigma=0.1"]
    run = played(config(*settings, "train.momentum=0.9", rounds=6), job)
    assert left.keys() == {0, 2, 4}
    last = None
    for done, each in enumerate(run.rounds):
        after = each.after.tensors[Kind.STATISTICS]
        if done in left:
            assert len(left[done]) == 5
            last = after
            # A mean of five equal doubles may be off in its last bit.
            off = 0 if dtype is torch.float32 else 1e-15
            for found in left[done]:
                torch.testing.assert_close(dict(after), found, rtol=off, atol=0)
        assert all(torch.equal(after[name], last[name]) for name in last)
    model = run.result.model.state_dict()
    assert all(torch.equal(model[name], last[name]) for name in last)
    counters = [v for name, v in model.items() if "num_batches" in name]
    assert [int(counter) for counter in counters] == [7, 7]
    sent = [e for e in run.result.ledger.entries if e.kind is Kind.STATISTICS and e.exchange]
    assert {e.round for e in sent} == {1, 3, 5}
    assert {e.name for e in sent if e.sender == "client-1"} == {
        "1/moments",
        "4/moments",
        "update/statistics",
    }


def test_training_does_not_show_in_statistics():
    """Whatever the batches, the rate and the noise on gradients, the first release is the same."""
    job, found = task(), []
    base = ["privacy.statistics_sigma=0.1"]
    for settings in (
        ["algorithm.local_steps=1"],
        ["algorithm.local_steps=4", "train.batch_size=7", "train.lr=0.2", "privacy.sigma=3.0"],
    ):
        result = securefl.run(config(*base, *settings), job)
        found.append(statistics_of(result.model.state_dict()))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("freeze", ["statistics", "both"])
def test_scale_and_shift_learn_in_all_rounds_or_in_none(freeze):
    """Those with a release as well: all but the release is FixBN's second stage."""
    settings = ["algorithm.switch=1", "privacy.releases=2", "privacy.statistics_sigma=0.1"]
    run = played(config(*settings, f"algorithm.freeze={freeze}", rounds=3), task())
    for each in run.rounds:
        before, after = (s.tensors[Kind.PARAMETERS] for s in (each.before, each.after))
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        learnt = {"1.weight", "1.bias", "4.weight", "4.bias"}
        assert before.keys() - moved == (learnt if freeze == "both" else set())


@pytest.mark.parametrize(
    ("releases", "switch", "rounds"),
    [
        (1, 5, {0}),
        (2, 5, {0, 5}),
        (3, 10, {0, 5, 10}),
        (4, 10, {0, 3, 7, 10}),
        (5, 2, {0, 1, 2}),
        (1, 1, {0}),
    ],
)
def test_releases_are_spread_evenly_up_to_the_switch(releases, switch, rounds):
    """The first before any training; no round has two."""
    assert evenly(releases, switch) == rounds


@pytest.mark.parametrize("freeze", ["statistics", "both"])
def test_after_a_warm_up_no_client_tells_any_statistics(freeze):
    """They are those of training on the public samples, by hand, and stay so to the bit."""
    stock = public()
    held = (stock.samples.x, stock.samples.y)
    job = task(public=held)
    settings = [f"algorithm.freeze={freeze}", "privacy.warm_up=2"]
    run = played(config(*settings, "train.momentum=0.5", rounds=3), job)
    model = copy.deepcopy(job.model).train()
    optimiser = by_hand.sgd(model, 0.5)
    order = PublicData(stock.samples, batch_size=4, epochs=2, seed=by_hand.SEED)
    by_hand.steps(model, optimiser, order.batches(0, torch.device("cpu")))
    before = run.rounds[0].before
    wanted = statistics_of(model.state_dict())
    assert largest(statistics_of(before.tensors[Kind.STATISTICS]), wanted) < 1e-12
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    assert largest(before.tensors[Kind.PARAMETERS], parameters) < 1e-12
    final = statistics_of(run.result.model.state_dict())
    for name, value in before.tensors[Kind.STATISTICS].items():
        assert torch.equal(final[name], value)
    sent = [e for e in run.result.ledger.entries if e.sender.startswith("client")]
    assert {e.kind for e in sent} == {Kind.PARAMETERS}


# --- what one record does ---


@dataclass
class Answering:
    """A client's end that notes what is sent, and answers with what it was told to, or the same."""

    answers: dict = field(default_factory=dict)
    sent: dict = field(default_factory=dict)
    weight: float = 1.0

    def sum(self, name, values):
        self.sent[name] = values["moments"].clone()
        answer = self.answers.get(name, values["moments"])
        return Total({"moments": answer}, 1.0, 1)


def release_of(clip=1.5, sigma=0.01, randomness=Silent):
    return StatisticsRelease(clip, sigma, DistributedNoise(1), RECORDS, randomness)


def sent_by(model, data, answers=None):
    """Each layer's message before noise; where answers are given, what is below them is fixed."""
    exchange = Answering(answers or {})
    work = work_of(copy.deepcopy(model), data, functional.cross_entropy)
    release_of().measure(work, exchange)
    return exchange.sent


def require_bounded(model, data, extra):
    """Asserts that one record more moves no message beyond the bound; the largest share of it."""
    x, y = data
    first = sent_by(model, data)
    more = torch.cat([x, extra[None]]), torch.cat([y, y[:1]])
    second = sent_by(model, more, first)
    shares = []
    for name, layer in norms(model).items():
        moved = (second[f"{name}/moments"] - first[f"{name}/moments"]) * RECORDS
        bound = 1.5 * (2 * layer.num_features) ** 0.5
        assert float(moved.norm()) <= bound * (1 + 1e-9)
        shares.append(float(moved.norm()) / bound)
    return max(shares)


OUTLIERS = [0.0, 1.0, 30.0, 1e6, -1e150]


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_one_record_moves_a_message_by_no_more_than_its_bound(name):
    """Whatever it is, given what was opened of the layers below; and an outlier by nearly that."""
    shares = []
    for seed, size in enumerate([*OUTLIERS, *OUTLIERS]):
        job = task(name)
        x, _ = job.clients[seed % len(SIZES)]
        extra = size * torch.randn(x.shape[1:], generator=generator(seed), dtype=torch.float64)
        shares.append(require_bounded(job.model, job.clients[seed % len(SIZES)], extra))
    assert max(shares) == pytest.approx(1)
    assert min(shares) < 0.99


def test_a_record_that_is_not_clipped_is_found_out(monkeypatch):
    """By the same look at it."""

    def bare(self, y, reference):
        return self._vectors(y.detach().double(), reference).sum(dim=0)

    monkeypatch.setattr(MomentRelease, "sum_of", bare)
    job = task()
    with pytest.raises(AssertionError):
        require_bounded(job.model, job.clients[0], torch.full((12,), 1e6).double())


class Net(nn.Module):
    """A forward made of a function."""

    def __init__(self, run, n_features=4):
        super().__init__()
        self.second, self.first = nn.BatchNorm1d(n_features), nn.BatchNorm1d(n_features)
        self.below, self.between = nn.Linear(12, 4), nn.Linear(4, 4)
        self.run = run

    def forward(self, x):
        return self.run(self, x)


def twice(net, x):
    return net.first(net.between(net.first(net.below(x)))) + 0 * net.second(net.below(x))


def folded(net, x):
    """Two entries a record: each half of it goes through the layer by itself."""
    rows = torch.cat([net.below(x), net.below(2 * x)], dim=1).reshape(2 * len(x), 4)
    return net.second(net.first(rows)).reshape(len(x), 8)[:, :4]


def never(net, x):
    return net.first(net.below(x))


@pytest.mark.parametrize("run", [twice, folded, never])
def test_a_layer_that_does_not_meet_each_record_once_is_refused(run):
    """A record would be in its sum twice, and move it by twice what is counted; or not at all."""
    job = task()
    job = replace(job, model=Net(run).double())
    with pytest.raises((ConfigError, DataError), match=r"BN layer '\w+' .*once|single records"):
        securefl.run(config("privacy.statistics_sigma=0.01"), job)


def in_another_order(net, x):
    return net.second(net.between(net.first(net.below(x))).relu())


@pytest.mark.usefixtures("without_noise")
def test_layers_are_measured_in_the_order_in_which_they_are_called():
    """Not in that of their definition: a layer's statistics are of what it will get."""
    job = task()
    job = replace(job, model=moved_off(Net(in_another_order).double()))
    settings = [f"privacy.statistics_clip={WIDE}"]
    run = played(config(*settings), job)
    model = with_state(job.model, run.rounds[0].before)
    model._modules["second"] = model._modules.pop("second")
    assert list(norms(model)) == ["first", "second"] != list(norms(job.model))
    wanted = pooled(model, job.clients)
    assert largest(run.rounds[0].after.tensors[Kind.STATISTICS], wanted) < 1e-10


# --- how noisy a total is ---


N_RELEASES, SIGMA, CLIP = 16, 2.0, 1.5


@pytest.fixture
def totals(monkeypatch):
    """What clients read of opened releases: the total, and the deviation that it should have."""
    found, read = [], MomentRelease.moments_of

    def noted(release, total_V, reference, deviation):
        found.append((total_V.clone(), deviation))
        return read(release, total_V, reference, deviation)

    monkeypatch.setattr(MomentRelease, "moments_of", noted)
    return found


def one_layer():
    """Of 32 channels, and 300 records in all."""
    job = task(sizes=(60,) * 5)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Linear(32, 4)).double()
    return replace(job, model=model)


def silence(monkeypatch, *names):
    """These clients' messages are refused."""
    contribute = Client.contribute

    def changed(self, run, round_number, spec, tensors, times=1, state="", *, model=""):
        message = contribute(self, run, round_number, spec, tensors, times, state, model=model)
        lost = self.name in names and spec.name.endswith("/moments")
        return message[:-1] if lost else message

    nothing_is_handed_over(monkeypatch)
    monkeypatch.setattr(Client, "contribute", changed)


def require_noise(monkeypatch, totals, dropouts=0, missing=()):
    """Asserts that a total's noise has the deviation σ · bound · √(present / counted), at 99 %.

    Of the same records in every round: the state is the first one's again.
    """
    settings = [f"algorithm.switch={N_RELEASES - 1}", f"privacy.releases={N_RELEASES}"]
    settings += [f"privacy.statistics_sigma={SIGMA}", f"privacy.dropouts={dropouts}"]
    settings += ["privacy.records=60", "algorithm.local_steps=1"]
    job = one_layer()
    rounds = simulated(config(*settings, rounds=N_RELEASES + 1), job)
    first = rounds.state
    with monkeypatch.context() as patch:
        silence(patch, *missing)
        for done in range(N_RELEASES):
            by_hand.after_a_round(rounds, replace(first, round=done))
        patch.setattr(Seeded, "gaussian", lambda _self, size, _deviation: np.zeros(size))
        by_hand.after_a_round(rounds, first)
    present = 5 - len(missing)
    opened = torch.stack([total_V for total_V, _ in totals[::present]])
    assert len(opened) == N_RELEASES + 1
    deviation = SIGMA * CLIP * 64**0.5 * (present / (5 - dropouts - 1)) ** 0.5
    assert [said for _, said in totals] == pytest.approx([deviation] * len(totals))
    require_scatter(opened[:-1] - opened[-1], deviation, alpha=0.01)


@pytest.mark.parametrize(
    ("dropouts", "missing"), [(0, ()), (1, ()), (1, ("client-2",)), (2, ("client-1", "client-4"))]
)
def test_an_opened_release_is_as_noisy_as_said(monkeypatch, totals, dropouts, missing):
    """Of five clients: σ · bound without those who may be missing and the one who may tell."""
    require_noise(monkeypatch, totals, dropouts, missing)


SABOTAGE = {
    "a tenth less": lambda gaussian: lambda self, n, d: 0.9 * gaussian(self, n, d),
    "none": lambda gaussian: lambda self, n, d: 0.0 * gaussian(self, n, d),
    "as if nobody told": lambda gaussian: lambda self, n, d: 0.8**0.5 * gaussian(self, n, d),
    "the same in all rounds": lambda _gaussian: (
        lambda _self, n, d: np.random.default_rng(1).normal(0.0, d, n)
    ),
}


@pytest.mark.parametrize("how", SABOTAGE)
def test_a_release_that_is_less_noisy_is_found_out(monkeypatch, totals, how):
    """By the same look at it."""
    monkeypatch.setattr(Seeded, "gaussian", SABOTAGE[how](Seeded.gaussian))
    with pytest.raises(AssertionError):
        require_noise(monkeypatch, totals)


def test_each_client_and_layer_draws_noise_of_its_own(monkeypatch):
    """No draw is seen twice in a run, nor one of the gradients'."""
    drawn, gaussian = [], Seeded.gaussian

    def noted(self, size, deviation):
        drawn.append(gaussian(self, size, deviation) / deviation)
        return drawn[-1] * deviation

    monkeypatch.setattr(Seeded, "gaussian", noted)
    settings = ["algorithm.switch=1", "privacy.releases=2", "privacy.statistics_sigma=0.1"]
    securefl.run(config(*settings, "algorithm.local_steps=2", rounds=3), task())
    firsts = [float(values[0]) for values in drawn]
    assert len(firsts) == len(set(firsts)) == len(SIZES) * (2 * 2 + 3 * 2 * 10)


# --- what is not used ---


@pytest.mark.parametrize(
    ("sigma", "encrypt"), [(1e6, "none"), (50.0, "none"), (50.0, "statistics")]
)
def test_a_release_that_drowns_ends_the_run(sigma, encrypt):
    """With what to do, before any client has trained on it."""
    drowning = [f"privacy.statistics_sigma={sigma}", f"exchange.encrypt={encrypt}"]
    settings = [*drowning]
    with pytest.raises(
        DataError, match=r"drowned in noise.*more records.*statistics_sigma.*statistics_clip"
    ):
        securefl.run(config(*settings), task())


@pytest.mark.parametrize("encrypt", ["none", "statistics"])
def test_a_total_with_less_noise_than_counted_is_never_read(monkeypatch, totals, encrypt):
    """One client more is missing than `privacy.dropouts`: refused, whoever opens it."""
    settings = ["privacy.statistics_sigma=0.1", f"exchange.encrypt={encrypt}"]
    silence(monkeypatch, "client-2")
    job = task(sizes=(*SIZES, 12))
    with pytest.raises(TooFewContributions):
        securefl.run(config(*settings), job)
    assert totals == []
    securefl.run(config(*settings, "privacy.dropouts=1"), job)
    assert len(totals) == 2 * 4
    totals.clear()
    silence(monkeypatch, "client-5")
    with pytest.raises(TooFewContributions):
        securefl.run(config(*settings, "privacy.dropouts=1"), job)
    assert totals == []

"""Rounds of some of the clients, against means, corrections and moves worked out by hand."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from by_hand import BATCH, LR, averaged, batches, buffers_of, config, mean, sgd, steps
from by_hand import task as by_hand_task
from hypothesis import given, settings
from hypothesis import strategies as st
from played import place, played, same_client_state
from quadratic import IDENTITY, descend, quadratics
from quadratic import task as quadratic_task

import securefl
from securefl.algorithms.federated import Federated
from securefl.errors import ConfigError
from securefl.types import Contribution, Kind, MessageSpec, Plan, State

SIZES = (5, 9, 14, 8, 11, 7)
ROUNDS = 6
HALF = ("algorithm.name=fedavg", "selection.name=random", "selection.fraction=0.5")


def task(**changes):
    """Six clients."""
    return by_hand_task(sizes=SIZES, **changes)


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def close_models(one, other):
    close(averaged(one), averaged(other))


def identical(one, other):
    """Bit for bit."""
    a, b = averaged(one), averaged(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- the mean of the selected, by hand ---


def by_hand(job, rounds, momentum=0.0, n_steps=2, full=False):
    """FedAvg of those who were there, in plain torch; and the momentum that each client keeps."""
    model, kept = copy.deepcopy(job.model), {}
    for done, times in enumerate(rounds):
        locals_ = []
        for client in times:
            local = copy.deepcopy(model).train()
            optimiser = sgd(local, momentum, kept.get(client))
            steps(local, optimiser, batches(job, done, place(client), n_steps))
            locals_.append(averaged(local))
            if momentum:
                kept[client] = buffers_of(local, optimiser)
        sizes = [n * min(SIZES[place(client)], BATCH) for client, n in times.items()]
        found = mean([size / sum(sizes) for size in sizes], locals_)
        if full:
            last, n = averaged(model), len(SIZES)
            found = mean([1 - len(times) / n, len(times) / n], [last, found])
        model.load_state_dict(found, strict=False)
    return model, kept


@pytest.mark.parametrize("aggregation", ["partial", "full"])
def test_a_round_is_the_weighted_mean_of_the_selected(aggregation):
    """Or, with full aggregation, K/N of it and 1 - K/N of the model before; statistics alike."""
    job = task()
    settings_ = [*HALF, f"selection.aggregation={aggregation}", "algorithm.local_steps=2"]
    run = played(config(*settings_, rounds=ROUNDS), job)
    assert all(len(chosen) == 3 for chosen in run.selected)
    assert len({tuple(chosen) for chosen in run.selected}) > 2
    expected, _ = by_hand(job, run.selected, full=aggregation == "full")
    close_models(run.result.model, expected)


def test_momentum_goes_on_where_a_client_left_it():
    """A client that skips rounds has its buffers of the last round that it was in."""
    job = task()
    momentum = ["train.momentum=0.8", "train.momentum_across_rounds=local"]
    run = played(config(*HALF, *momentum, "algorithm.local_steps=2", rounds=ROUNDS), job)
    expected, kept = by_hand(job, run.selected, momentum=0.8)
    close_models(run.result.model, expected)
    after = run.rounds[-1].kept_after
    assert {
        client for client, client_state in after.items() if client_state.momentum
    } == kept.keys()
    for client, buffers in kept.items():
        close(dict(after[client].momentum), buffers)


@pytest.mark.parametrize(
    "beside",
    [
        ["algorithm.name=fedbn", "train.momentum=0.5", "train.momentum_across_rounds=local"],
        ["solver.name=scaffold"],
        ["solver.name=feddc"],
        ["solver.name=feddyn"],
        ["solver.name=moon"],
        ["algorithm.name=fixbn", "algorithm.switch=window", "algorithm.window=2"],
        ["algorithm.name=fedtan"],
    ],
)
def test_what_a_client_keeps_moves_in_its_own_rounds_alone(beside):
    """Its BN, momentum, control variates and last models stay in all others, to the bit."""
    run = played(config(*HALF, *beside, "algorithm.local_steps=2", rounds=4), task())
    moved = set()
    for each in run.rounds:
        for client, client_state in each.kept_before.items():
            if not same_client_state(each.kept_after[client], client_state):
                assert client in each.participants.selected
                moved.add(client)
    keeping = [] if beside == ["algorithm.name=fedtan"] else run.selected
    assert moved == {client for chosen in keeping for client in chosen}


@pytest.mark.parametrize(
    "solver",
    [[], ["solver.name=scaffold"], ["server.name=fednova"], ["algorithm.name=fedtan"]],
    ids=["sgd", "scaffold", "fednova", "fedtan"],
)
def test_a_selection_of_all_clients_is_no_selection(solver):
    """With K = N, full and partial aggregation and no selection are the same bits and messages."""
    everyone = ["selection.name=random", "selection.fraction=1.0"]
    runs = [
        securefl.run(config("algorithm.name=fedavg", *solver, *selection, rounds=3), task())
        for selection in ([], everyone, [*everyone, "selection.aggregation=full"])
    ]
    for run in runs[1:]:
        assert identical(run.model, runs[0].model)
        assert run.ledger.entries == runs[0].ledger.entries


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from(["partial", "full"]))
def test_whatever_the_share_a_round_is_the_mean_by_hand(n, seed, aggregation):
    """For every K of six clients and every seed, one round is the formula's."""
    job = quadratic_of(6)
    chosen = [f"selection.fraction={n / 6}", f"selection.aggregation={aggregation}"]
    run = played(
        quadratic_config("selection.name=random", *chosen, rounds=1, seed=seed, steps=1), job
    )
    (times,) = run.selected
    assert len(times) == n
    clients, w = quadratics_of(job), job.model.weight.detach().T
    sizes = {c: len(job.clients[place(c)][1]) for c in times}
    found = sum(
        sizes[c] / sum(sizes.values()) * (w - LR * (q.a @ w - q.a @ q.b))
        for c, q in clients.items()
        if c in times
    )
    share = n / 6 if aggregation == "full" else 1.0
    close(run.result.model.weight.detach().T, (1 - share) * w + share * found)


# --- solvers whose correction is a mean over all clients: on quadratics, in closed form ---

STEPS, ALPHA = 3, 0.7


def quadratic_of(n_clients):
    """Least squares of so many clients, their sizes different."""
    job = quadratic_task()
    rng = torch.Generator().manual_seed(4)
    clients = []
    for i in range(n_clients):
        n = 6 + 3 * i
        x = torch.randn(n, 3, generator=rng, dtype=torch.float64) * (0.7 + 0.1 * i) + 0.5
        clients.append((x, torch.randint(4, (n,), generator=rng)))
    return securefl.Task(job.model, clients, clients[0], job.loss, metric=job.metric)


def quadratics_of(job):
    return {f"client-{i}": q for i, q in enumerate(quadratics(job), 1)}


def quadratic_config(*beside, rounds=ROUNDS, seed=0, steps=STEPS):
    base = [
        "algorithm.name=fedavg",
        "exchange.encrypt=none",
        "train.batch_size=64",
        "train.lr_drops=[]",
        f"train.lr={LR}",
        f"run.rounds={rounds}",
        f"run.seed={seed}",
        f"algorithm.local_steps={steps}",
    ]
    return securefl.load_config(None, [*base, *beside])


def of(tensors):
    """The one weight among tensors by name, as the formulas have it."""
    (value,) = (v for name, v in tensors.items() if name.endswith("weight") and v.dim())
    return value.T


SELECTED = {
    "selected": ["selection.name=random", "selection.fraction=0.5"],
    "by data": ["selection.name=data-share", "selection.fraction=0.5"],
    "dropouts": ["devices.dropout=0.4"],
}


WEIGHTS = ["samples", "uniform"]


def shares_of(job, weights):
    """p_i of each client, by name: a share of all clients' weight."""
    sizes = [len(y) if weights == "samples" else 1 for _, y in job.clients]
    return {f"client-{i}": size / sum(sizes) for i, size in enumerate(sizes, 1)}


def weighted(p, of):
    return sum(p[name] * value for name, value in of.items())


@pytest.mark.parametrize("who", SELECTED)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_scaffolds_c_is_the_mean_of_all_clients_c_i(weights, who):
    """With c_i⁺ = c_i - c + (x - y_i) / (Kη), c moves by Σ_S p_i (c_i⁺ - c_i) and stays Σ p_i c_i.

    For equal weights that is |S|/N of the mean over S, as in Algorithm 1.
    """
    job = quadratic_of(5)
    beside = ["solver.name=scaffold", f"algorithm.weights={weights}"]
    run = played(quadratic_config(*SELECTED[who], *beside), job)
    assert any(len(each.times) < 5 for each in run.rounds)
    clients, x, p = quadratics_of(job), job.model.weight.detach().T, shares_of(job, weights)
    c, own = torch.zeros_like(x), {name: torch.zeros_like(x) for name in clients}
    for each in run.rounds:
        ends = {}
        for name in each.times:
            q, ci = clients[name], own[name]
            ends[name] = descend(x, q.a, q.a @ q.b - c + ci, STEPS, LR)
            own[name] = ci - c + (x - ends[name]) / (STEPS * LR)
        if ends:
            x = weighted(p, ends) / sum(p[name] for name in ends)
            c = weighted(p, own)
        close(of(each.after.tensors[Kind.PARAMETERS]), x)
        close(of(each.after.tensors[Kind.CONTROL]), c)


@pytest.mark.parametrize("who", SELECTED)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_feddcs_drift_and_correction_are_means_over_all_clients(weights, who):
    """The model is the mean of the present w_i plus that of all h_i; c is that of all c_i."""
    job = quadratic_of(5)
    beside = ["solver.name=feddc", f"solver.alpha={ALPHA}", f"algorithm.weights={weights}"]
    run = played(quadratic_config(*SELECTED[who], *beside), job)
    clients, w, p = quadratics_of(job), job.model.weight.detach().T, shares_of(job, weights)
    c, own = torch.zeros_like(w), {name: torch.zeros_like(w) for name in clients}
    drifts = {name: torch.zeros_like(w) for name in clients}
    for each in run.rounds:
        ends = {}
        for name in each.times:
            q, h, ci = clients[name], drifts[name], own[name]
            pull = q.a @ q.b + ALPHA * (w - h) - c + ci
            ends[name] = y = descend(w, q.a + ALPHA * IDENTITY, pull, STEPS, LR)
            own[name] = ci - c + (w - y) / (STEPS * LR)
            drifts[name] = h + y - w
        if ends:
            mean = weighted(p, ends) / sum(p[name] for name in ends)
            w, c = mean + weighted(p, drifts), weighted(p, own)
        close(of(each.after.tensors[Kind.PARAMETERS]), w)
        close(of(each.after.tensors[Kind.CONTROL]), c)


@pytest.mark.parametrize("solver", ["scaffold", "feddc"])
def test_corrections_move_by_the_same_share_where_all_is_sealed(solver):
    """A sealed total says the weight of those present to the digit: model and c are the plain."""
    beside = [*SELECTED["selected"], f"solver.name={solver}"]
    plain, sealed = (
        played(quadratic_config(*beside, f"exchange.encrypt={how}", rounds=3), quadratic_of(5))
        for how in ("none", "model")
    )
    assert not sealed.result.incidents
    for kind in (Kind.PARAMETERS, Kind.CONTROL):
        one, other = (of(run.rounds[-1].after.tensors[kind]) for run in (plain, sealed))
        assert 0 < (one - other).abs().max() < 1e-5


@pytest.mark.parametrize("who", SELECTED)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_feddyns_h_moves_by_the_share_of_those_present(weights, who):
    """It is h - α P Δ, P the present clients' weight in that of all; so h stays Σ p_i h_i."""
    job = quadratic_of(5)
    beside = ["solver.name=feddyn", f"solver.alpha={ALPHA}", f"algorithm.weights={weights}"]
    run = played(quadratic_config(*SELECTED[who], *beside), job)
    clients, w, p = quadratics_of(job), job.model.weight.detach().T, shares_of(job, weights)
    own = {name: torch.zeros_like(w) for name in clients}
    for each in run.rounds:
        ends = {}
        for name in each.times:
            q = clients[name]
            pull = q.a @ q.b + own[name] + ALPHA * w
            ends[name] = y = descend(w, q.a + ALPHA * IDENTITY, pull, STEPS, LR)
            own[name] = own[name] - ALPHA * (y - w)
        h = weighted(p, own)
        if ends:
            w = weighted(p, ends) / sum(p[name] for name in ends) - h / ALPHA
        close(of(each.after.tensors[Kind.PARAMETERS]), w)
        close(-ALPHA * of(each.after.private), h)


# --- with replacement ---

TWICE = (
    "algorithm.name=fedavg",
    "selection.name=random",
    "selection.fraction=0.84",
    "selection.replacement=with",
)


@dataclass(frozen=True)
class Weighed:
    """FedAvg that notes the weight of every total."""

    noted: list = field(default_factory=list)
    inner: Federated = field(default_factory=Federated)

    def init(self, model):
        return self.inner.init(model)

    def plan(self, state, model):
        return self.inner.plan(state, model)

    def client(self, state, work, exchange):
        return self.inner.client(state, work, exchange)

    def update(self, state, totals):
        self.noted.extend(total.weight for total in totals.values())
        return self.inner.update(state, totals)


def test_a_client_that_is_drawn_twice_counts_twice():
    """Its weight is doubled, and no total weighs more than 1.

    Three bits are left for that, and the algorithm hears the weight as a share of all clients'.
    """
    noted, everyone = Weighed(), sum(min(size, BATCH) for size in SIZES) / (64 * 8)
    job = task(algorithm=noted)
    beside = [*TWICE, "algorithm.local_steps=2"]
    run = played(config(*beside, rounds=ROUNDS), job)
    assert all(sum(chosen.values()) == 5 for chosen in run.selected)
    assert {2, 3} & {n for chosen in run.selected for n in chosen.values()}
    expected, _ = by_hand(job, run.selected)
    close_models(run.result.model, expected)
    taken = [sum(n * min(SIZES[place(c)], BATCH) for c, n in each.items()) for each in run.selected]
    p = [size / sum(min(size, BATCH) for size in SIZES) for size in taken]
    close(noted.noted, [share for share in p for _ in range(2)])
    assert max(p) * everyone <= 1


@pytest.mark.parametrize("encrypt", ["statistics", "model"])
def test_nobody_counts_twice_in_a_sealed_total(encrypt):
    """The server says how often each counts: one that counts most is all that is left."""
    with pytest.raises(
        ConfigError, match=r'replacement = "with" .*"without", or exchange\.encrypt'
    ):
        config(*TWICE, f"exchange.encrypt={encrypt}", rounds=2)


@pytest.mark.parametrize("solver", ["scaffold", "feddyn", "feddc"])
def test_corrections_that_are_means_over_clients_take_each_client_once(solver):
    """One that counted twice would move its own c_i or h_i once and the server's twice."""
    with pytest.raises(ConfigError, match=r"selection\.replacement"):
        config(*TWICE, f"solver.name={solver}", rounds=2)


# --- what a selection goes by ---


@pytest.mark.parametrize("replacement", ["without", "with"])
def test_fedprof_without_a_penalty_is_random_selection(replacement):
    """α = 0: the same clients in every round, and the same model to the last bit."""
    data = ["data.public=60", "data.clients=12", "data.partition=iid", "model.width=8"]
    base = [*data, "algorithm.name=fedavg", "exchange.encrypt=none", "run.rounds=6"]
    base += ["selection.fraction=0.25", f"selection.replacement={replacement}"]
    names = ["selection.name=fedprof", "selection.alpha=0.0"], ["selection.name=random"]
    one, other = (played(securefl.load_config(None, [*base, *name])) for name in names)
    assert one.selected == other.selected
    assert len({tuple(chosen) for chosen in one.selected}) > 3
    assert identical(one.result.model, other.result.model)
    assert [m.loss for m in one.result.metrics] == [m.loss for m in other.result.metrics]


@pytest.mark.parametrize(
    ("n_clients", "fraction", "floor"), [(8, 0.25, 2), (9, 0.34, 1), (6, 0.17, 4)]
)
@pytest.mark.parametrize("name", ["random", "data-share"])
def test_no_client_waits_longer_than_the_fairness_floor_says(name, n_clients, fraction, floor):
    """Of N clients, n a round, none is left out of more than floor + ⌈N / n⌉ rounds in a row."""
    job = quadratic_of(n_clients)
    chosen = [f"selection.name={name}", f"selection.fraction={fraction}"]
    run = played(quadratic_config(*chosen, f"selection.fairness={floor}", rounds=40, steps=1), job)
    n = sum(run.selected[0].values())
    longest = Counter()
    for client in run.rounds[0].kept_before:
        waited = 0
        for each in run.selected:
            waited = 0 if client in each else waited + 1
            longest[client] = max(longest[client], waited)
    assert max(longest.values()) <= floor + -(-n_clients // n)


# --- an algorithm of one's own ---


@dataclass(frozen=True)
class Counting:
    """Sends a number that the state does not hold beside a model of its own making."""

    seen: list = field(default_factory=list)
    kind: Kind = Kind.STATISTICS

    def init(self, model):
        parameters = {name: w.detach().clone() for name, w in model.named_parameters()}
        return State(0, {Kind.PARAMETERS: parameters})

    def plan(self, state, model):
        n = sum(w.numel() for w in state.tensors[Kind.PARAMETERS].values())
        spec = MessageSpec("update/parameters", Kind.PARAMETERS, n)
        return Plan(update=(spec, MessageSpec(f"update/{self.kind}", self.kind, 1)))

    def client(self, state, work, exchange):
        moved = {name: w + 1 for name, w in state.tensors[Kind.PARAMETERS].items()}
        size = {"size": torch.tensor(float(len(work.data)), dtype=torch.float64)}
        return Contribution({Kind.PARAMETERS: moved, self.kind: size})

    def update(self, state, totals):
        self.seen.append(float(totals[self.kind].values["size"]))
        tensors = {Kind.PARAMETERS: totals[Kind.PARAMETERS].values}
        return State(state.round + 1, tensors)


@pytest.mark.parametrize("kind", [Kind.STATISTICS, Kind.CONTROL])
@pytest.mark.parametrize(("aggregation", "move"), [("partial", 1.0), ("full", 0.5)])
def test_an_algorithm_of_ones_own_has_rounds_of_some_clients(aggregation, move, kind):
    """Its model moves by one or by K/N of it; what no state holds is the mean of those present."""
    own = Counting(kind=kind)
    job = securefl.Task(torch.nn.Linear(12, 4).double(), task().clients, task().test, algorithm=own)
    chosen = [*HALF, f"selection.aggregation={aggregation}", "algorithm.weights=uniform"]
    run = played(config(*chosen, rounds=3), job)
    close(run.result.model.weight.detach(), job.model.weight.detach() + 3 * move)
    close(own.seen, [sum(SIZES[place(c)] for c in chosen) / 3 for chosen in run.selected])

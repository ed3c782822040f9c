"""Local solvers against closed forms on quadratics, and against loops written by hand."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice, repeat

import pytest
import torch
from quadratic import IDENTITY as I
from quadratic import descend, fedavg_fixed_point, minimiser, quadratics, run
from quadratic import task as quadratic_task
from torch import nn
from torch.nn import functional

import securefl
from securefl.algorithms.algorithm import Sgd, Work, trained_parameters
from securefl.algorithms.solvers.feddc import FedDC
from securefl.algorithms.solvers.feddyn import FedDyn
from securefl.algorithms.solvers.fedprox import FedProx
from securefl.algorithms.solvers.moon import Moon
from securefl.algorithms.solvers.scaffold import Scaffold
from securefl.algorithms.solvers.solver import Start
from securefl.data.samples import minibatches, samples
from securefl.errors import ConfigError, DataError
from securefl.federation.training import round_generator
from securefl.models.build import build_model
from securefl.types import ClientState, Kind

ROUNDS, STEPS, LR = 5, 3, 0.2
SIZES = (12, 30, 21)
CPU = torch.device("cpu")


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


# --- closed forms on quadratics ---


def start_and_clients():
    job = quadratic_task()
    return job.model.weight.detach().T.clone(), list(quadratics(job))


def fedavg(w, clients):
    for _ in range(ROUNDS):
        w = sum(c.p * descend(w, c.a, c.a @ c.b, STEPS, LR) for c in clients)
    return w


def fedprox(w, clients, mu=0.7):
    for _ in range(ROUNDS):
        w = sum(c.p * descend(w, c.a + mu * I, c.a @ c.b + mu * w, STEPS, LR) for c in clients)
    return w


def scaffold(w, clients):
    own, c = [torch.zeros_like(w) for _ in clients], torch.zeros_like(w)
    for _ in range(ROUNDS):
        ends = [
            descend(w, q.a, q.a @ q.b - c + ci, STEPS, LR)
            for q, ci in zip(clients, own, strict=True)
        ]
        own = [ci - c + (w - y) / (STEPS * LR) for ci, y in zip(own, ends, strict=True)]
        c = sum(q.p * ci for q, ci in zip(clients, own, strict=True))
        w = sum(q.p * y for q, y in zip(clients, ends, strict=True))
    return w


def feddyn(w, clients, alpha=0.7):
    own, h = [torch.zeros_like(w) for _ in clients], torch.zeros_like(w)
    for _ in range(ROUNDS):
        ends = [
            descend(w, q.a + alpha * I, q.a @ q.b + hi + alpha * w, STEPS, LR)
            for q, hi in zip(clients, own, strict=True)
        ]
        own = [hi - alpha * (y - w) for hi, y in zip(own, ends, strict=True)]
        average = sum(q.p * y for q, y in zip(clients, ends, strict=True))
        h = h - alpha * (average - w)
        w = average - h / alpha
    return w


def feddc(w, clients, alpha=0.7):
    drifts = [torch.zeros_like(w) for _ in clients]
    own, c = [torch.zeros_like(w) for _ in clients], torch.zeros_like(w)
    for _ in range(ROUNDS):
        ends = [
            descend(w, q.a + alpha * I, q.a @ q.b + alpha * (w - h) - c + ci, STEPS, LR)
            for q, h, ci in zip(clients, drifts, own, strict=True)
        ]
        own = [ci - c + (w - y) / (STEPS * LR) for ci, y in zip(own, ends, strict=True)]
        c = sum(q.p * ci for q, ci in zip(clients, own, strict=True))
        drifts = [h + y - w for h, y in zip(drifts, ends, strict=True)]
        w = sum(q.p * (y + h) for q, y, h in zip(clients, ends, drifts, strict=True))
    return w


def per_fedavg(w, clients, ahead=0.3):
    for _ in range(ROUNDS):
        slopes = [c.a @ (I - ahead * c.a) for c in clients]
        w = sum(
            c.p * descend(w, slope, slope @ c.b, STEPS, LR)
            for c, slope in zip(clients, slopes, strict=True)
        )
    return w


CLOSED_FORMS = {
    "sgd": (fedavg, []),
    "fedprox": (fedprox, ["solver.mu=0.7"]),
    "scaffold": (scaffold, []),
    "feddyn": (feddyn, ["solver.alpha=0.7"]),
    "feddc": (feddc, ["solver.alpha=0.7"]),
    "per-fedavg": (per_fedavg, ["solver.inner_lr=0.3"]),
}


@pytest.mark.parametrize("solver", CLOSED_FORMS)
def test_on_quadratics_a_solver_is_its_papers_closed_form(solver):
    """After five rounds of three steps w̄ is what linear algebra says, to 1e-12."""
    closed_form, settings = CLOSED_FORMS[solver]
    found = run(f"solver.name={solver}", *settings, rounds=ROUNDS, steps=STEPS, lr=LR)
    expected = closed_form(*start_and_clients())
    close(found, expected)
    if solver != "sgd":
        assert (expected - fedavg(*start_and_clients())).abs().max() > 1e-3


@pytest.mark.parametrize("solver", ["scaffold", "feddyn", "feddc"])
def test_corrected_solvers_find_the_minimiser_of_the_whole_loss(solver):
    """They end where Σ p_i f_i is least; FedAvg with as many local steps does not."""
    _, clients = start_and_clients()
    settings = [f"solver.name={solver}", "solver.alpha=1.0"]
    found = run(*settings, rounds=60, steps=4, lr=LR)
    assert (found - minimiser(clients)).abs().max() < 1e-8


def test_fedavg_ends_beside_the_minimiser():
    """Client drift: its fixed point weighs clients by their curvature, and is another point."""
    _, clients = start_and_clients()
    found = run(rounds=40, steps=8, lr=LR)
    expected = fedavg_fixed_point(clients, 8, LR)
    assert (found - expected).abs().max() < 1e-8
    assert (expected - minimiser(clients)).abs().max() > 1e-2


def test_fedprox_ends_nearer_the_minimiser_than_fedavg():
    """Its fixed point is Σ p_i (I - P_i) (A_i + μ)⁻¹ A_i (w - b_i) = 0, P_i the K steps' shrinking.

    Drift is less than FedAvg's, and still there.
    """
    _, clients = start_and_clients()
    mu, steps, pulls = 1.0, 10, []
    for c in clients:
        hessian = c.a + mu * I
        shrinking = torch.linalg.matrix_power(I - LR * hessian, steps)
        pulls.append(c.p * (I - shrinking) @ torch.linalg.solve(hessian, c.a))
    right = sum(pull @ c.b for pull, c in zip(pulls, clients, strict=True))
    expected = torch.linalg.solve(sum(pulls), right)
    found = run("solver.name=fedprox", f"solver.mu={mu}", rounds=80, steps=steps, lr=LR)
    assert (found - expected).abs().max() < 1e-8
    drift = (fedavg_fixed_point(clients, steps, LR) - minimiser(clients)).norm()
    assert 0.1 * drift < (expected - minimiser(clients)).norm() < 0.8 * drift


# --- equalities between methods ---


def net(norm="batch", dtype=torch.float64, dropout=0.0):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layer = {"batch": nn.BatchNorm1d(6), "group": nn.GroupNorm(2, 6), "none": nn.Identity()}
        layers = [nn.Linear(5, 6), layer[norm], nn.Tanh(), nn.Linear(6, 3)]
        if dropout:
            layers.insert(3, nn.Dropout(dropout))
        return nn.Sequential(*layers).to(dtype)


def job(dtype=torch.float64, **changes):
    rng = torch.Generator().manual_seed(1)
    clients = [
        (torch.randn(n, 5, generator=rng).to(dtype) + i, torch.randint(3, (n,), generator=rng))
        for i, n in enumerate(SIZES)
    ]
    return securefl.Task(net(dtype=dtype, **changes), clients, clients[0])


def train(job, *settings, rounds=3):
    base = [
        f"run.rounds={rounds}",
        "algorithm.name=fedavg",
        "algorithm.local_steps=3",
        "train.batch_size=8",
        "train.lr=0.1",
        "train.lr_drops=[]",
        "exchange.encrypt=none",
    ]
    return securefl.run(securefl.load_config(None, [*base, *settings]), job)


def identical(one, other):
    pairs = zip(one.model.state_dict().items(), other.model.state_dict().values(), strict=True)
    return [name for (name, a), b in pairs if not torch.equal(a, b)] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan", "fixbn", "fedbn"])
def test_fedprox_without_mu_is_fedavg_bit_for_bit(algorithm, dtype):
    """μ = 0 adds nothing, with momentum and weight decay too."""
    settings = [
        f"algorithm.name={algorithm}",
        "train.momentum=0.8",
        "train.weight_decay=0.01",
        "train.momentum_across_rounds=local",
    ]
    plain = train(job(dtype), *settings)
    assert identical(plain, train(job(dtype), *settings, "solver.name=fedprox", "solver.mu=0.0"))
    assert not identical(plain, train(job(dtype), *settings, "solver.name=fedprox"))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan", "fixbn", "fedbn", "silobn", "static-bn"])
def test_moon_without_mu_is_fedavg_bit_for_bit(algorithm):
    """The passes through its reference models leave no trace: neither in statistics and counters
    nor in the random numbers of dropout, and with FedTAN they are not pooled.
    """
    settings = [f"algorithm.name={algorithm}", "algorithm.switch=2"]
    settings = settings if algorithm == "fixbn" else settings[:1]
    plain = train(job(dropout=0.3), *settings, rounds=4)
    without = train(job(dropout=0.3), *settings, "solver.name=moon", "solver.mu=0.0", rounds=4)
    assert identical(plain, without)
    assert plain.ledger.communication_rounds(2) == without.ledger.communication_rounds(2)
    assert not identical(plain, train(job(dropout=0.3), *settings, "solver.name=moon", rounds=4))


def test_moons_first_round_is_fedavgs():
    """Without a last model there is nothing to push away from."""
    one_by_one = "run.engine=sequential"
    plain, moon = (train(job(), *s, one_by_one, rounds=1) for s in ([], ["solver.name=moon"]))
    assert identical(plain, moon)


def test_frozen_statistics_stay_frozen_under_moon():
    """With FixBN's frozen layers the references are frozen too, and S̄ keeps its bits."""
    settings = ["algorithm.name=fixbn", "algorithm.switch=2", "solver.name=moon"]
    at_switch, later = (train(job(), *settings, rounds=n).model[1] for n in (3, 5))
    assert torch.equal(at_switch.running_mean, later.running_mean)
    assert torch.equal(at_switch.running_var, later.running_var)


@pytest.mark.parametrize("norm", ["group", "none"])
def test_scaffold_with_one_step_is_sgd_on_the_union_of_the_batches(norm):
    """At E = 1 the corrections cancel in the mean: 20 rounds are 20 centralised steps."""
    task = job(norm=norm)
    settings = ["solver.name=scaffold", "algorithm.local_steps=1", "algorithm.weights=batch"]
    found = train(task, *settings, "train.batch_size=20", rounds=20)
    model = copy.deepcopy(task.model)
    for done in range(20):
        drawn = [batches(data, done, i, 20) for i, data in enumerate(task.clients)]
        x, y = (torch.cat(part) for part in zip(*map(next, drawn), strict=True))
        step(model, functional.cross_entropy(model(x), y), 0.1)
    close(list(found.model.parameters()), list(model.parameters()))


@pytest.mark.parametrize("momentum", ["reset", "local"])
def test_feddc_without_correction_would_be_feddyn(momentum):
    """One client has c = c_i, so that FedDC is FedDyn with h_i = -α drift, with momentum too."""
    task = replace(job(), clients=job().clients[:1])
    settings = ["train.momentum=0.5", f"train.momentum_across_rounds={momentum}"]
    alpha = "solver.alpha=0.4"
    one = train(task, *settings, "solver.name=feddc", alpha, rounds=5)
    other = train(task, *settings, "solver.name=feddyn", alpha, rounds=5)
    close(list(one.model.parameters()), list(other.model.parameters()))


# --- loops written by hand, with BN ---


def batches(data, done, client, size):
    return minibatches(samples(data, ""), size, round_generator(0, done, client), CPU)


def step(model, loss, lr):
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.sub_(gradient, alpha=lr)


def averaged(models):
    parts = [model.state_dict() for model in models]
    shares = [n / sum(SIZES) for n in SIZES]
    return {k: sum(p * part[k] for p, part in zip(shares, parts, strict=True)) for k in parts[0]}


def features(model, x, weights):
    """tanh(BN(x)) with the statistics of the batch, from named weights alone."""
    y = x @ weights["0.weight"].T + weights["0.bias"]
    y = (y - y.mean(0)) / (y.var(0, correction=0) + model[1].eps).sqrt()
    return torch.tanh(y * weights["1.weight"] + weights["1.bias"])


def contrast(z, positive, negative, temperature):
    def similar(other):
        return torch.exp((z * other).sum(1) / z.norm(dim=1) / other.norm(dim=1) / temperature)

    return -torch.log(similar(positive) / (similar(positive) + similar(negative))).mean()


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn"])
def test_moon_is_its_loss_written_by_hand(algorithm):
    """Four rounds of MOON equal Eq. (3) on weights alone; running statistics follow w only.

    With FedBN the global reference has w̄ and, since BN has none, the client's own BN.
    """
    task, mu, temperature = job(), 0.8, 0.4
    settings = ["solver.name=moon", f"solver.mu={mu}", f"solver.temperature={temperature}"]
    found = train(task, f"algorithm.name={algorithm}", *settings, rounds=4)
    own = [n for n in task.model.state_dict() if n.startswith("1.")] if algorithm == "fedbn" else []
    model, last, kept = copy.deepcopy(task.model), {}, [{}] * 3
    for done in range(4):
        locals_ = []
        for i, data in enumerate(task.clients):
            local = copy.deepcopy(model)
            local.load_state_dict(model.state_dict() | kept[i])
            positive = {k: v.detach().clone() for k, v in local.named_parameters()}
            for x, y in islice(batches(data, done, i, 8), 3):
                loss = functional.cross_entropy(local(x), y)
                if done:
                    weights = dict(local.named_parameters())
                    z, *others = (features(local, x, w) for w in (weights, positive, last[i]))
                    loss = loss + mu * contrast(z, *others, temperature)
                step(local, loss, 0.1)
            last[i] = {k: v.detach().clone() for k, v in local.named_parameters()}
            locals_.append(local)
        kept = [{k: v.clone() for k, v in m.state_dict().items() if k in own} for m in locals_]
        untouched = {k: model.state_dict()[k].clone() for k in [*own, "1.num_batches_tracked"]}
        model.load_state_dict(averaged(locals_) | untouched)
    close(found.model.state_dict(), model.state_dict())


def test_per_fedavg_is_a_gradient_one_step_ahead():
    """Three rounds equal the two-batch loop by hand, and running statistics follow B alone."""
    task, ahead = job(), 0.3
    found = train(task, "solver.name=per-fedavg", f"solver.inner_lr={ahead}")
    model = copy.deepcopy(task.model)
    for done in range(3):
        locals_ = []
        for i, data in enumerate(task.clients):
            local, drawn = copy.deepcopy(model), batches(data, done, i, 8)
            for _ in range(3):
                (x, y), (x2, y2) = next(drawn), next(drawn)
                loss = functional.cross_entropy(local(x), y)
                moved = copy.deepcopy(local)
                gradients = torch.autograd.grad(loss, list(local.parameters()))
                with torch.no_grad():
                    for w, g in zip(moved.parameters(), gradients, strict=True):
                        w.sub_(ahead * g)
                loss = functional.cross_entropy(moved(x2), y2)
                gradients = torch.autograd.grad(loss, list(moved.parameters()))
                with torch.no_grad():
                    for w, g in zip(local.parameters(), gradients, strict=True):
                        w.sub_(0.1 * g)
            locals_.append(local)
        counter = {"1.num_batches_tracked": task.model[1].num_batches_tracked}
        model.load_state_dict(averaged(locals_) | counter)
    close(found.model.state_dict(), model.state_dict())


# --- client-specific BN, encryption, models without features ---


@pytest.mark.parametrize(
    "solver", [FedProx(mu=0.9), Scaffold(), FedDyn(alpha=0.9), FedDC(alpha=0.9)]
)
def test_a_clients_own_tensors_get_no_correction(solver):
    """Local BN has no w̄: its gradient is the loss's, bit for bit; the others' are corrected."""
    task = job()
    x, y = task.clients[0]
    travelling = ["0.weight", "0.bias", "3.weight", "3.bias"]
    client_state, control = ClientState(), solver.control(task.model)
    for round_number in range(2):
        model = copy.deepcopy(task.model)
        origin = {n: w.detach() + 0.1 for n, w in model.named_parameters() if n in travelling}
        work = Work(
            model,
            samples((x, y), ""),
            repeat((x, y)),
            1,
            functional.cross_entropy,
            Sgd(0.1),
            client_state,
            torch.Generator(),
        )
        session = solver.begin(Start(work, trained_parameters(model), origin, control))
        session.gradients(nullcontext)
        end = session.end()
        client_state = ClientState(solver=end.client_state)
        control = {name: value + 1 for name, value in control.items()}
        plain = copy.deepcopy(task.model)
        functional.cross_entropy(plain(x), y).backward()
        corrected = {
            name
            for name, parameter in plain.named_parameters()
            if not torch.equal(parameter.grad, dict(model.named_parameters())[name].grad)
        }
        first_of_scaffold = round_number == 0 and isinstance(solver, Scaffold)
        assert corrected == (set() if first_of_scaffold else set(travelling))
        assert set(end.parameters) == set(travelling)
        assert not any("1." in name for name in [*end.control, *end.client_state])


@pytest.mark.parametrize("solver", ["scaffold", "feddc"])
def test_control_of_a_clients_own_tensors_does_not_travel(solver):
    """With FedBN the control sums have as many values as the parameters that travel."""
    task = job()
    result = train(task, "algorithm.name=fedbn", f"solver.name={solver}")
    sent = {e.kind: e.n_values for e in result.ledger.entries if e.receiver == "server"}
    local = sum(p.numel() for p in task.model[1].parameters())
    everything = sum(p.numel() for p in task.model.parameters())
    assert sent == dict.fromkeys([Kind.PARAMETERS, Kind.CONTROL], everything - local)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn", "fixbn"])
@pytest.mark.parametrize(
    "solver", ["fedprox", "scaffold", "moon", "feddyn", "feddc", "per-fedavg", "agc", "ditto"]
)
def test_encryption_changes_nothing_that_matters(solver, algorithm):
    """After three rounds with all that travels encrypted, weights are within 1e-4 of the plain."""
    settings = [f"solver.name={solver}", f"algorithm.name={algorithm}"]
    if algorithm == "fixbn":
        settings.append("algorithm.freeze=both")
    plain = train(job(), *settings)
    sealed = train(job(), *settings, "exchange.encrypt=model")
    pairs = zip(plain.model.parameters(), sealed.model.parameters(), strict=True)
    assert 0 < max(float((a - b).detach().abs().max()) for a, b in pairs) < 1e-4


def test_moon_needs_a_last_linear_layer():
    """Without one the message says so before anything runs, and names the layer."""
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(3 * 2))
    with pytest.raises(DataError, match=r"'1', is a BatchNorm1d: let the model end with"):
        train(replace(job(), model=model.double()), "solver.name=moon")
    with pytest.raises(DataError, match="last linear layer"):
        Moon(mu=1.0, temperature=0.5).control(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()))


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20"])
def test_the_models_have_features(name):
    """MOON can train each of them."""
    model = build_model(name, "batch", in_channels=1, n_features=64, n_classes=4, width=4)
    assert Moon(mu=1.0, temperature=0.5).control(model) == {}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["solver.name=per-fedavg", "algorithm.name=fedtan"], "a step has two forward"),
        (["solver.name=per-fedavg", "algorithm.name=forward-only"], "a step has two forward"),
        (["solver.name=feddc", "server.name=fednova"], "a step of its own"),
        (["solver.name=feddc", "server.name=momentum"], "a step of its own"),
    ],
)
def test_solvers_are_refused_where_their_algebra_does_not_hold(settings, reason):
    """The message gives the reason."""
    with pytest.raises(ConfigError, match=reason):
        train(job(), *settings)

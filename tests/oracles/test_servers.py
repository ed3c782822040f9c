"""Server optimisers against sequences written by hand and closed forms on quadratics."""

from __future__ import annotations

import copy
from itertools import islice, repeat

import pytest
import torch
from quadratic import SIZES, descend, least_squares, minimiser, quadratics, run
from quadratic import task as quadratic_task
from torch import nn
from torch.nn import functional

import securefl
from securefl.algorithms.algorithm import Sgd, Work
from securefl.algorithms.servers.adaptive import FedAdagrad, FedAdam, FedYogi
from securefl.algorithms.servers.drift import DriftServer
from securefl.algorithms.servers.fednova import effective_steps
from securefl.algorithms.servers.server_optimiser import Averaged
from securefl.build.algorithm import chosen_algorithm
from securefl.data.samples import minibatches, samples
from securefl.federation.training import round_generator
from securefl.types import ClientState, Kind, Total

ROUNDS, STEPS, LR = 6, 3, 0.2
QUICK = ("server.beta1=0.5", "server.beta2=0.5")


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def by_hand(step):
    """w̄ after rounds in which `step(w̄, Δ)` is the next w̄ and Δ FedAvg's move in closed form."""
    job = quadratic_task()
    w, clients = job.model.weight.detach().T.clone(), list(quadratics(job))
    for _ in range(ROUNDS):
        average = sum(c.p * descend(w, c.a, c.a @ c.b, STEPS, LR) for c in clients)
        w = step(w, average - w)
    return w


def test_server_momentum_by_hand():
    """With v ← β v + Δ and w̄ ← w̄ + η v, a round moves w̄ by η Σ β^(t-s) Δ_s."""
    beta, lr, moves = 0.6, 0.7, []

    def step(w, move):
        moves.append(move)
        return w + lr * sum(beta**age * old for age, old in enumerate(reversed(moves)))

    settings = ["server.name=momentum", f"server.lr={lr}", f"server.momentum={beta}"]
    close(run(*settings, rounds=ROUNDS, steps=STEPS, lr=LR), by_hand(step))


def second_moment(name, v, square, beta2):
    if name == "fedadagrad":
        return v + square
    if name == "fedadam":
        return beta2 * v + (1 - beta2) * square
    return v - (1 - beta2) * square * torch.where(v > square, 1.0, -1.0)


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_adaptive_servers_by_hand(name):
    """m, v and w̄ follow the papers' recursions from m = 0 and v = τ²."""
    beta1, beta2, tau, lr = 0.7, 0.8, 0.05, 0.1
    m, v, signs = 0.0, torch.tensor(tau, dtype=torch.float64).square(), set()

    def step(w, move):
        nonlocal m, v
        m = beta1 * m + (1 - beta1) * move
        signs.update((v > move**2).flatten().tolist())
        v = second_moment(name, v, move**2, beta2)
        return w + lr * m / (v.sqrt() + tau)

    settings = [
        f"server.name={name}",
        f"server.lr={lr}",
        f"server.beta1={beta1}",
        *([f"server.beta2={beta2}"] if name != "fedadagrad" else []),
        f"server.tau={tau}",
    ]
    expected = by_hand(step)
    assert signs == {True, False}  # both of Yogi's cases have been seen
    close(run(*settings, rounds=ROUNDS, steps=STEPS, lr=LR), expected)


def test_adaptive_moments_of_one_parameter():
    """Three moves of 1, 2 and -1 give the m and v that a pencil gives."""
    w = {"w": torch.zeros(1, dtype=torch.float64)}
    after = {
        FedAdagrad: ([0.5, 1.25, 0.125], [1.25, 5.25, 6.25]),
        FedAdam: ([0.5, 1.25, 0.125], [0.4375, 1.328125, 1.24609375]),
        FedYogi: ([0.5, 1.25, 0.125], [0.5, 1.5, 1.25]),
    }
    for kind, (first, second) in after.items():
        beta2 = {} if kind is FedAdagrad else {"beta2": 0.75}
        server = kind(lr=1.0, beta1=0.5, tau=0.5, **beta2)
        kept = server.init(w)
        for move, m, v in zip([1.0, 2.0, -1.0], first, second, strict=True):
            average = {"w": w["w"] + move}
            stepped, kept = server.step(Averaged(w, average, {}, 1.0), kept)
            close(float(kept["m/w"]), m)
            close(float(kept["v/w"]), v)
            close(float(stepped["w"]), m / (v**0.5 + 0.5))


@pytest.mark.parametrize(
    "settings",
    [
        ["server.name=momentum", "server.lr=0.6", "server.momentum=0.5"],
        ["server.name=fedadam", "server.lr=0.6", "server.tau=0.5", *QUICK],
        ["server.name=fedyogi", "server.lr=0.6", "server.tau=0.5", *QUICK],
        ["server.name=fedadagrad", "server.lr=1.2", "server.tau=0.5", QUICK[0]],
        ["server.name=fednova"],
    ],
)
def test_with_one_local_step_servers_find_the_minimiser(settings):
    """Δ is then a step of gradient descent on Σ p_i f_i, and every optimiser ends at its foot."""
    clients = list(quadratics(quadratic_task()))
    found = run(*settings, rounds=120, steps=1, lr=0.4)
    assert (found - minimiser(clients)).abs().max() < 1e-5


# --- equal to FedAvg ---

N_SAMPLES = (12, 30, 21)


def job(dtype):
    rng = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    clients = [
        (torch.randn(n, 5, generator=rng).to(dtype), torch.randint(3, (n,), generator=rng))
        for n in N_SAMPLES
    ]
    return securefl.Task(model.to(dtype), clients, clients[0])


def train(dtype, *settings):
    base = [
        "run.rounds=4",
        "algorithm.name=fedavg",
        "algorithm.local_steps=3",
        "train.batch_size=8",
        "train.lr=0.1",
        "exchange.encrypt=none",
    ]
    return securefl.run(securefl.load_config(None, [*base, *settings]), job(dtype)).model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fedadam_with_neutral_settings_is_fedavg_bit_for_bit(dtype):
    """β₁ = 0, β₂ = 1, τ = ½ and η = 1 divide by one."""
    neutral = ["server.beta1=0.0", "server.beta2=1.0", "server.tau=0.5", "server.lr=1.0"]
    plain = train(dtype).state_dict()
    adam = train(dtype, "server.name=fedadam", *neutral).state_dict()
    assert all(torch.equal(plain[name], value) for name, value in adam.items())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(momentum):
    """Normalised by a common number of steps and multiplied by it again, to 1e-12."""
    settings = [f"train.momentum={momentum}"]
    plain = train(torch.float64, *settings)
    nova = train(torch.float64, "server.name=fednova", *settings)
    close(list(nova.parameters()), list(plain.parameters()))


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_fednova_with_unequal_steps_is_equation_6(momentum):
    """Clients of one epoch each take 2, 5 and 3 steps; their moves count by their direction.

    a_i holds the weight with which each gradient entered the client's move: momentum's geometric
    sums. The average of the models themselves, FedAvg, is another point.
    """
    job, size, rounds = quadratic_task(), 4, 3
    settings = [
        "algorithm.local_epochs=1",
        f"train.batch_size={size}",
        f"train.momentum={momentum}",
    ]
    found = run("server.name=fednova", *settings, rounds=rounds, steps=1, lr=LR)
    fedavg = run(*settings, rounds=rounds, steps=1, lr=LR)
    model, shares = copy.deepcopy(job.model), [n / sum(SIZES) for n in SIZES]
    for done in range(rounds):
        w, norms, directions = model.weight.detach().clone(), [], []
        for i, data in enumerate(job.clients):
            k, gradients = len(data[1]) // size, []
            local = copy.deepcopy(model)
            drawn = minibatches(
                samples(data, ""), size, round_generator(0, done, i), torch.device("cpu")
            )
            for x, y in islice(drawn, k):
                (gradient,) = torch.autograd.grad(least_squares(local(x), y), [local.weight])
                gradients.append(gradient)
                with torch.no_grad():
                    buffer = sum(momentum**j * g for j, g in enumerate(reversed(gradients)))
                    local.weight.sub_(LR * buffer)
            a = [sum(momentum**j for j in range(k - s)) for s in range(k)]
            norms.append(sum(a))
            directions.append(sum(c * g for c, g in zip(a, gradients, strict=True)) / sum(a))
        effective = sum(p * norm for p, norm in zip(shares, norms, strict=True))
        mean = sum(p * d for p, d in zip(shares, directions, strict=True))
        with torch.no_grad():
            model.weight.copy_(w - LR * effective * mean)
    close(found, model.weight.detach().T)
    assert (found - fedavg).abs().max() > 1e-3


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_effective_steps_count_gradients_by_their_weight(k, momentum):
    """‖a‖₁ is how far K gradients of one move w: run through torch's own SGD."""
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    sgd = torch.optim.SGD([w], 1.0, momentum=momentum)
    for _ in range(k):
        w.grad = -torch.ones_like(w)
        sgd.step()
    assert effective_steps(k, momentum) == pytest.approx(float(w.detach()), abs=1e-12)


@pytest.mark.parametrize("name", ["momentum", "fedadam", "fedadagrad", "fedyogi", "fednova"])
def test_encryption_changes_nothing_that_matters(name):
    """After four rounds with all that travels encrypted, weights are within 1e-4 of the plain."""
    settings = [f"server.name={name}", *(["server.lr=0.1"] if name != "fednova" else [])]
    plain = train(torch.float64, *settings)
    sealed = train(torch.float64, *settings, "exchange.encrypt=model")
    pairs = zip(plain.parameters(), sealed.parameters(), strict=True)
    assert 0 < max(float((a - b).detach().abs().max()) for a, b in pairs) < 1e-4


@pytest.mark.parametrize(
    ("name", "lr"), [("momentum", 0.1), ("fedadagrad", 0.1), ("fedadam", 0.01), ("fedyogi", 0.01)]
)
def test_each_optimiser_has_a_learning_rate_of_its_own(name, lr):
    """Where server.lr is absent, the run is the one with this η, bit for bit."""
    absent = train(torch.float32, f"server.name={name}").state_dict()
    given = train(torch.float32, f"server.name={name}", f"server.lr={lr}").state_dict()
    assert all(torch.equal(absent[key], value) for key, value in given.items())


def test_the_servers_drift_stays_the_mean_of_the_clients_when_one_is_missing():
    """Whose h_i has not moved counts with its share: H is Σ p_i h_i all the time."""
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    server, w = DriftServer(), {"w": torch.zeros(2, dtype=torch.float64)}
    kept, own = server.init(w), torch.zeros(3, 2, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    for present in ([0, 1, 2], [0, 2], [1], [0, 1, 2]):
        moves = torch.randn(3, 2, generator=rng, dtype=torch.float64)
        own[present] += moves[present]
        share = weights[present] / weights[present].sum()
        mean = {"w": w["w"] + share @ moves[present]}
        _, kept = server.step(Averaged(w, mean, {}, float(weights[present].sum())), kept)
        close(kept["drift/w"], weights @ own)


def test_fednova_loses_no_digits_over_many_steps():
    """Of 2000 equal steps in float32 it is FedAvg to the last digits."""
    rng = torch.Generator().manual_seed(0)
    clients = [(torch.randn(20, 3, generator=rng), torch.randn(20, 1, generator=rng)) for _ in "ab"]
    first = nn.Linear(3, 1)
    models = []
    for server in ("average", "fednova"):
        settings = [f"server.name={server}", "algorithm.name=fedavg", "algorithm.local_steps=2000"]
        config = securefl.load_config(None, ["exchange.encrypt=none", *settings])
        algorithm = chosen_algorithm(config)
        state, sent = algorithm.init(first), []
        for x, y in clients:
            work = Work(
                copy.deepcopy(first),
                samples((x, y), "a client"),
                repeat((x, y)),
                2000,
                functional.mse_loss,
                Sgd(0.01),
                ClientState(),
                torch.Generator(),
            )
            sent.append(algorithm.client(state, work, None).tensors)
        totals = {
            kind: Total({n: (sent[0][kind][n] + sent[1][kind][n]) / 2 for n in named}, 1.0, 2)
            for kind, named in sent[0].items()
        }
        models.append(algorithm.update(state, totals).tensors[Kind.PARAMETERS])
    for name, value in models[0].items():
        assert (value - models[1][name]).abs().max() < 1e-6

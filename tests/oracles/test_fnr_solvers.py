"""FNR-FL around each solver, against rounds written by hand: what is refined is sent and kept so.

MOON, FedDyn, FedDC, Per-FedAvg and FedNova; SGD, FedProx and SCAFFOLD are in test_fnr.py.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import islice

import pytest
import torch
from by_hand import LR, SEED, after_a_round, averaged, config, largest_difference, mean
from by_hand import task as by_hand_task
from fnr_by_hand import features, public, refine, weakest_and_reference
from torch.nn import functional

import securefl
from securefl.algorithms.fnr import FNR
from securefl.build.algorithm import chosen_algorithm
from securefl.build.simulation import simulated
from securefl.data.samples import minibatches, samples
from securefl.federation.training import round_generator

ROUNDS, BATCH, STRENGTH = 4, 5, 0.4
STEPS = (1, 1, 2, 1)
"""Of an epoch of each client's data, in batches of five."""
ALPHA, MU, TEMPERATURE, AHEAD = 0.9, 0.8, 0.5, 0.3
SETTINGS = {
    "moon": [f"solver.mu={MU}", f"solver.temperature={TEMPERATURE}"],
    "feddyn": [f"solver.alpha={ALPHA}"],
    "feddc": [f"solver.alpha={ALPHA}"],
    "per-fedavg": [f"solver.inner_lr={AHEAD}"],
    "fednova": [],
}


def gradients(model, loss):
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def step(model, along):
    with torch.no_grad():
        for name, w in model.named_parameters():
            w.sub_(LR * along[name])


def weights(model):
    return {name: w.detach().clone() for name, w in model.named_parameters()}


def loss_of(model, x, y):
    return functional.cross_entropy(model(x), y)


def plus(*named):
    return {name: sum(tensors[name] for tensors in named) for name in named[0]}


def times(factor, tensors):
    return {name: factor * value for name, value in tensors.items()}


@dataclass
class Client:
    """One client; each solver below is its paper's update, and no more."""

    kept: dict = field(default_factory=dict)

    def steps(self, model, start, data, c):
        for x, y in data:
            step(model, gradients(model, loss_of(model, x, y)))
        return weights(model)

    def after(self, model, start):
        """When the refinement is done."""


class MoonClient(Client):
    def steps(self, model, start, data, c):
        others = []
        for named in (start, self.kept) if self.kept else ():
            others.append(copy.deepcopy(model))
            others[-1].load_state_dict(named, strict=False)
        for x, y in data:
            z = features(model, x)
            loss = functional.cross_entropy(model[-1](z), y)
            if others:
                sims = [functional.cosine_similarity(z, features(o, x).detach()) for o in others]
                e_global, e_last = (torch.exp(sim / TEMPERATURE) for sim in sims)
                loss = loss - MU * torch.log(e_global / (e_global + e_last)).mean()
            step(model, gradients(model, loss))
        self.kept = weights(model)
        return self.kept


class DynClient(Client):
    def steps(self, model, start, data, c):
        h = self.kept or times(0, start)
        for x, y in data:
            g = gradients(model, loss_of(model, x, y))
            moved = plus(weights(model), times(-1, start))
            step(model, plus(g, times(ALPHA, moved), times(-1, h)))
        return weights(model)

    def after(self, model, start):
        moved = plus(weights(model), times(-1, start))
        self.kept = plus(self.kept or times(0, start), times(-ALPHA, moved))


class DcClient(Client):
    def steps(self, model, start, data, c):
        h = self.kept.get("h", times(0, start))
        own = self.kept.get("own", times(0, start))
        total = times(0, start)
        for x, y in data:
            g = gradients(model, loss_of(model, x, y))
            moved = plus(weights(model), times(-1, start))
            g = plus(g, times(ALPHA, plus(moved, h)))
            total = plus(total, g)
            step(model, plus(g, c, times(-1, own)))
        self.kept = {"h": h, "own": times(1 / len(data), total)}
        return weights(model)

    def after(self, model, start):
        self.kept["h"] = plus(self.kept["h"], weights(model), times(-1, start))


class AheadClient(Client):
    def steps(self, model, start, data, c):
        for (x, y), (x2, y2) in zip(data[::2], data[1::2], strict=True):
            ahead = copy.deepcopy(model)
            step_ahead = gradients(model, loss_of(model, x, y))
            with torch.no_grad():
                for name, w in ahead.named_parameters():
                    w.sub_(AHEAD * step_ahead[name])
            step(model, gradients(ahead, loss_of(ahead, x2, y2)))
        return weights(model)


class NovaClient(Client):
    """What it sends has moved by the mean of its steps."""

    def steps(self, model, start, data, c):
        super().steps(model, start, data, c)
        self.kept = {"steps": len(data)}
        return self.normalised(weights(model), start)

    def normalised(self, end, start):
        return plus(start, times(1 / self.kept["steps"], plus(end, times(-1, start))))


CLIENTS = {
    "moon": MoonClient,
    "feddyn": DynClient,
    "feddc": DcClient,
    "per-fedavg": AheadClient,
    "fednova": NovaClient,
}


def drawn(job, done, i, n):
    rng = round_generator(SEED, done, i)
    stock = minibatches(samples(job.clients[i], "a client"), BATCH, rng, torch.device("cpu"))
    return list(islice(stock, n))


def by_hand(solver):
    """The global model after all rounds; clients weigh alike, as their batches are."""
    job, stock = by_hand_task(), public()
    model, p = copy.deepcopy(job.model), [0.25] * 4
    clients = [CLIENTS[solver]() for _ in job.clients]
    c = h = times(0, weights(model))
    for done in range(ROUNDS):
        start, locals_, sent = weights(model), [], []
        for i, client in enumerate(clients):
            local = copy.deepcopy(model).train()
            n = STEPS[i] * (2 if solver == "per-fedavg" else 1)
            sent.append(client.steps(local, start, drawn(job, done, i, n), c))
            locals_.append(local)
        weakest, reference = weakest_and_reference(locals_, stock)
        for j in weakest:
            before = weights(locals_[j])
            refine(locals_[j], reference, stock, done, STRENGTH)
            moved = plus(weights(locals_[j]), times(-1, before))
            sent[j] = plus(sent[j], moved)
            if solver == "fednova":
                sent[j] = clients[j].normalised(weights(locals_[j]), start)
        for client, local in zip(clients, locals_, strict=True):
            client.after(local, start)
        average = mean(p, [averaged(local) for local in locals_]) | mean(p, sent)
        if solver == "feddc":
            c = mean(p, [client.kept["own"] for client in clients])
            average |= plus(mean(p, sent), mean(p, [client.kept["h"] for client in clients]))
        if solver == "feddyn":
            moved = plus(mean(p, sent), times(-1, start))
            h = plus(h, times(-ALPHA, moved))
            average |= plus(mean(p, sent), times(-1 / ALPHA, h))
        if solver == "fednova":
            steps = sum(share * n for share, n in zip(p, STEPS, strict=True))
            moved = plus(mean(p, sent), times(-1, start))
            average |= plus(start, times(steps, moved))
        model.load_state_dict(average, strict=False)
    return model


def run(solver, refined):
    name = "server.name=fednova" if solver == "fednova" else f"solver.name={solver}"
    settings = config(
        name,
        *SETTINGS[solver],
        f"train.batch_size={BATCH}",
        "train.weight_decay=0.0",
        "algorithm.name=fedavg",
        "algorithm.local_epochs=1",
        rounds=ROUNDS,
    )
    inner = chosen_algorithm(settings)
    algorithm = FNR(inner, public(), 0.25, STRENGTH) if refined else inner
    return securefl.run(settings, by_hand_task(algorithm=algorithm)).model


@pytest.mark.parametrize("solver", CLIENTS)
def test_rounds_are_those_of_the_loop(solver):
    """Four clients, one refined, one of more local steps: the model is the loop's, to 1e-9."""
    found = run(solver, refined=True)
    assert largest_difference(found, by_hand(solver)) < 1e-9
    assert largest_difference(found, run(solver, refined=False)) > 1e-3


@pytest.mark.parametrize("solver", ["feddyn", "feddc"])
def test_the_servers_drift_stays_the_clients_mean(solver):
    """After each round it is Σ p_i h_i: what was refined is in both."""
    job = by_hand_task()
    settings = config(
        f"solver.name={solver}", f"solver.alpha={ALPHA}", "train.weight_decay=0.0", rounds=1
    )
    for refined in (False, True):
        inner = chosen_algorithm(settings)
        algorithm = FNR(inner, public(), 0.25, STRENGTH) if refined else inner
        rounds = simulated(settings, by_hand_task(algorithm=algorithm))
        state = rounds.state
        for _ in range(3):
            state = after_a_round(rounds, state)
        engine = rounds.parts.engine
        total = sum(client.weight for client in engine._clients.values())
        p = [client.weight / total for client in engine._clients.values()]
        drift = mean(
            p,
            [drifts(solver, client_state.solver) for client_state in engine.client_states.values()],
        )
        assert drift.keys() == weights(job.model).keys()
        for name, value in drift.items():
            torch.testing.assert_close(state.private[f"drift/{name}"], value, rtol=0, atol=1e-12)


def drifts(solver, kept):
    """A client's h_i; FedDyn's is -α times it."""
    if solver == "feddyn":
        return times(-1 / ALPHA, kept)
    return {n.removeprefix("drift/"): h for n, h in kept.items() if n.startswith("drift/")}

"""FNR-FL against rounds written by hand, its penalties, its ablations, and who learns what."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from by_hand import LR, after_a_round, batches, config, largest_difference, mean, shares
from by_hand import task as by_hand_task
from fnr_by_hand import descend, norm_table, public, refine, weakest_and_reference
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import securefl
from securefl.algorithms.algorithm import Sgd
from securefl.algorithms.features import ClassNorms, class_norms
from securefl.algorithms.federated import Federated
from securefl.algorithms.fnr import FNR, Match, literal_penalty, matched_penalty
from securefl.algorithms.normalisation.client_bn import ClientBN
from securefl.algorithms.normalisation.fixbn import FixBN
from securefl.algorithms.normalisation.static_bn import static_bn
from securefl.algorithms.public_training import Objective, ServerTuned, train_on_public
from securefl.algorithms.servers.fednova import Normalised, NovaServer
from securefl.algorithms.solvers.fedprox import FedProx
from securefl.algorithms.solvers.scaffold import Scaffold
from securefl.algorithms.solvers.sgd import SGD
from securefl.build.algorithm import chosen_algorithm
from securefl.build.simulation import simulated
from securefl.errors import ConfigError, DataError
from securefl.types import Kind

E, ROUNDS, MU, STRENGTH = 3, 3, 0.7, 0.4
SOLVERS = {"sgd": SGD(), "fedprox": FedProx(mu=MU), "scaffold": Scaffold()}


def run(algorithm, *settings, rounds=ROUNDS, **changes):
    base = [f"algorithm.local_steps={E}", "train.weight_decay=0.0", *settings]
    return securefl.run(config(*base, rounds=rounds), by_hand_task(algorithm=algorithm, **changes))


# --- by hand ---


def correction(solver, start, c, own):
    """What a solver adds to the gradient."""
    return {
        "sgd": None,
        "fedprox": lambda name, w: MU * (w - start[name]),
        "scaffold": lambda name, _: c[name] - own[name],
    }[solver]


def by_hand(solver, strength=STRENGTH):
    """The global model after all rounds."""
    job, stock = by_hand_task(), public()
    model, p = copy.deepcopy(job.model), shares(job)
    zeros = {name: torch.zeros_like(w) for name, w in model.named_parameters()}
    c, own = zeros, [zeros for _ in job.clients]
    for done in range(ROUNDS):
        start = {name: w.detach().clone() for name, w in model.named_parameters()}
        locals_ = []
        for i in range(len(job.clients)):
            local = copy.deepcopy(model).train()
            extra = correction(solver, start, c, own[i])
            for x, y in batches(job, done, i, E):
                descend(local, functional.cross_entropy(local(x), y), extra)
            locals_.append(local)
        if solver == "scaffold":  # of the steps on the client's own data alone
            ends = [dict(local.named_parameters()) for local in locals_]
            own = [
                {n: (ci[n] - c[n] + (start[n] - end[n]) / (E * LR)).detach() for n in ci}
                for ci, end in zip(own, ends, strict=True)
            ]
            c = mean(p, own)
        weakest, reference = weakest_and_reference(locals_, stock)
        for j in weakest:
            refine(locals_[j], reference, stock, done, strength)
        states = [
            {n: v for n, v in local.state_dict().items() if v.is_floating_point()}
            for local in locals_
        ]
        model.load_state_dict(mean(p, states), strict=False)
    return model


@pytest.mark.parametrize("solver", SOLVERS)
def test_rounds_are_the_papers(solver):
    """Four clients, one refined: with each solver the model is that of a loop, to 1e-9."""
    found = run(FNR(Federated(solver=SOLVERS[solver]), public(), 0.25, STRENGTH)).model
    expected = by_hand(solver)
    assert largest_difference(found, expected) < 1e-9
    unrefined = run(Federated(solver=SOLVERS[solver])).model
    assert largest_difference(found, unrefined) > 1e-3
    unpenalised = by_hand(solver, strength=0.0)
    assert largest_difference(found, unpenalised) > 1e-3


# --- penalties ---


def some_batch():
    rng = torch.Generator().manual_seed(3)
    h = torch.randn(6, 5, generator=rng, dtype=torch.float64)
    reference = ClassNorms(
        torch.tensor([5.0, 0.0, 9.0]).double(), torch.tensor([3.0, 0, 3]).double()
    )
    return h, torch.tensor([0, 2, 2, 1, 0, 2]), reference


def test_the_matched_penalty_has_the_gradient_of_finite_differences():
    """Central differences in every feature agree to 1e-7."""
    h, y, reference = some_batch()
    h.requires_grad_()
    matched_penalty(h, y, reference).backward()
    step = 1e-6
    for index in torch.cartesian_prod(*(torch.arange(n) for n in h.shape)).tolist():
        shift = torch.zeros_like(h)
        shift[tuple(index)] = step
        with torch.no_grad():
            above, below = (matched_penalty(h + s * shift, y, reference) for s in (1, -1))
        assert abs(float((above - below) / (2 * step) - h.grad[tuple(index)])) < 1e-7
    assert h.grad.abs().max() > 0.1


def test_a_class_that_no_reference_has_does_not_pull():
    """Its samples get no gradient from J, and the others' is not changed by it."""
    h, y, reference = some_batch()
    h.requires_grad_()
    j = matched_penalty(h, y, reference)
    j.backward()
    norm = h.detach().norm(dim=1)
    by_class = {label: norm[y == label].mean() for label in (0, 2)}
    expected = 2 / 6 * (by_class[0] - 5 / 3) ** 2 + 3 / 6 * (by_class[2] - 3) ** 2
    torch.testing.assert_close(j.detach(), expected)
    assert (h.grad[y == 1] == 0).all()


def test_the_matched_penalty_pulls_norms_to_the_reference():
    """Eight rounds of refinement alone: with a penalty norms end nearer to a reference of 4."""
    stock, far = public(), {}
    reference = ClassNorms(torch.full((4,), 4.0).double(), torch.ones(4).double())
    for strength in (0.0, 0.5):
        model = by_hand_task().model
        objective = Objective(
            functional.cross_entropy, strength, lambda h, y: matched_penalty(h, y, reference)
        )
        for done in range(8):
            train_on_public(model, stock, done, Sgd(LR), objective)
        table = norm_table(model, (stock.samples.x, stock.samples.y))
        far[strength] = sum(abs(norm - 4) for norm in table.values())
    assert far[0.5] < 0.7 * far[0.0]


def test_the_literal_penalty_is_the_printed_one_and_a_constant():
    """J = Σ_l ρ_l Δ[l] by a loop over labels; no feature moves it."""
    h, y, _ = some_batch()
    delta = torch.tensor([1.5, -2.0, 0.25]).double()
    j = literal_penalty(h.requires_grad_(), y, delta)
    assert float(j) == pytest.approx(2 / 6 * 1.5 + 1 / 6 * -2.0 + 3 / 6 * 0.25)
    assert not j.requires_grad


def test_class_norms_of_no_sample_are_absent():
    """A class without samples has count 0 and is not known."""
    h, y, _ = some_batch()
    norms = class_norms(h, y, 5)
    assert norms.known_C.tolist() == [True, True, True, False, False]
    assert norms.mean_C[3:].tolist() == [0, 0]


# --- ablations ---


def test_literal_is_no_penalty_bit_for_bit():
    """The paper's printed objective trains as λ = 0 does; the matched one does not."""
    ways = {
        "literal": FNR(Federated(), public(), 0.25, STRENGTH, Match.LITERAL),
        "none": FNR(Federated(), public(), 0.25, 0.0),
        "matched": FNR(Federated(), public(), 0.25, STRENGTH),
    }
    models = {name: run(way).model for name, way in ways.items()}
    assert largest_difference(models["literal"], models["none"]) == 0
    assert largest_difference(models["matched"], models["none"]) > 1e-3


def test_the_server_can_train_in_the_place_of_clients():
    """A round's average, then epochs on the public set: by a loop, to 1e-12."""
    job, stock = by_hand_task(), public()
    server = ServerTuned(Federated(), stock, job.model, functional.cross_entropy, lambda _: Sgd(LR))
    expected = run(Federated(), rounds=1).model
    refine(expected, dict.fromkeys(range(4), 0.0), stock, 0, 0.0)
    assert largest_difference(run(server, rounds=1).model, expected) < 1e-12


def test_the_server_trains_frozen_bn_frozen():
    """In FixBN's second stage it normalises by the global statistics, as clients do: by a loop."""
    job, stock, inner = by_hand_task(), public(), Federated(FixBN(0))
    server = ServerTuned(inner, stock, job.model, functional.cross_entropy, lambda _: Sgd(LR))
    expected = run(inner, rounds=1).model
    layer = expected[1].eval()
    expected.train = lambda: expected  # keeps BN in evaluation mode: as frozen
    refine(expected, dict.fromkeys(range(4), 0.0), stock, 0, 0.0)
    found = run(server, rounds=1).model
    assert largest_difference(found, expected) < 1e-12
    assert torch.equal(found[1].running_mean, layer.running_mean)


@pytest.mark.parametrize(
    ("normalisation", "kept"),
    [
        (static_bn, ["running_mean", "running_var"]),
        (ClientBN("silobn", affine=False), ["running_mean", "running_var"]),
        (ClientBN("fedbn"), ["running_mean", "running_var", "weight", "bias"]),
    ],
)
def test_what_is_not_the_servers_is_not_tuned(normalisation, kept):
    """Statistics measured by clients, and a client's own BN, are what they are without it."""
    job, inner = by_hand_task(), Federated(normalisation)
    server = ServerTuned(inner, public(), job.model, functional.cross_entropy, lambda _: Sgd(LR))
    alone = "run.engine=sequential"
    found, plain = (run(way, alone, rounds=1).model for way in (server, inner))
    for name in kept:
        assert torch.equal(getattr(found[1], name), getattr(plain[1], name))
    assert not torch.equal(found[0].weight, plain[0].weight)


# --- with the other axes ---


def test_fednovas_clients_normalise_the_refinement_too():
    """Where all take as many steps FedNova is FedAvg, refined or not."""
    nova = Federated(solver=Normalised(SGD()), server=NovaServer())
    found, plain = (
        run(FNR(inner, public(), 0.25, STRENGTH)).model for inner in (nova, Federated())
    )
    assert largest_difference(found, plain) < 1e-9


@pytest.mark.parametrize(
    "setting",
    [f"solver.name={solver}" for solver in ("moon", "feddyn", "feddc", "per-fedavg")]
    + [
        f"algorithm.name={name}" for name in ("fedtan", "fixbn", "silobn", "static-bn", "singlenet")
    ],
)
def test_it_wraps_every_solver_and_every_normalisation(setting):
    """Whatever a client's own training is, refinement changes what comes of it."""
    common = [f"algorithm.local_steps={E}", "algorithm.name=fedavg", setting]
    if "fixbn" in setting:
        common.append("algorithm.switch=1")
    settings = config(*common, rounds=2)
    inner = chosen_algorithm(settings)
    refined = FNR(inner, public(), 0.25, STRENGTH)
    losses = {run(way, rounds=2).metrics[-1].loss for way in (inner, refined)}
    assert len(losses) == 2


def test_static_statistics_do_not_follow_refinement():
    """They are measured on the round's first model: those sent are what they are without FNR."""
    sent = []
    for way in (Federated(static_bn), FNR(Federated(static_bn), public(), 0.25, STRENGTH)):
        job = by_hand_task(algorithm=way)
        settings = config(f"algorithm.local_steps={E}", "run.engine=sequential", rounds=1)
        rounds = simulated(settings, job)
        sent.append(after_a_round(rounds, rounds.state).tensors)
    for name, value in sent[0][Kind.STATISTICS].items():
        assert torch.equal(value, sent[1][Kind.STATISTICS][name])
    assert any(
        not torch.equal(value, sent[1][Kind.PARAMETERS][name])
        for name, value in sent[0][Kind.PARAMETERS].items()
    )


def test_frozen_bn_is_refined_frozen():
    """Public batches are normalised by the global statistics, which stay: by a loop."""
    model = by_hand_task().model
    model[1].running_mean.fill_(0.3)
    expected = copy.deepcopy(model)
    algorithm = FNR(Federated(FixBN(0)), public(), 0.25)
    objective = Objective(functional.cross_entropy)
    algorithm.refine(algorithm.init(model), model, Sgd(LR), objective)
    expected[1].eval()
    expected.train = lambda: expected  # keeps BN in evaluation mode: as frozen
    refine(expected, dict.fromkeys(range(4), 0.0), public(), 0, 0.0)
    assert largest_difference(model, expected) < 1e-12
    assert (model[1].running_mean == 0.3).all()


def test_what_is_a_clients_own_is_refined_and_stays_there():
    """With FedBN no BN tensor travels; the refined client alone keeps other γ, β than FedBN's."""
    inner = Federated(ClientBN("fedbn"))
    job, stock = by_hand_task(), public()
    engines = {}
    for name, way in {"plain": inner, "fnr": FNR(inner, stock, 0.25, STRENGTH)}.items():
        training = [f"algorithm.local_steps={E}", "train.weight_decay=0.0"]
        task = replace(job, algorithm=way)
        settings = config(*training, "run.engine=sequential", rounds=1)
        rounds = simulated(settings, task)
        rounds.step()
        engines[name] = [
            client_state.own for client_state in rounds.parts.engine.client_states.values()
        ]
    differ = [
        any(not torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(engines["plain"], engines["fnr"], strict=True)
    ]
    assert sum(differ) == 1
    assert all(own.keys() == engines["plain"][0].keys() for own in engines["fnr"])


# --- who learns what ---


@pytest.mark.parametrize("refused", [0.1, 0.5, 0.9])
def test_a_share_that_refines_nobody_or_shows_a_clients_norms_is_refused(refused):
    """Of four clients one can be refined: three are needed to hide each other's norms."""
    with pytest.raises(ConfigError, match=r"of 4 clients \d are refined"):
        run(FNR(Federated(), public(), refused))


@pytest.mark.parametrize("settings", [{"share": 0.0}, {"share": 1.0}, {"strength": -1.0}])
def test_settings_out_of_range_are_refused(settings):
    """The message names the setting and its range."""
    (name,) = settings
    with pytest.raises(ConfigError, match=f"{name} = .*must be"):
        FNR(Federated(), public(), **settings)


def test_public_labels_must_be_the_models_classes():
    """A label beyond the model's outputs is refused before the first round."""
    stock, model = public(n_classes=9), by_hand_task().model
    server = ServerTuned(Federated(), stock, model, functional.cross_entropy, lambda _: Sgd(LR))
    for way in (FNR(Federated(), stock, 0.25), server):
        with pytest.raises(DataError, match=r"public labels must be whole numbers in 0\.\.3"):
            run(way)


@pytest.mark.parametrize("encrypt", ["statistics", "model"])
def test_encrypted_equals_plain(encrypt):
    """The same clients are refined, and the models agree to 1e-4; the tables are ciphertext."""
    way = FNR(Federated(), public(), 0.25, STRENGTH)
    plain, sealed = run(way), run(way, f"exchange.encrypt={encrypt}")
    assert 0 < largest_difference(plain.model, sealed.model) < 1e-4
    sent = [
        entry
        for entry in sealed.ledger.entries
        if entry.name.startswith("fnr/") and entry.sender.startswith("client")
    ]
    assert len(sent) == 3 * 4 * ROUNDS
    assert {entry.form for entry in sent} == {"ciphertext"}


@given(st.floats(0.01, 0.95), st.integers(1, 60))
def test_a_round_of_the_fewest_clients_refines_some_and_one_of_fewer_none(share, n_clients):
    """Whatever the share: from there on every number of clients will do."""
    way = FNR(Federated(), public(), share)
    enough = n_clients >= way.fewest_clients()
    with nullcontext() if enough else pytest.raises(ConfigError):
        way.n_refined(n_clients)

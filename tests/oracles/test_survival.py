"""Survival: Cox's loss against a double loop and Newton's method, and what meets such a loss."""

from __future__ import annotations

import pytest
import torch
from side_by_side import require_same, trained
from small_audit import TINY, audits_are_tiny

import securefl
from securefl import cox_loss
from securefl.audit import audits
from securefl.errors import ConfigError, DataError
from securefl.models.build import build_model

TRUE = torch.tensor([0.8, -0.5, 0.0], dtype=torch.float64)


def patients(seed, n, *, ties=True):
    """Draw readings (n, 3), and times and events: 30 % of the patients are censored."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=rng, dtype=torch.float64) + seed / 4
    time = -torch.rand(n, generator=rng, dtype=torch.float64).log() / (x @ TRUE).exp()
    if ties:
        time = (3 * time).ceil()
    event = (torch.rand(n, generator=rng) < 0.7).double()
    return x, torch.stack([time, event], dim=1)


def by_hand(risk, y):
    """The loss, patient by patient."""
    total = torch.zeros((), dtype=torch.float64)
    for i, (time, event) in enumerate(y.tolist()):
        if event:
            at_risk = [risk[j] for j, (other, _) in enumerate(y.tolist()) if other >= time]
            total = total - risk[i] + torch.stack(at_risk).exp().sum().log()
    return total / len(y)


def fitted(strata):
    """Coefficients of the (stratified) model, by Newton's method on sums over risk sets."""
    beta = torch.zeros(3, dtype=torch.float64)
    for _ in range(20):
        score, information = torch.zeros_like(beta), torch.zeros(3, 3, dtype=torch.float64)
        for x, y in strata:
            for row, (time, event) in zip(x, y.tolist(), strict=True):
                if not event:
                    continue
                at_risk = x[y[:, 0] >= time]
                p = (at_risk @ beta).softmax(0)
                mean = p @ at_risk
                score += row - mean
                information += (at_risk.T * p) @ at_risk - mean.outer(mean)
        beta = beta + torch.linalg.solve(information, score)
    return beta


@pytest.mark.parametrize("ties", [True, False])
def test_the_loss_and_its_gradient_are_those_of_a_double_loop(ties):
    """In float64, for outputs in one column or none; times in any unit give the same."""
    _, y = patients(0, 25, ties=ties)
    risk = torch.randn(25, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    risk.requires_grad_()
    assert (len(y[:, 0].unique()) < 25) == ties
    wanted = by_hand(risk, y)
    for given in (cox_loss(risk, y), cox_loss(risk[:, None], y * torch.tensor([1e3, 1]))):
        torch.testing.assert_close(given, wanted, rtol=1e-12, atol=0)
        gradients = (torch.autograd.grad(of, risk, retain_graph=True) for of in (given, wanted))
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_large_risks_and_batches_without_events_are_numbers():
    """Risks by far above what exp takes; without an event loss and gradients are zero."""
    _, y = patients(0, 25)
    risk = (torch.arange(25.0) * 1e4).requires_grad_()
    loss = cox_loss(risk, y.float())
    assert torch.isfinite(loss)
    assert torch.isfinite(torch.autograd.grad(loss, risk)[0]).all()
    y[:, 1] = 0
    loss = cox_loss(risk, y.float())
    assert loss == 0
    assert torch.equal(torch.autograd.grad(loss, risk)[0], torch.zeros(25))


def test_the_optimum_is_that_of_lifelines():
    """Its likelihood, too, on times without ties, which it treats by Efron's rule."""
    lifelines, pandas = (pytest.importorskip(name) for name in ("lifelines", "pandas"))
    x, y = patients(0, 80, ties=False)
    beta = fitted([(x, y)])
    table = pandas.DataFrame(torch.cat([x, y], dim=1).numpy(), columns=[*"abc", "time", "event"])
    found = lifelines.CoxPHFitter().fit(table, "time", "event")
    torch.testing.assert_close(torch.tensor(found.params_.to_numpy()), beta, rtol=1e-4, atol=1e-5)
    assert -80 * float(cox_loss(x @ beta, y)) == pytest.approx(found.log_likelihood_)


@pytest.mark.parametrize("sizes", [(60,), (30, 12, 45)], ids=["one client", "three clients"])
def test_full_batches_end_at_the_stratified_models_coefficients(sizes):
    """Of one client this is Cox's model; of several, a baseline hazard of each client's own.

    It is not the model of their union.
    """
    clients = [patients(seed, n) for seed, n in enumerate(sizes)]
    model = build_model("mlp", "batch", in_channels=3, n_features=3, n_classes=1, width=0).double()
    settings = ["run.rounds=60", "algorithm.name=fedavg", "algorithm.local_steps=1"]
    settings += ["train.batch_size=64", "train.lr=2.5", "train.lr_drops=[]"]
    settings += ["train.weight_decay=0", "exchange.encrypt=none", "algorithm.weights=samples"]
    result = securefl.run(
        securefl.load_config(None, settings),
        securefl.Task(model, clients, clients[0], cox_loss),
    )
    found = next(p for p in result.model.parameters() if p.dim() == 2)[0].detach()
    torch.testing.assert_close(found, fitted(clients), rtol=1e-5, atol=1e-6)
    union = [tuple(map(torch.cat, zip(*clients, strict=True)))]
    assert torch.allclose(found, fitted(union), rtol=0.01) == (len(sizes) == 1)
    assert result.metrics[-1].metric == "c-index"
    assert result.metrics[-1].score > 0.65


def job(**changes):
    """Clients of unequal size, one of them without events, in a model with BN."""
    clients = [patients(seed, n) for seed, n in enumerate((5, 9, 14, 8))]
    clients[1][1][:, 1] = 0
    model = build_model(
        "mlp", "batch", in_channels=3, n_features=3, n_classes=1, width=4, seed=0
    ).double()
    tests = [patients(seed + 9, 12) for seed in range(4)]
    given = {"clients": clients, "client_tests": tests, **changes}
    return securefl.Task(model, test=tests[0], loss=cox_loss, **given)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn"])
def test_clients_side_by_side_end_where_they_end_one_by_one(algorithm):
    """Risk sets stay within each client's own batch, and padding is in none."""
    require_same([f"algorithm.name={algorithm}", "train.batch_size=12"], job())


def test_an_encrypted_run_is_the_clear_one_to_rounding(key_set):
    """FedTAN, all of it sealed."""
    fast = ["run.rounds=2", "algorithm.local_steps=1", "train.lr=0.1", "run.engine=sequential"]
    clear, sealed = (
        securefl.run(
            securefl.load_config(None, [*fast, f"exchange.encrypt={parts}"]), job(), keys=keys
        )
        for parts, keys in (("none", None), ("statistics,model", key_set))
    )
    for name, value in clear.model.state_dict().items():
        torch.testing.assert_close(sealed.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert sealed.metrics[-1].pooled.pooling == "weighted-mean"


def test_one_party_on_all_data_is_no_stratified_model():
    """Centralised training draws batches, and so risk sets, from the union."""
    result = trained(["algorithm.name=centralised"], "sequential", job())
    assert result.metrics[-1].metric == "c-index"
    assert len(result.metrics[-1].clients) == 4


# What is refused


def test_privacy_of_records_is_refused_and_of_clients_is_not():
    """No gradient is of one record alone; a client's whole update is clipped as ever."""
    private = ["privacy.level=record", "privacy.records=30", "algorithm.name=fixbn"]
    private += ["algorithm.weights=uniform", "train.batch_size=4", "exchange.encrypt=none"]
    with pytest.raises(ConfigError, match="with the loss cox_loss: it compares the records of a b"):
        securefl.run(securefl.load_config(None, private), job())
    of_clients = ["privacy.level=client", "algorithm.weights=uniform", "algorithm.name=fixbn"]
    result = trained([*of_clients, "run.rounds=1"], "sequential", job())
    assert torch.isfinite(torch.tensor(result.metrics[-1].loss))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda y: y.flip(1), r"an event that is neither 1 nor 0: targets are \(time, event\)"),
        (lambda y: y[:, :1], r"give one output a sample, .* and targets \(n, 2\), \(time, event\)"),
    ],
)
def test_targets_of_another_form_are_refused_with_their_client(spoil, why):
    """FLamby's order, (event, time), for one."""
    clients = [(x, spoil(y)) for x, y in (patients(1, 9), patients(2, 9))]
    with pytest.raises(DataError, match=f"client-1: .*{why}"):
        trained([], "sequential", job(clients=clients, client_tests=()))


def test_fnr_compares_classes_and_is_refused():
    """Where its public samples are looked at."""
    public = patients(7, 20)
    with pytest.raises(DataError, match="public labels must be whole numbers"):
        trained(["fnr.name=matched"], "sequential", job(public=public))


def test_an_audit_says_what_cannot_be_measured(tmp_path, monkeypatch):
    """Attacks by the loss of single samples; rows in gradients are looked for as ever."""
    audits_are_tiny(monkeypatch)
    for slow in ("_tracing", "_encryption"):
        monkeypatch.setattr(audits._Audits, slow, audits._Audits._inversion)
    fast = ["run.rounds=2", "algorithm.name=fedavg", "exchange.encrypt=none"]
    securefl.run(securefl.load_config(None, fast), job(), out=tmp_path / "run")
    found = {of.key: of for of in audits.audit_run(tmp_path / "run", TINY, task=job()).sections}
    assert "loss cox_loss compares samples" in found["membership"].words
    assert "Not measured" not in found["inversion"].words
    assert "Not measured" not in found["exposure"].words

"""FixBN (Zhong, Chen, Chao, Algorithm 1) against torch's own BN in evaluation mode, in float64."""

from __future__ import annotations

import copy

import by_hand
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import securefl
from securefl.errors import DataError, Diverged
from securefl.norms.frozen import Affine, Standardise, at_rest, frozen_batch_norm
from securefl.types import Freeze

STEPS = 20
FIXBN = "algorithm.name=fixbn"


def checkpoints(config, job, folder):
    """Each round's checkpoint, by the number of rounds done."""
    found = {}

    def on_round(metrics):
        found[metrics.round] = load_file(folder / "checkpoint.safetensors")

    return securefl.run(config, job, out=folder, on_round=on_round), found


def statistics_of(tensors):
    return {name: v for name, v in tensors.items() if name.startswith("state/statistics/")}


@pytest.mark.parametrize(
    ("model", "momentum", "across"),
    [
        ("mlp", 0.0, "reset"),
        ("mlp", 0.9, "reset"),
        ("mlp", 0.9, "global"),
        ("cnn", 0.9, "local"),
        ("resnet20", 0.9, "local"),
    ],
)
def test_stage_ii_is_centralised_sgd_with_frozen_statistics(model, momentum, across):
    """After T* = 1, 20 rounds of one step are 20 steps on the union, BN in evaluation mode."""
    job = by_hand.task(model)
    settings = [FIXBN, "algorithm.switch=1", f"train.momentum={momentum}"]
    settings.append(f"train.momentum_across_rounds={across}")
    result = securefl.run(by_hand.config(*settings, rounds=1 + STEPS), job)

    expected = copy.deepcopy(job.model)
    buffers = by_hand.fedavg_round(expected, job, 0, momentum=momentum)
    if across == "reset":
        optimiser = by_hand.sgd(expected.eval(), 0.0)  # a first step knows no momentum
    else:
        average = by_hand.mean(by_hand.shares(job), buffers)
        optimiser = by_hand.sgd(expected.eval(), momentum, average)
    by_hand.union_steps(expected, optimiser, job, range(1, 1 + STEPS))
    assert by_hand.largest_difference(result.model, expected) < 1e-12
    assert by_hand.largest_difference(result.model, job.model) > 1e-2


@pytest.mark.parametrize("encrypt", ["none", "statistics", "model"])
@pytest.mark.parametrize(("switch", "frozen_from"), [("2", 2), ("0.5", 3)])
def test_statistics_stay_bit_for_bit_after_t_star(tmp_path, encrypt, switch, frozen_from):
    """T* as a round or a share: until then they move each round, and then never, sealed or not."""
    settings = [FIXBN, f"algorithm.switch={switch}", f"exchange.encrypt={encrypt}"]
    job = by_hand.task("cnn")
    result, found = checkpoints(by_hand.config(*settings, rounds=6), job, tmp_path / "run")
    for done in range(1, 6):
        for name, value in statistics_of(found[done]).items():
            assert torch.equal(value, found[done + 1][name]) == (done >= frozen_from)
    for name, value in statistics_of(found[frozen_from]).items():
        layer = name.removeprefix("state/statistics/")
        assert torch.equal(result.model.state_dict()[layer], value)
    sent = {e.round for e in result.ledger.entries if e.kind == "statistics" and e.exchange}
    assert sent == set(range(1, frozen_from + 1))


@pytest.mark.parametrize("freeze", Freeze)
def test_what_is_frozen_neither_moves_nor_travels(tmp_path, freeze):
    """Of μ, σ² and of γ, β exactly those that `freeze` names; what learns goes on to learn."""
    job, n_bn = by_hand.task("mlp"), 8
    settings = [FIXBN, "algorithm.switch=2", f"algorithm.freeze={freeze}"]
    result, found = checkpoints(by_hand.config(*settings, rounds=5), job, tmp_path / "run")
    n_parameters = sum(p.numel() for p in job.model.parameters())
    still_statistics, still_affine = freeze != "affine", freeze != "statistics"
    for done in (2, 3, 4):
        moved = {
            name.split("/", 2)[2]: not torch.equal(value, found[done + 1][name])
            for name, value in found[done].items()
            if name.startswith("state/")
        }
        assert moved.pop("0.weight")
        assert moved.pop("3.bias")
        for name in ("1.running_mean", "1.running_var"):
            assert moved[name] != still_statistics
        for name in ("1.weight", "1.bias"):
            assert moved[name] != still_affine
    up = n_parameters - n_bn * still_affine
    for round_number in (3, 4, 5):
        assert by_hand.sent_values(result, "parameters", round_number)[0] == {up}
        assert by_hand.sent_values(result, "statistics", round_number)[0] == (
            set() if still_statistics else {n_bn}
        )
    # What round 2 has changed is broadcast a last time, and then what round 3 has.
    assert by_hand.sent_values(result, "statistics", 3)[1] == {n_bn}
    assert by_hand.sent_values(result, "statistics", 4)[1] == (
        set() if still_statistics else {n_bn}
    )
    assert by_hand.sent_values(result, "parameters", 3)[1] == {n_parameters}
    assert by_hand.sent_values(result, "parameters", 4)[1] == {up}


def test_a_frozen_affine_map_still_normalises_batches_by_themselves():
    """`freeze = "affine"` is torch's BN in training mode whose γ and β ask for no gradient."""
    job = by_hand.task("mlp")
    settings = [FIXBN, "algorithm.switch=1", "algorithm.freeze=affine"]
    result = securefl.run(by_hand.config(*settings, rounds=4), job)
    expected = copy.deepcopy(job.model)
    by_hand.fedavg_round(expected, job, 0)
    for done in (1, 2, 3):
        gamma, beta = expected[1].weight.detach().clone(), expected[1].bias.detach().clone()
        by_hand.fedavg_round(expected, job, done)  # a model trains alike with γ and β put back
        with torch.no_grad():
            expected[1].weight.copy_(gamma)
            expected[1].bias.copy_(beta)
    assert by_hand.largest_difference(result.model, expected) < 1e-12


@pytest.mark.parametrize("shape", [(7, 3), (7, 3, 5), (7, 3, 4, 4), (7, 3, 2, 2, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_a_layer_at_rest_is_torchs_own_in_evaluation_mode(shape, affine):
    """Outputs and gradients for inputs, γ and β agree to 1e-12, and the tensors are the layer's."""
    rng = torch.Generator().manual_seed(0)
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    layer = kinds[len(shape)](3, eps=1e-3, affine=affine).double()
    for tensor in layer.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(3, generator=rng) + 0.5)
    x = torch.randn(shape, generator=rng, dtype=torch.float64).requires_grad_()
    towards = torch.randn(shape, generator=rng, dtype=torch.float64)
    wanted = [x, *layer.parameters()]
    resting = at_rest("norm", layer)
    outputs = [model(x) for model in (resting, layer.eval())]
    gradients = [torch.autograd.grad(y, wanted, towards) for y in outputs]
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-12, rtol=1e-12)
    assert [type(part) for part in resting] == [Standardise, Affine][: 1 + affine]
    assert resting[0].mu_C is layer.running_mean
    assert resting[0].var_C is layer.running_var
    assert [id(p) for p in resting.parameters()] == [id(p) for p in layer.parameters()]


@pytest.mark.parametrize("freeze", Freeze)
def test_a_model_comes_out_of_its_rest_as_it_went_in(freeze):
    """Forward and requires_grad are put back, also where training fails and where γ was frozen."""
    model = copy.deepcopy(by_hand.task("mlp").model).train()
    model[1].weight.requires_grad_(False)
    x = by_hand.task("mlp").clients[1][0]
    before = {n: b.clone() for n, b in model.named_buffers() if "running" in n}

    def interrupted():
        with frozen_batch_norm(model, freeze):
            model(x)
            assert model[1].bias.requires_grad == (freeze == "statistics")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        interrupted()
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value) == (freeze != "affine")
    assert "forward" not in vars(model[1])
    assert (model[1].weight.requires_grad, model[1].bias.requires_grad) == (False, True)


def test_one_sample_at_rest_depends_on_that_sample_alone():
    """In a batch it is what it is alone, although the model is in training mode."""
    model = copy.deepcopy(by_hand.task("cnn").model).train()
    x, _ = by_hand.task("cnn").clients[1]
    with frozen_batch_norm(model, Freeze.STATISTICS):
        together = model(x)
        alone = torch.cat([model(sample[None]) for sample in x])
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=1e-12)


def test_a_layer_without_running_statistics_cannot_be_frozen():
    """There is nothing to freeze it at, and the message says what to do."""
    layer = nn.BatchNorm1d(3, track_running_stats=False)
    with pytest.raises(DataError, match=r"'norm' keeps no running statistics .* track_running"):
        at_rest("norm", layer)


def test_a_layer_with_a_forward_of_its_own_cannot_be_frozen():
    """What it adds to BN would be lost in silence."""

    class NoisyNorm(nn.BatchNorm1d):
        def forward(self, y):
            return super().forward(y) + 1

    job = by_hand.task("mlp")
    model = nn.Sequential(nn.Linear(12, 3), NoisyNorm(3), nn.Linear(3, 4)).double()
    own = securefl.Task(model, job.clients, job.test)
    with pytest.raises(DataError, match="'1' is a NoisyNorm with a forward of its own"):
        securefl.run(by_hand.config(FIXBN, "algorithm.switch=1", rounds=2), own)


@pytest.mark.parametrize("name", ["fixbn", "fedtan-ii"])
def test_a_share_of_few_rounds_is_one_round_at_least(tmp_path, name):
    """BN is never frozen at the statistics that no training has moved."""
    job, settings = by_hand.task("mlp"), [f"algorithm.name={name}", "algorithm.switch=0.1"]
    result, found = checkpoints(by_hand.config(*settings, rounds=3), job, tmp_path / "run")
    trained = statistics_of(found[1])
    for key, value in trained.items():
        assert torch.equal(found[3][key], value)
        assert not torch.equal(value, job.model.state_dict()[key.removeprefix("state/statistics/")])
    assert by_hand.sent_values(result, "statistics", 1)[0] == {8}


@pytest.mark.parametrize("name", ["fixbn", "fedtan-ii"])
def test_a_run_that_diverges_keeps_its_last_good_model(tmp_path, name):
    """The message names frozen BN and the learning rate; the folder holds what was reached."""
    settings = [f"algorithm.name={name}", "algorithm.switch=3", "train.lr=20.0"]
    job = by_hand.task("mlp")
    folder, config = tmp_path / "run", by_hand.config(*settings, rounds=300)
    found = {}

    def on_round(metrics):
        found["last"] = metrics.round
        found["checkpoint"] = load_file(folder / "checkpoint.safetensors")

    with pytest.raises(Diverged, match=rf"{name} has frozen BN.*learning rate.*lr_drops = \["):
        securefl.run(config, job, out=folder, on_round=on_round)
    assert 3 <= found["last"] < 300
    model = load_file(folder / "model.safetensors")
    for name_, value in found["checkpoint"].items():
        if name_.startswith("state/"):
            assert torch.equal(model[name_.split("/", 2)[2]], value)
    assert all(torch.isfinite(value).all() for value in model.values())
    # A finished run has its pictures and a line of metrics for each round.
    assert not (folder / "accuracy.png").exists()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == found["last"]


def test_on_digits_a_rate_without_a_drop_is_caught_while_the_model_is_good(tmp_path):
    """The demo's rate of 0.5 is too much for frozen BN: what is kept is not 10 % accurate."""
    config = securefl.load_config(
        None, [FIXBN, "algorithm.switch=20", "train.lr_drops=[]", "exchange.encrypt=none"]
    )
    accuracies = []
    with pytest.raises(Diverged, match=r"fixbn has frozen BN.*lr_drops = .*of round 20, is"):
        securefl.run(config, out=tmp_path / "run", on_round=lambda m: accuracies.append(m.accuracy))
    assert len(accuracies) == 20
    assert accuracies[-1] > 0.6
    kept = load_file(tmp_path / "run/model.safetensors")
    state = load_file(tmp_path / "run/checkpoint.safetensors")
    named = {k.split("/", 2)[2]: v for k, v in state.items() if k.startswith("state/")}
    assert named.keys() <= kept.keys()
    assert all(torch.equal(kept[name], value) for name, value in named.items())


def test_before_bn_is_frozen_divergence_is_not_blamed_on_it():
    """A run that diverges in stage I hears of its learning rate alone."""
    job = by_hand.task("mlp")
    huge = by_hand.config(FIXBN, "algorithm.switch=0.9", "train.lr=1e30", rounds=40)
    with pytest.raises(Diverged) as caught:
        securefl.run(huge, job)
    assert "frozen BN" not in str(caught.value)
    assert "train.lr" in str(caught.value)

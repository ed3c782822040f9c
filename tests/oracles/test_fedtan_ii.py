"""FedTAN-II: M rounds of FedTAN, then FedAvg with frozen statistics, against references by hand."""

from __future__ import annotations

import copy

import by_hand
import pytest
import torch
from safetensors.torch import load_file

import securefl

pytestmark = pytest.mark.usefixtures("quick")

M, ROUNDS = 4, 24
FEDTAN_II = ["algorithm.name=fedtan-ii", f"algorithm.switch={M}"]


def run_noting(config, job, folder):
    found = {}

    def on_round(metrics):
        found[metrics.round] = load_file(folder / "checkpoint.safetensors")

    return securefl.run(config, job, out=folder, on_round=on_round), found


@pytest.mark.parametrize("moments", ["two-pass", "fused"])
@pytest.mark.parametrize("steps", [1, 3])
def test_its_first_m_rounds_are_fedtans_bit_for_bit(tmp_path, moments, steps):
    """Round by round the same state, and from then on another one."""
    job, more = by_hand.task("cnn"), [f"algorithm.moments={moments}", "train.momentum=0.9"]
    more += [f"algorithm.local_steps={steps}", "train.momentum_across_rounds=local"]
    configs = [by_hand.config(*name, *more, rounds=M + 1) for name in (FEDTAN_II, ())]
    (_, two), (_, one) = (
        run_noting(config, job, tmp_path / str(i)) for i, config in enumerate(configs)
    )
    for done in range(1, M + 1):
        assert two[done].keys() == one[done].keys()
        assert all(torch.equal(two[done][key], value) for key, value in one[done].items())
    assert any(not torch.equal(two[M + 1][key], value) for key, value in one[M + 1].items())


@pytest.mark.parametrize(("model", "across"), [("mlp", "local"), ("cnn", "global")])
def test_it_is_centralised_training_that_freezes_bn_after_m_steps(model, across):
    """At one local step: M steps with the union's BN, then 20 with its running statistics."""
    job = by_hand.task(model)
    more = ["train.momentum=0.9", f"train.momentum_across_rounds={across}"]
    result = securefl.run(by_hand.config(*FEDTAN_II, *more, rounds=ROUNDS), job)
    expected = copy.deepcopy(job.model).train()
    optimiser = by_hand.sgd(expected, 0.9)
    by_hand.union_steps(expected, optimiser, job, range(M))
    by_hand.union_steps(expected.eval(), optimiser, job, range(M, ROUNDS))
    assert by_hand.largest_difference(result.model, expected) < 1e-12


def test_stage_ii_with_more_local_steps_is_fedavg_on_the_weights_alone():
    """From the state after M rounds: deepcopy, SGD with BN in evaluation mode, weighted mean."""
    job, more = by_hand.task("mlp"), ["algorithm.local_steps=3"]
    fedtan = securefl.run(by_hand.config(*more, rounds=M), job)
    result = securefl.run(by_hand.config(*FEDTAN_II, *more, rounds=M + 3), job)
    expected = fedtan.model
    for done in range(M, M + 3):
        clients = []
        for i in range(len(job.clients)):
            local = copy.deepcopy(expected).eval()
            by_hand.steps(local, by_hand.sgd(local, 0.0), by_hand.batches(job, done, i, 3))
            clients.append(by_hand.averaged(local))
        mean = by_hand.mean(by_hand.shares(job), clients)
        expected.load_state_dict(mean, strict=False)
    assert by_hand.largest_difference(result.model, expected) < 1e-12


def test_after_m_rounds_statistics_neither_move_nor_travel(tmp_path):
    """3L + 1 exchanges a round up to M, then one; its last statistics are broadcast once more."""
    job = by_hand.task("cnn")
    n_parameters = sum(p.numel() for p in job.model.parameters())
    result, found = run_noting(by_hand.config(*FEDTAN_II, rounds=M + 3), job, tmp_path / "run")
    n_layers = 4
    n_statistics = sum(v.numel() for k, v in found[1].items() if k.startswith("state/statistics/"))
    for round_number in range(1, M + 4):
        entries = [e for e in result.ledger.entries if e.round == round_number]
        pooled = round_number <= M
        assert result.ledger.communication_rounds(round_number) == (3 * n_layers + 1) ** pooled
        sums = {e.name for e in entries if not e.name.startswith(("update/", "model/"))}
        assert len(sums) == (3 * n_layers if pooled else 0)
        up, down = by_hand.sent_values(result, "statistics", round_number)
        assert up == ({n_statistics} if pooled else set())
        assert down == ({n_statistics} if round_number <= M + 1 else set())
        assert by_hand.sent_values(result, "parameters", round_number) == (
            {n_parameters},
            {n_parameters},
        )
        assert pooled or {e.kind for e in entries if e.exchange} == {"parameters"}
    for done in range(M, M + 3):
        for key, value in found[done].items():
            if key.startswith("state/statistics/"):
                assert torch.equal(value, found[done + 1][key])

"""FedTAN's Table 3 and its count of communication rounds, from the ledger of a real iteration."""

from __future__ import annotations

import pytest
import torch

import securefl
from securefl.models.build import build_model


def ledger(norm, *settings, rounds=1):
    model = build_model("resnet20", norm, in_channels=3, n_features=3072, n_classes=10)
    rng = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(2, 3, 32, 32, generator=rng), torch.randint(10, (2,), generator=rng))
        for _ in range(5)
    ]
    config = securefl.load_config(
        None,
        [
            f"run.rounds={rounds}",
            "algorithm.local_steps=1",
            f"model.norm={norm}",
            "exchange.encrypt=none",
            *settings,
        ],
    )
    return securefl.run(config, securefl.Task(model, clients, clients[0])).ledger


@pytest.mark.parametrize(
    ("norm", "settings", "megabytes", "rounds"),
    [
        ("group", ["algorithm.name=fedavg"], 269722 * 6 * 4 / 2**20, 1),
        ("batch", ["algorithm.name=fedavg"], 271098 * 6 * 4 / 2**20, 1),
        ("batch", ["algorithm.name=fedtan"], (271098 + 1376 + 1376) * 6 * 4 / 2**20, 3 * 19 + 1),
    ],
)
def test_the_ledger_reproduces_table_3(norm, settings, megabytes, rounds):
    """ResNet-20 with five clients sends the papers' megabytes in the papers' number of rounds."""
    book = ledger(norm, *settings)
    assert book.paper_megabytes(1) == pytest.approx(megabytes, abs=1e-9)
    assert book.communication_rounds(1) == rounds


def test_fused_moments_take_a_message_less_for_each_layer_from_the_second_round_on():
    """The pooled means ride with the statistics: 688 values more, and L messages fewer."""
    book = ledger("batch", "algorithm.moments=fused", rounds=2)
    assert [book.communication_rounds(done) for done in (1, 2)] == [3 * 19 + 1, 2 * 19 + 1]
    megabytes = (271098 + 688 + 1376 + 1376) * 6 * 4 / 2**20
    assert [book.paper_megabytes(done) for done in (1, 2)] == pytest.approx([megabytes] * 2)


def test_table_3_as_printed():
    """The figures of the table, to 1e-6 MB; FedTAN adds 1.0151 % to FedAvg with BN."""
    printed = {"gn": 6.173447, "bn": 6.204941, "fedtan": 6.267929}
    gn = ledger("group", "algorithm.name=fedavg").paper_megabytes(1)
    bn = ledger("batch", "algorithm.name=fedavg").paper_megabytes(1)
    fedtan = ledger("batch").paper_megabytes(1)
    assert {"gn": gn, "bn": bn, "fedtan": fedtan} == pytest.approx(printed, abs=1e-6)
    assert 100 * (fedtan / bn - 1) == pytest.approx(1.0151, abs=1e-4)
    assert 100 * (fedtan / gn - 1) == pytest.approx(1.5305, abs=1e-4)

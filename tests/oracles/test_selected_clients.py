"""What finding the useful clients is worth on digits, in short; docs/results has it at length."""

from __future__ import annotations

from collections import Counter
from statistics import mean

import pytest
from shortened import shortened

import securefl
from securefl.task import configured_task

SEEDS = (1, 2)
USELESS = {"irrelevant", "blurred"}


def qualities_of(result, task):
    """How often clients of each quality were selected."""
    quality = dict(zip((f"client-{i}" for i in range(1, 51)), task.qualities, strict=True))
    drawn = Counter()
    for each in result.participants:
        for client, times in each.selected.items():
            drawn[quality[client]] += times
    return {name: n / drawn.total() for name, n in drawn.items()}


def played(row, seed):
    config = shortened("fedprof", row, seed, rounds=50)
    task = configured_task(config)
    result = securefl.run(config, task)
    accuracies = [metrics.accuracy for metrics in result.metrics]
    to_target = next(i for i, accuracy in enumerate(accuracies, 1) if accuracy >= 0.85)
    return qualities_of(result, task), 100 * mean(accuracies[-10:]), to_target


@pytest.mark.slow
def test_fedprof_finds_the_clients_whose_data_are_worth_training_on():
    """Of 50 clients, 40 % normal and 35 % useless: against random selection, seed by seed."""
    found, random = ([played(row, seed) for seed in SEEDS] for row in ("FedProf", "random"))
    for shares, *_ in found:
        assert sum(shares.get(name, 0) for name in USELESS) <= 0.1
        assert shares["normal"] >= 0.55
    for shares, *_ in random:
        assert 0.3 <= sum(shares[name] for name in USELESS) <= 0.4
    assert mean(f[1] - r[1] for f, r in zip(found, random, strict=True)) >= 1
    assert mean(rounds for *_, rounds in random) >= 1.15 * mean(rounds for *_, rounds in found)


@pytest.mark.slow
@pytest.mark.full
def test_fnr_gains_by_labels_that_nobody_has():
    """Half a point and more over FedAvg, with the penalty, without it, and as it is printed."""

    def accuracy(row):
        result = securefl.run(shortened("fnr", row, seed=0, rounds=25))
        return 100 * mean(metrics.accuracy for metrics in result.metrics[-5:])

    fedavg, literal = accuracy("FedAvg"), accuracy("FNR-FL, literal")
    assert accuracy("FNR-FL, matched") - fedavg >= 0.5
    assert literal - fedavg >= 0.5
    assert literal == accuracy("FNR-FL, λ = 0")

"""What settings mean together, and which are refused."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefl.build.training import rate_said, schedule
from securefl.errors import ConfigError
from securefl.settings.load import load_config
from securefl.settings.tables import Config


@given(st.integers(1, 999), st.integers(2, 5000))
def test_a_share_of_the_rounds_is_one_round_for_all_that_ask(thousandths, rounds):
    """BN is frozen in the very round in which the learning rate drops at the same share."""
    share = thousandths / 1000
    config = Config.model_validate(
        {"run": {"rounds": rounds}, "algorithm": {"name": "fixbn", "switch": share}}
    )
    assert config.rounds_in(share) == max(1, ceil(Fraction(thousandths, 1000) * rounds))
    assert config.algorithm.switch_round(config.run.rounds) == config.rounds_in(share)


@pytest.mark.parametrize(
    ("settings", "rates", "said"),
    [
        ([], [0.5] * 49, "0.5 to the end: 49 rounds are too few to drop it (train.lr_drops)"),
        (["run.rounds=50"], [0.5] * 25 + [0.05] * 13, "0.5, times 0.1 after round 25 and 38"),
        (
            ["algorithm.name=fixbn"],
            [0.5] * 25 + [0.05] * 12,
            "0.5, times 0.1 after round 25 and 37, as BN at rest diverges at a large rate",
        ),
        (["train.lr_drops=[0.5]"], [0.5] * 25 + [0.05] * 24, "0.5, times 0.1 after round 25"),
        (["run.rounds=99", "train.lr_drops=[]"], [0.5] * 99, "0.5"),
        (
            ["train.lr_decay=0.5", "train.lr_drops=[]"],
            [0.5, 0.25],
            "0.5, times 0.5 after each round",
        ),
    ],
)
def test_a_short_run_keeps_its_rate(settings, rates, said):
    """The default drops are for 50 rounds or a frozen BN, and the first line says what holds."""
    config = load_config(None, ["run.rounds=49", *settings])
    found = [schedule(config)(done).lr for done in range(len(rates))]
    assert found == pytest.approx(rates)
    assert rate_said(config) == said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["solver.mu=0.1"], r'solver\.mu = 0\.1 is read with solver\.name = "fedprox" or "moon"'),
        (["server.lr=0.5"], r"server\.lr = 0\.5 is read with"),
        (["server.name=momentum", "server.beta2=0.5"], r"server\.beta2 = 0\.5 is read with"),
        (["algorithm.freeze=both"], r'algorithm\.name = "fixbn" alone, not with "fedtan"'),
        (["algorithm.name=fixbn", "algorithm.switch=200"], "BN would never be frozen"),
        (
            ["algorithm.name=fixbn", "algorithm.switch=window", "algorithm.threshold=1e-9"],
            r"32 bits after the point, so it must be at least 3\.73e-09",
        ),
        (
            ["server.name=fednova", "algorithm.local_steps=8200", "exchange.encrypt=model"],
            "its count of steps, 8200 with this momentum",
        ),
        (
            [
                "server.name=fednova",
                "train.momentum=0.9",
                "train.momentum_across_rounds=local",
            ],
            "momentum that begins each round at zero",
        ),
        (
            ["algorithm.name=fedbn", "exchange.encrypt=statistics"],
            "statistics stay with the clients",
        ),
        (
            ["selection.name=fedprof", "selection.alpha=-1"],
            r"^selection\.alpha = -1: input should be .* equal to 0, or 'theorem1'$",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(settings, message):
    """The message says why, and what to do."""
    with pytest.raises(ConfigError, match=message):
        load_config(None, settings)


def test_what_is_read_is_taken():
    """The same keys, beside a name that reads them."""
    load_config(None, ["solver.name=moon", "solver.mu=0.1"])
    load_config("examples/fedtan_digits.toml", ["server.name=fedyogi", "server.beta2=0.5"])

"""Sealed simulations repeat from a seed to the rounding of sealing, whose noise is drawn anew."""

from __future__ import annotations

import pytest
import torch
from key_folders import PASSPHRASE
from matching_runs import make_config, make_task

import securefl
from securefl_keys.authority_keys import load_all

pytestmark = pytest.mark.usefixtures("quick")

SEALING = 1e-6
"""How far two sealed runs may be from each other."""


def model_of(config, task, **given):
    return securefl.run(config, task, **given).model.state_dict()


def difference(one, other):
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize("officers", [1, 3])
@pytest.mark.parametrize("reproducible", [True, False])
def test_two_sealed_runs_are_alike_to_the_rounding_of_sealing(
    tiny_config, tiny_task, officers, reproducible
):
    """Keys, identities and the noise of sealing differ; nothing else does, asked for or not.

    Of small messages not even the bits: their last digits are far below what is released.
    """
    run = {"rounds": 2, "reproducible": reproducible}
    config = tiny_config(run=run, exchange={"encrypt": "model", "officers": officers})
    first, second = (model_of(config, tiny_task(dtype=torch.float64)) for _ in range(2))
    assert difference(first, second) < SEALING


def test_two_runs_in_the_clear_are_alike_to_the_bit(tiny_config, tiny_task):
    """And a sealed one is beside them."""
    runs = [
        model_of(tiny_config(exchange={"encrypt": encrypt}), tiny_task(dtype=torch.float64))
        for encrypt in ("none", "none", "model")
    ]
    assert difference(*runs[:2]) == 0
    assert difference(*runs[1:]) < SEALING


@pytest.mark.parametrize("officers", [1, 3])
def test_two_runs_by_sealed_profiles_choose_alike(officers):
    """Their scores are those of the clear, to the error of a match; keys and nonces differ."""
    runs = []
    for mode in ("plain", "sealed", "sealed"):
        config = make_config(mode, 3, 0.8)
        exchange = config.exchange.model_copy(update={"officers": officers})
        if mode == "sealed":
            config = config.model_copy(update={"exchange": exchange})
        runs.append(securefl.run(config, make_task()).participants)
    assert len(runs[0]) == 3
    for rounds in zip(*runs, strict=True):
        clear, *sealed = rounds
        for each in sealed:
            assert each.selected == clear.selected
            assert dict(each.measured) == pytest.approx(dict(clear.measured), abs=1e-5)


@pytest.mark.usefixtures("cheap_guesses")
def test_sums_under_a_key_that_outlives_the_run_may_be_asked_to_repeat(
    keys, tiny_config, tiny_task
):
    """Nothing that hides their keys is of a seed: it is allowed, and to the rounding of sealing."""
    config = tiny_config(run={"rounds": 1, "reproducible": True}, exchange={"encrypt": "model"})
    sums, task = load_all(keys, PASSPHRASE), tiny_task(dtype=torch.float64)
    first, second = model_of(config, task, keys=sums), model_of(config, task)
    assert difference(first, second) < SEALING


@pytest.mark.usefixtures("cheap_guesses")
def test_profiles_under_a_key_that_outlives_the_run_are_scored_alike(keys):
    """The key of a folder, or one of a blink: the same choices."""
    config, folder = make_config(rounds=2), load_all(keys, PASSPHRASE)
    one, other = (
        [each.selected for each in securefl.run(config, make_task(), keys=given).participants]
        for given in (folder, None)
    )
    assert one == other

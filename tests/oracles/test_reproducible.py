"""Sealed simulations that repeat from a seed where that is asked for by name, and nowhere else.

Sums repeat to the rounding of sealing, whose noise is drawn anew; scores of profiles to the bit.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from key_folders import PASSPHRASE
from matching_runs import make_config, make_task
from securefl.exchange.match_forms import LINEAR
from securefl.exchange.match_open import MatchKeys

import securefl
from securefl.exchange.gaussian import seeded
from securefl.exchange.keyset import KeySet
from securefl_keys.loading import load_all

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


@pytest.mark.parametrize("reproducible", [True, False])
def test_scores_of_sealed_profiles_repeat_to_the_bit_where_that_is_asked_for(reproducible):
    """The noise on them is of the run's seed then, else nobody's."""
    config = make_config("linear", 2, 0.8, encrypt="profiles")
    config = config.model_copy(
        update={"run": config.run.model_copy(update={"reproducible": reproducible})}
    )
    first, second = (
        [dict(each.scores) for each in securefl.run(config, make_task()).participants]
        for _ in range(2)
    )
    assert first[0]
    assert (first == second) == reproducible


def test_other_seeds_are_other_noise():
    """And each epoch of a key has noise of its own."""
    drawn = {seeded(*seed)(3, 1.0).tobytes() for seed in ((0, 1), (1, 1), (0, 2))}
    assert len(drawn) == 3
    assert np.array_equal(seeded(0, 1)(3, 1.0), seeded(0, 1)(3, 1.0))


def test_without_the_name_nobody_can_repeat_the_noise():
    """The default, whoever makes keys; those of sums have no noise that a seed could give."""
    keys = MatchKeys.ephemeral(LINEAR)
    assert keys.seed is None
    assert keys.draw is None
    assert not hasattr(KeySet.ephemeral(), "seed")


@pytest.mark.usefixtures("cheap_guesses")
def test_sums_under_a_key_that_outlives_the_run_may_be_asked_to_repeat(
    keys, tiny_config, tiny_task
):
    """Nothing that hides their keys is of a seed: it is allowed, and to the rounding of sealing."""
    config = tiny_config(run={"rounds": 1, "reproducible": True}, exchange={"encrypt": "model"})
    sums, task = load_all(keys, PASSPHRASE), tiny_task(dtype=torch.float64)
    first, second = model_of(config, task, keys=sums), model_of(config, task)
    assert difference(first, second) < SEALING

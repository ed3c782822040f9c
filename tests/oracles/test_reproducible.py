"""Sealed simulations that repeat from a seed where that is asked for by name, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from key_folders import PASSPHRASE

import securefl
from securefl.errors import ConfigError
from securefl.exchange.committee import Committee
from securefl.exchange.gaussian import seeded
from securefl.exchange.keyset import KeySet
from securefl.exchange.match_forms import LINEAR
from securefl.exchange.match_open import MatchKeys
from securefl_keys.loading import load_all, load_match

pytestmark = pytest.mark.usefixtures("quick")


def model_of(config, task, **given):
    return securefl.run(config, task, **given).model.state_dict()


@pytest.mark.parametrize("committee", [0, 2])
def test_two_sealed_runs_are_alike_to_the_bit_where_that_is_asked_for(
    tiny_config, tiny_task, committee
):
    """Keys, identities and ciphertexts differ; the noise on what is opened does not."""
    run = {"rounds": 1, "reproducible": True}
    config = tiny_config(run=run, exchange={"encrypt": "model", "committee": committee})
    first, second = (model_of(config, tiny_task()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_other_seeds_are_other_noise():
    """And each epoch of a key has noise of its own."""
    drawn = {seeded(*seed)(3, 1.0).tobytes() for seed in ((0, 1), (1, 1), (0, 2))}
    assert len(drawn) == 3
    assert np.array_equal(seeded(0, 1)(3, 1.0), seeded(0, 1)(3, 1.0))


@pytest.mark.parametrize("make", [KeySet.ephemeral, lambda: MatchKeys.ephemeral(LINEAR)])
def test_without_the_name_nobody_can_repeat_the_noise(make):
    """The default, whoever makes keys."""
    keys = make()
    assert keys.seed is None
    assert (keys.draw if isinstance(keys, MatchKeys) else keys.opener(None, 3).draw) is None


@pytest.mark.usefixtures("cheap_guesses")
def test_a_key_that_outlives_the_run_has_no_seeded_noise(keys, tiny_config, tiny_task):
    """By construction: neither a run under the folder's keys nor an authority process has a way."""
    sums, matches = load_all(keys, PASSPHRASE), load_match(keys, PASSPHRASE)
    for kept in (sums, matches):
        with pytest.raises(ConfigError, match="would hide nothing of the key"):
            replace(kept, seed=0)
    members = ((object(), sums.count),)
    with pytest.raises(ConfigError, match="would hide nothing of the key"):
        Committee(members, sums.public, sums.adding, lambda: None, seed=0)
    with pytest.raises(ConfigError, match="leave out --keys"):
        securefl.run(tiny_config(run={"reproducible": True}), tiny_task(), keys=sums)

"""A key that has released what its noise hides is followed by another; no model notices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import securefl
from securefl.errors import Crafted, KeyWornOut
from securefl.exchange.keyset import KeySet, for_round
from securefl.exchange.policy import Flooding, OpeningRule, Policy
from securefl.exchange.releases import MemoryCount
from securefl_keys import releases
from securefl_keys.folder import init_folder
from securefl_keys.loading import load_all

pytestmark = pytest.mark.usefixtures("no_hang", "quick", "cheap_guesses")

PASSPHRASE = "correct horse battery staple"
SLOTS = 2048
SUMS_A_ROUND = 5
"""Of `job`: two statistics of FedTAN, two gradients, and the parameters."""


@pytest.fixture(scope="module")
def job(tiny_config, tiny_task):
    """Four rounds of FedTAN, all of it encrypted."""
    return tiny_config(run={"rounds": 4}, exchange={"encrypt": "model"}), tiny_task()


@pytest.fixture(scope="module")
def undisturbed(job, key_set):
    """The same under one key."""
    return securefl.run(*job, keys=replace(key_set, count=MemoryCount()))


def with_releases(keys, releases):
    """The key under a policy of so many, as if it had released nothing yet."""
    flooding = Flooding(releases=releases)
    policy = Policy(flooding=flooding, rules=(OpeningRule("*", 24),))

    def successor():
        return with_releases(keys.successor(), releases)

    return replace(keys, policy=policy, count=MemoryCount(), successor=successor)


def assert_same_model(result, wanted):
    for name, value in wanted.model.state_dict().items():
        found = result.model.state_dict()[name]
        torch.testing.assert_close(found, value, rtol=0, atol=1e-6, msg=name)


def keys_by_round(result):
    """The key ids that each round's totals were opened under."""
    used = {}
    for opening in result.openings:
        assert not opening.refused
        used.setdefault(opening.round, set()).add(opening.key_id)
    return used


def test_a_round_of_the_job_opens_so_many_sums(undisturbed):
    """So that the numbers below say what they seem to."""
    per_round = [o.round for o in undisturbed.openings]
    assert [per_round.count(number) for number in (1, 2, 3, 4)] == [SUMS_A_ROUND] * 4


@pytest.mark.parametrize(
    ("rounds_a_key", "n_keys"), [(1, 4), (1.9, 4), (2, 2), (3, 2), (4, 1)], ids=str
)
def test_keys_take_turns_between_rounds(job, key_set, undisturbed, rounds_a_key, n_keys):
    """All of a round travels under one key; the model is that of one key to 1e-6."""
    most = int(rounds_a_key * SUMS_A_ROUND * SLOTS)
    result = securefl.run(*job, keys=with_releases(key_set, most))
    used = keys_by_round(result)
    assert all(len(ids) == 1 for ids in used.values())
    ids = [next(iter(used[number])) for number in (1, 2, 3, 4)]
    assert len(set(ids)) == n_keys
    assert ids[0] == key_set.public.key_id
    turns = int(rounds_a_key)
    assert ids == [ids[i // turns * turns] for i in range(4)]
    assert not result.incidents
    assert_same_model(result, undisturbed)


def test_no_key_releases_more_than_its_noise_hides(job, key_set, monkeypatch):
    """Counted where each opener counts, over the whole run."""
    counts = []
    make = KeySet.opener
    monkeypatch.setattr(
        KeySet, "opener", lambda self, *a: counts.append(self.count) or make(self, *a)
    )
    most = 2 * SUMS_A_ROUND * SLOTS
    securefl.run(*job, keys=with_releases(key_set, most))
    released = {id(count): count.n_released for count in counts}
    assert sorted(released.values()) == [most, most]


def test_each_key_is_of_the_next_epoch(job, key_set, monkeypatch):
    """Which stands in every message and in every key file."""
    epochs, take = [], securefl.simulation.keys_in_use.KeysInUse.take

    def noted(self, keys):
        epochs.append(keys.public.epoch)
        assert keys.adding.epoch == keys.secret.origin.epoch == keys.public.epoch
        take(self, keys)

    monkeypatch.setattr(securefl.simulation.keys_in_use.KeysInUse, "take", noted)
    securefl.run(*job, keys=with_releases(key_set, SUMS_A_ROUND * SLOTS))
    assert epochs == [1, 2, 3, 4]


def test_an_openings_log_names_the_key(tmp_path, job, key_set):
    """As it stands in the run's folder."""
    securefl.run(*job, keys=with_releases(key_set, 2 * SUMS_A_ROUND * SLOTS), out=tmp_path / "run")
    rows = (tmp_path / "run/openings.jsonl").read_text().splitlines()
    assert len(rows) == 4 * SUMS_A_ROUND
    ids = {row.partition('"key_id": "')[2][:64] for row in rows}
    assert len(ids) == 2
    assert key_set.public.key_id in ids


def test_a_round_that_no_key_could_open_is_not_begun(job, key_set):
    """One value fewer than a round opens: the line says what the policy must be."""
    needed = SUMS_A_ROUND * SLOTS
    keys = with_releases(key_set, needed - 1)
    with pytest.raises(KeyWornOut, match=f"a round opens {needed} values, .* hides {needed - 1}"):
        securefl.run(*job, keys=keys)
    assert keys.count.n_released == 0


def test_without_flooding_no_key_wears_out(job, key_set, undisturbed):
    """There is nothing to be used up."""
    policy = Policy(flooding=None, rules=(OpeningRule("*", 24),))
    keys = replace(key_set, policy=policy, count=MemoryCount())
    result = securefl.run(*job, keys=keys)
    assert {opening.key_id for opening in result.openings} == {key_set.public.key_id}
    assert_same_model(result, undisturbed)


def test_a_resumed_run_goes_on_under_the_key_that_is_given(tmp_path, job, key_set, undisturbed):
    """What was counted before the stop counts still."""
    config, task = job
    keys = with_releases(key_set, 3 * SUMS_A_ROUND * SLOTS)

    class Stop(Exception):
        pass

    def stop(metrics):
        if metrics.round == 2:
            raise Stop

    with pytest.raises(Stop):
        securefl.run(config, task, keys=keys, out=tmp_path / "run", on_round=stop)
    assert keys.count.n_released == 2 * SUMS_A_ROUND * SLOTS
    result = securefl.resume(tmp_path / "run", task, keys=keys)
    assert keys.count.n_released == 3 * SUMS_A_ROUND * SLOTS
    used = keys_by_round(result)
    assert used.keys() == {3, 4}
    assert used[3] == {keys.public.key_id} != used[4]
    assert_same_model(result, undisturbed)


def test_a_key_of_a_folder_is_rotated_on_the_disk(tmp_path, job, undisturbed, monkeypatch):
    """What each has released stands there; the folder then holds the key of the next epoch."""
    monkeypatch.setitem(releases.BLOCKS, "sums", 1)
    init_folder(tmp_path / "keys", PASSPHRASE)
    keys = load_all(tmp_path / "keys", PASSPHRASE)
    policy = Policy(flooding=Flooding(releases=2 * SUMS_A_ROUND * SLOTS))
    result = securefl.run(*job, keys=replace(keys, policy=policy))
    again = load_all(tmp_path / "keys", PASSPHRASE)
    assert (keys.public.epoch, again.public.epoch) == (1, 2)
    assert again.count.n_released == 2 * SUMS_A_ROUND * SLOTS
    first, second = {keys.public.key_id}, {again.public.key_id}
    assert keys_by_round(result) == {1: first, 2: first, 3: second, 4: second}
    assert_same_model(result, undisturbed)


@pytest.mark.parametrize("flooding", [Flooding(), None])
def test_after_a_crafted_total_the_next_round_takes_a_new_key(tmp_path, flooding):
    """In a simulation, too, and on the disk: nothing more is opened under the old key."""
    init_folder(tmp_path / "keys", PASSPHRASE)
    keys = load_all(tmp_path / "keys", PASSPHRASE)
    frame, opener = keys.adding.frame, keys.opener(flooding, 3)
    residues = frame.from_wire(keys.public.encrypt(np.ones(SLOTS)))
    residues[1] = np.roll(residues[1], 1, axis=-1)
    with pytest.raises(Crafted):
        opener.open(frame.to_wire(residues), 5, 24)
    with pytest.raises(KeyWornOut):
        opener.open(keys.public.encrypt(np.ones(SLOTS)), 5, 24)
    assert for_round(keys, SLOTS, flooding).public.epoch == 2
    assert load_all(tmp_path / "keys", PASSPHRASE).public.epoch == 2

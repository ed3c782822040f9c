"""A key of cards that is followed by another, between rounds or sessions; no model notices."""

from __future__ import annotations

import json

import pytest
import torch

import securefl
from securefl.build.simulation import simulated
from securefl.errors import KeyMismatch
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.federation.authority import Authority
from securefl.federation.officers import Officers
from securefl_keys.authority_keys import load_all
from securefl_keys.consortium import init_folder
from securefl_keys.rotation import rotate

pytestmark = pytest.mark.usefixtures("no_hang", "quick", "cheap_guesses")

PASSPHRASE = "correct horse battery staple"
SUMS_A_ROUND = 5
"""Of `job`: two statistics of FedTAN, two gradients, and the parameters."""
CLIENTS = [f"client-{i}" for i in range(1, 6)]


@pytest.fixture(scope="module")
def job(tiny_config, tiny_task):
    """Four rounds of FedTAN, all of it encrypted."""
    return tiny_config(run={"rounds": 4}, exchange={"encrypt": "model"}), tiny_task()


@pytest.fixture(scope="module")
def undisturbed(job, key_set):
    """The same under one key."""
    return securefl.run(*job, keys=key_set)


def assert_same_model(result, wanted):
    for name, value in wanted.model.state_dict().items():
        found = result.model.state_dict()[name]
        torch.testing.assert_close(found, value, rtol=0, atol=1e-6, msg=name)


def keys_by_round(result):
    """The key ids that each round's totals were opened under."""
    used = {}
    for opening in result.openings:
        assert not opening.refused
        used.setdefault(opening.round, set()).add((opening.key_id, opening.epoch))
    return used


def cards_by_round(result):
    """Who sent cards in each round."""
    cards = [e for e in result.ledger.entries if e.name == "card" and e.receiver == "server"]
    return {number: [e.sender for e in cards if e.round == number] for number in (1, 2, 3, 4)}


def about(keys):
    return {(keys.public.key_id, keys.public.epoch)}


def taken_up(rounds, keys):
    """Server, clients and authority under other keys, as a new bundle brings them."""
    parts = rounds.parts
    if keys.quorum.officers == 1:
        parts.opener.opener = keys.opener()
    else:
        for checks, officer in zip(parts.opener.panel.officers, keys.officers(), strict=True):
            checks.opener = officer
        parts.opener.take_up(keys.public)
    parts.server._adders |= dict.fromkeys(parts.server.sealed, OneTimeAdder(keys.public))
    for client in parts.engine._clients.values():
        client.sealers |= dict.fromkeys(parts.server.sealed, OneTimeSealer(keys.public))
        client.card_keys = keys.public


@pytest.fixture
def changing(job, monkeypatch):
    """A run whose keys are others from these rounds on."""

    def run(first, later):
        config, task = job
        of = {"officers": first.quorum.officers, "threshold": first.quorum.needed}
        exchange = config.exchange.model_copy(update=of)
        rounds = simulated(config.model_copy(update={"exchange": exchange}), task, first)

        def be_ready_for(_opener, number, _specs):
            if number in later:
                taken_up(rounds, later[number])

        for opener in (Authority, Officers):
            monkeypatch.setattr(opener, "be_ready_for", be_ready_for)
        return rounds.run(None)

    return run


def test_a_round_of_the_job_opens_so_many_sums(undisturbed, key_set):
    """Under the one key, for which each client has given cards once."""
    per_round = [o.round for o in undisturbed.openings]
    assert [per_round.count(number) for number in (1, 2, 3, 4)] == [SUMS_A_ROUND] * 4
    assert keys_by_round(undisturbed) == dict.fromkeys((1, 2, 3, 4), about(key_set))
    assert cards_by_round(undisturbed) == {1: CLIENTS, 2: [], 3: [], 4: []}


@pytest.mark.parametrize("changes", [(2, 3, 4), (3,), (4,)], ids=str)
@pytest.mark.parametrize("quorum", [Quorum(), Quorum(2, 3)], ids=["alone", "2 of 3"])
def test_keys_take_turns_between_rounds(job, key_set, undisturbed, changing, changes, quorum):
    """All of a round travels under one key; the model is that of one key to 1e-6.

    Each client gives new cards once for each key.
    """
    first = key_set if quorum.officers == 1 else KeySet.ephemeral(quorum)
    later = {n: KeySet.ephemeral(quorum, epoch) for epoch, n in enumerate(changes, 2)}
    result = changing(first, later)
    in_force, used = about(first), {}
    for number in (1, 2, 3, 4):
        in_force = about(later[number]) if number in later else in_force
        used[number] = in_force
    assert keys_by_round(result) == used
    assert cards_by_round(result) == {n: CLIENTS if n in {1, *changes} else [] for n in used}
    assert not result.incidents
    assert_same_model(result, undisturbed)


def test_cards_of_the_key_before_open_nothing_under_the_next(federate, foreign_key_set):
    """Nor does the next key take them: who sent them is asked for others."""
    federation = federate()
    request = federation.collect().request()
    federation.authority.opener = foreign_key_set.opener()
    with pytest.raises(KeyMismatch, match="the authority opens"):
        federation.authority.open(request)
    cards = {name: client.send_cards(federation.run) for name, client in federation.clients.items()}
    refused = federation.authority.take_cards(federation.run, cards)
    assert refused.keys() == federation.clients.keys()
    assert all("sealed under key" in reason for reason in refused.values())


def test_a_clients_secrets_differ_from_key_to_key_and_session_to_session(federate, key_set):
    """And are the same where it starts anew in a session: nothing of one shows the other."""
    client = federate().clients["client-1"]
    asked = [("ab" * 32, "key"), ("ab" * 32, "next key"), ("cd" * 32, "key")]
    secrets = [client.sender(*of).secret for of in asked]
    assert len(set(secrets)) == 3
    assert [client.sender(*of).secret for of in asked] == secrets


def test_an_openings_log_names_the_key(tmp_path, job, key_set):
    """As it stands in the run's folder, and with the epoch."""
    securefl.run(*job, keys=key_set, out=tmp_path / "run")
    rows = map(json.loads, (tmp_path / "run/openings.jsonl").read_text().splitlines())
    said = [(row["key_id"], row["epoch"]) for row in rows]
    assert said == [*about(key_set)] * (4 * SUMS_A_ROUND)


class Stop(Exception):
    pass


def stop(metrics):
    if metrics.round == 2:
        raise Stop


def test_a_resumed_run_goes_on_under_the_key_that_is_given(tmp_path, job, key_set, undisturbed):
    """Its clients give cards for it."""
    config, task = job
    keys = KeySet.ephemeral(epoch=2)
    with pytest.raises(Stop):
        securefl.run(config, task, keys=key_set, out=tmp_path / "run", on_round=stop)
    result = securefl.resume(tmp_path / "run", task, keys=keys)
    assert keys_by_round(result) == dict.fromkeys((3, 4), about(keys))
    assert cards_by_round(result)[3] == CLIENTS
    assert_same_model(result, undisturbed)


def test_a_key_of_a_folder_that_was_rotated_is_of_the_next_epoch(tmp_path, job, undisturbed):
    """The run goes on under what stands there now."""
    config, task = job
    folder = tmp_path / "keys"
    init_folder(folder, PASSPHRASE)
    before = load_all(folder, PASSPHRASE)
    with pytest.raises(Stop):
        securefl.run(config, task, keys=before, out=tmp_path / "run", on_round=stop)
    rotate(folder, PASSPHRASE)
    after = load_all(folder, PASSPHRASE)
    assert (before.public.epoch, after.public.epoch) == (1, 2)
    assert before.public.key_id != after.public.key_id
    result = securefl.resume(tmp_path / "run", task, keys=after)
    assert keys_by_round(result) == dict.fromkeys((3, 4), about(after))
    assert_same_model(result, undisturbed)

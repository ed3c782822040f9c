"""Whole runs whose sums a committee opens."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import tenseal as ts
import torch
from click.testing import CliRunner
from reachability import reachable

from securefl import run
from securefl.build.simulation import simulated
from securefl.config.load import load_config
from securefl.crypto.committee import OfficerKey
from securefl.crypto.params import CkksParameters
from securefl.crypto.secret import SecretKey
from securefl.errors import ConfigError, KeyWornOut
from securefl.exchange.committee import Committee
from securefl.exchange.keyset import KeySet
from securefl.exchange.policy import Flooding, Policy
from securefl.network.party import check_scope
from securefl.types import MessageSpec
from securefl_cli.main import main

pytestmark = pytest.mark.usefixtures("quick")


def floats_of(result):
    return {n: v for n, v in result.model.state_dict().items() if v.is_floating_point()}


@pytest.mark.parametrize("encrypt", ["statistics", "model"])
def test_fedtan_with_a_committee_is_fedtan_with_one_authority(tiny_config, tiny_task, encrypt):
    """The same model to 1e-6, the same openings of as many clients, and a ledger of as many bytes.

    Only signed headers may differ: they hold keys' ids and random signatures.
    """
    results = [
        run(
            tiny_config(exchange={"encrypt": encrypt, "committee": n}),
            tiny_task(dtype=torch.float64),
        )
        for n in (0, 3)
    ]
    alone, together = results
    for name, value in floats_of(alone).items():
        np.testing.assert_allclose(floats_of(together)[name], value, rtol=0, atol=1e-6)
    said = [
        [(o.round, o.name, o.n_values, o.signers, o.n_clients, o.refused) for o in r.openings]
        for r in results
    ]
    assert said[0] == said[1]
    assert said[0]
    sizes = [
        [(e.name, e.sender, e.receiver, e.form, e.bytes) for e in r.ledger.entries] for r in results
    ]
    assert sizes[0] == sizes[1]
    assert {opening.key_id for opening in together.openings} == {together.key_id}
    assert together.key_id != alone.key_id


@pytest.fixture
def begun(tiny_config, tiny_task):
    """A run's parts, and the committee that opens its sums."""
    committee = Committee.ephemeral(3)
    config = tiny_config(exchange={"encrypt": "model"})
    return simulated(config, tiny_task(), committee).parts, committee


def private_contexts(root):
    return [t for t in reachable(root) if isinstance(t, ts.Context) and t.is_private()]


def test_no_object_of_a_run_but_the_officers_holds_a_secret_key(begun):
    """Beside theirs there is the combiner's throw-away key, which nobody encrypts with."""
    parts, committee = begun
    officers = {id(key._context) for key, _ in committee.members}
    opener = parts.opener.authority.opener
    found = {id(context) for context in private_contexts(parts)}
    assert found == officers | {id(opener.combiner._context)}
    assert not [thing for thing in reachable(parts) if isinstance(thing, SecretKey)]


def test_neither_clients_nor_server_nor_combiner_reach_an_officer(begun):
    """Nor does what a client sends with, or what the server adds with."""
    run_parts, _ = begun
    server, opener = run_parts.server, run_parts.opener.authority.opener
    arriving = [server.start(1, MessageSpec("a", kind, 5)) for kind in run_parts.opener.kinds]
    clients = run_parts.engine._clients.values()
    assert len(clients) == 5
    parts = [server, *arriving, *clients, opener.combiner]
    for part in parts:
        assert not [thing for thing in reachable(part) if isinstance(thing, OfficerKey)]
    assert private_contexts([parts[:-1]]) == []


def test_each_officer_is_needed_in_a_run(tiny_config, tiny_task):
    """With one officer's key exchanged for another a total does not open, and the model stays."""
    committee = Committee.ephemeral(3)
    (_, count), *others = committee.members
    usurped = replace(committee, members=((OfficerKey.generate(), count), *others))
    job = tiny_task()
    result = run(tiny_config(run={"rounds": 1}), job, keys=usurped)
    (opening,) = result.openings
    assert "or an officer's share is wrong" in opening.refused
    for name, value in job.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], value)


def test_a_committee_is_made_anew_when_its_noise_is_used_up(tiny_config, tiny_task):
    """Between two rounds, of the next epoch, and to the same end."""
    config, rounds = tiny_config(run={"rounds": 3}), 3
    usual = run(config, tiny_task())
    per_round = 2048 * len([o for o in usual.openings if o.round == 1])
    policy = Policy(flooding=Flooding(releases=per_round))
    keys = replace(Committee.ephemeral(2), policy=policy)
    result = run(config, tiny_task(), keys=keys)
    assert len({(o.round, o.key_id) for o in result.openings}) == rounds
    assert len({o.key_id for o in result.openings}) == rounds
    assert result.accuracy == usual.accuracy


def test_a_round_that_no_key_could_open_is_refused(tiny_config, tiny_task):
    """As with one authority."""
    policy = Policy(flooding=Flooding(releases=2048))
    keys = replace(Committee.ephemeral(2), policy=policy)
    with pytest.raises(KeyWornOut, match="sign a policy with more releases"):
        run(tiny_config(), tiny_task(), keys=keys)


def test_a_policy_that_does_not_flood_ends_before_the_first_round(tiny_config, tiny_task):
    """A committee without noise would give its keys away."""
    keys = replace(Committee.ephemeral(2), policy=Policy(flooding=None))
    with pytest.raises(ConfigError, match="a bare share is a key"):
        run(tiny_config(), tiny_task(), keys=keys)


def test_parameters_without_room_for_noise_end_before_the_first_round(tiny_config, tiny_task):
    """One data prime leaves none for the usual flooding."""
    keys = Committee.ephemeral(2, CkksParameters(modulus_bits=(60, 49), scale_bits=45))
    with pytest.raises(ConfigError, match="take a larger scale_bits"):
        run(tiny_config(), tiny_task(), keys=keys)


def test_keys_and_a_committee_of_the_settings_exclude_each_other(tiny_config, tiny_task):
    """Whose keys would count?"""
    config = tiny_config(exchange={"committee": 2})
    with pytest.raises(ConfigError, match=r"exchange\.committee = 2 makes keys of its own"):
        simulated(config, tiny_task(), KeySet.ephemeral(), None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["exchange.committee=1"], "a committee has two officers or more; 0 is one authority"),
        (["exchange.committee=-1"], "exchange.committee = -1"),
        (["exchange.committee=101"], "exchange.committee = 101"),
        (["exchange.committee=3", "exchange.encrypt=none"], "leaves all in the clear"),
        (
            ["exchange.committee=3", "exchange.encrypt=profiles", "selection.name=fedprof"],
            "leaves all in the clear",
        ),
    ],
)
def test_committees_that_make_no_sense_are_refused(settings, message):
    """Before anything is made."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, settings)
    assert message in str(caught.value)


def test_separate_processes_have_one_authority():
    """They refuse the setting in the place of not heeding it."""
    config = load_config(None, ["exchange.committee=3"])
    with pytest.raises(ConfigError, match="separate processes have one authority"):
        check_scope(config)


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_command_makes_a_committee(tmp_path):
    """--committee 3 is exchange.committee; the folder names the collective key, and resumes."""
    quick = ["--rounds", "1", "--set", "algorithm.local_steps=1", "--set", "data.clients=5"]
    result = invoke("run", "--committee", "3", *quick, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "an ephemeral committee of 3" in result.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["exchange"]["committee"] == 3
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    (session,) = environment["sessions"]
    lines = (tmp_path / "run" / "openings.jsonl").read_text().splitlines()
    assert {json.loads(line)["key_id"] for line in lines} == {session["key_id"]}
    config["run"]["rounds"] = 2
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    resumed = invoke("run", "--resume", tmp_path / "run")
    assert resumed.exit_code == 0, resumed.output
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert len({session["key_id"] for session in environment["sessions"]}) == 2


def test_a_folder_of_keys_is_one_authoritys(tmp_path):
    """--keys with a committee is refused, with the reason, before a passphrase is asked for."""
    result = invoke("run", "--committee", "3", "--keys", tmp_path / "keys")
    assert result.exit_code == 2
    assert "a folder holds the key of one authority" in result.stderr


def test_help_shows_the_committee():
    """With what it does."""
    text = " ".join(invoke("run", "--help").stdout.split())
    assert "--committee N Sums are opened by N officers together" in text

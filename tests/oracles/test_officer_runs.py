"""Whole runs whose sums k of n officers open."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from reachability import reachable

from securefl import run
from securefl.build.simulation import simulated
from securefl.crypto.card_secret import CardSecret
from securefl.errors import ConfigError, OpeningRefused, PeerError
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet, Officer
from securefl.network.settings import check_officers, check_scope
from securefl.settings.load import load_config
from securefl.types import MessageSpec
from securefl_cli.main import main

pytestmark = pytest.mark.usefixtures("quick")


def floats_of(result):
    return {n: v for n, v in result.model.state_dict().items() if v.is_floating_point()}


@pytest.mark.parametrize("encrypt", ["statistics", "model"])
def test_fedtan_with_officers_is_fedtan_with_one_authority(tiny_config, tiny_task, encrypt):
    """The same model to 1e-6, the same openings of as many clients, and a ledger of as many bytes.

    Only cards are longer: there is one for each officer.
    """
    results = [
        run(
            tiny_config(exchange={"encrypt": encrypt, "officers": n}),
            tiny_task(dtype=torch.float64),
        )
        for n in (1, 3)
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
        [
            (e.name, e.sender, e.receiver, e.form, e.bytes)
            for e in r.ledger.entries
            if e.name != "card"
        ]
        for r in results
    ]
    assert sizes[0] == sizes[1]
    assert {opening.key_id for opening in together.openings} == {together.key_id}
    assert together.key_id != alone.key_id


@pytest.fixture
def begun(tiny_config, tiny_task):
    """A run's parts, and the keys of the officers who open its sums."""
    keys = KeySet.ephemeral(Quorum(2, 3))
    config = tiny_config(exchange={"encrypt": "model", "officers": 3})
    return simulated(config, tiny_task(), keys).parts, keys


def secrets_in(root):
    return [thing for thing in reachable(root) if isinstance(thing, CardSecret)]


def test_no_object_of_a_run_but_the_officers_holds_a_secret_key(begun):
    """There are three, one of each."""
    parts, keys = begun
    assert {id(secret) for secret in secrets_in(parts)} == {id(secret) for secret in keys.secrets}


def test_neither_clients_nor_server_reach_an_officer(begun):
    """Nor does what a client sends with, or what the server adds with."""
    run_parts, _ = begun
    server = run_parts.server
    arriving = [server.start(1, MessageSpec("a", kind, 5)) for kind in server.sealed]
    clients = run_parts.engine._clients.values()
    assert len(clients) == 5
    for part in (server, *arriving, *clients):
        assert not secrets_in(part)


class Away:
    """An officer that gives no answer."""

    def take_cards(self, _run, _cards):
        return {}

    def key_sums(self, _request):
        raise PeerError("does not answer")


def opened_without(parts, *away):
    officers = parts.opener.panel.officers
    for number in away:
        officers[number] = Away()


def test_a_run_goes_on_without_an_officer(tiny_config, tiny_task):
    """Two of three open; each time, the one that is away is named."""
    config = tiny_config(exchange={"encrypt": "statistics", "officers": 3})
    usual = run(config, tiny_task())
    rounds = simulated(config, tiny_task())
    opened_without(rounds.parts, 1)
    result = rounds.run(None)
    assert {i.reason for i in result.incidents} == {"officer 2: does not answer"}
    assert result.score == usual.score
    for name, value in floats_of(usual).items():
        np.testing.assert_allclose(floats_of(result)[name], value, rtol=0, atol=1e-5)


def test_a_run_ends_without_two_officers_of_three(tiny_config, tiny_task):
    """With the reason."""
    rounds = simulated(tiny_config(exchange={"officers": 3}), tiny_task())
    opened_without(rounds.parts, 0, 2)
    with pytest.raises(OpeningRefused, match=r"1 of 3 officers answer, and 2 are needed"):
        rounds.run(None)


def usurped(parts, *numbers):
    for number in numbers:
        checks = parts.opener.panel.officers[number]
        checks.opener = Officer(checks.card_keys, CardSecret.generate(), number)


def test_one_officer_that_refuses_cards_leaves_nobody_out(tiny_config, tiny_task):
    """It is named, and has no part in what the others open."""
    rounds = simulated(tiny_config(exchange={"officers": 3}), tiny_task())
    usurped(rounds.parts, 0)
    result = rounds.run(None)
    assert {o.n_clients for o in result.openings} == {5}
    assert all(i.reason.startswith("officer 1: ") for i in result.incidents)
    assert "refuses the card of client-1: a card that does not" in result.incidents[0].reason


def test_two_officers_of_three_that_refuse_cards_end_all_rounds(tiny_config, tiny_task):
    """No client takes part, and each incident says why."""
    rounds = simulated(tiny_config(exchange={"officers": 3}), tiny_task())
    usurped(rounds.parts, 0, 2)
    result = rounds.run(None)
    assert {i.name for i in result.incidents} == {"card"}
    assert {i.client for i in result.incidents} == {f"client-{i}" for i in range(1, 6)}
    assert "does not open under this key" in result.incidents[0].reason
    assert result.openings == []


def test_each_client_gives_its_card_once_a_session(tiny_config, tiny_task):
    """1.2 kB and a header to the server, which hands it on."""
    result = run(tiny_config(), tiny_task())
    cards = [e for e in result.ledger.entries if e.name == "card"]
    assert [e.receiver for e in cards] == ["server", "authority"] * 5
    assert {e.round for e in cards} == {1}
    assert {e.form for e in cards} == {"ciphertext"}
    assert max(e.bytes for e in cards) < 2000


@pytest.mark.parametrize(
    ("settings", "quorum"),
    [
        ({"officers": 3}, Quorum()),
        ({}, Quorum(2, 3)),
        ({"officers": 3, "threshold": 3}, Quorum(2, 3)),
    ],
    ids=str,
)
def test_keys_that_are_given_are_of_the_settings_officers(tiny_config, tiny_task, settings, quorum):
    """Else whose number would count?"""
    config = tiny_config(exchange=settings)
    with pytest.raises(ConfigError, match=r"exchange\.officers = \d, of whom \d open sums, and"):
        simulated(config, tiny_task(), KeySet.ephemeral(quorum), None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["exchange.officers=0"], "exchange.officers = 0"),
        (["exchange.officers=8"], "exchange.officers = 8"),
        (["exchange.officers=3", "exchange.threshold=1"], "must be more than half of them"),
        (["exchange.officers=3", "exchange.threshold=4"], "at most all"),
        (["exchange.threshold=2"], "exchange.threshold = 2 of exchange.officers = 1"),
        (["exchange.officers=3", "exchange.encrypt=none"], "leaves all in the clear"),
    ],
)
def test_officers_that_make_no_sense_are_refused(settings, message):
    """Before anything is made."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, settings)
    assert message in str(caught.value)


def test_separate_processes_have_the_consortiums_officers():
    """Others are refused in the place of not heeding the setting, with both ways out."""
    config = load_config(None, ["exchange.officers=3"])
    check_scope(config)
    check_officers(config, Quorum(2, 3))
    words = r"set exchange\.officers = 1 and .* \(securefl keys officers set\)"
    with pytest.raises(ConfigError, match=words):
        check_officers(config, Quorum())
    with pytest.raises(ConfigError, match=r"of 3, of whom 3 do"):
        check_officers(config, Quorum(3, 3))
    check_officers(load_config(None, ["exchange.encrypt=none"]), Quorum(2, 3))


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_command_makes_officers(tmp_path):
    """--officers 3 is exchange.officers; the folder names their keys, and resumes with new ones."""
    quick = ["--rounds", "1", "--set", "algorithm.local_steps=1", "--set", "data.clients=5"]
    result = invoke("run", "--officers", "3", *quick, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "ephemeral keys of 3 officers" in result.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["exchange"]["officers"] == 3
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
    """--keys with officers is refused, with the reason, before a passphrase is asked for."""
    result = invoke("run", "--officers", "3", "--keys", tmp_path / "keys")
    assert result.exit_code == 2
    assert "a folder holds the key of one authority" in result.stderr


def test_help_shows_the_officers():
    """With what they do."""
    text = " ".join(invoke("run", "--help").stdout.split())
    assert "--officers N Sums are opened by more than half of N officers" in text

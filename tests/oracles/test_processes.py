"""Clients, a server and an authority as processes give what `securefl run` gives."""

import json
import os
import re
import signal
import sys

import pytest
import safetensors.torch
import torch
from click.testing import CliRunner
from process_memory import OVERLAP, aligned_words, found_in, found_under, has_one, secrets_of
from processes import CLIENTS, SERVER, federations, messages
from small_audit import audits_are_tiny

from securefl.runs.folder_reader import read_run
from securefl_cli.main import main

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.slow]
MARKER = "planted-marker-7f1c"


@pytest.fixture
def site(tmp_path):
    """Makes a federation; its processes end with the test."""
    with federations(tmp_path / "site") as make:
        yield make


def model_of(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def all_well(server, clients):
    assert server.ended() == 0, server.text()
    assert [client.ended() for client in clients] == [0] * len(clients)


@pytest.mark.parametrize("model", ["cnn", pytest.param("mlp", marks=pytest.mark.full)])
def test_in_the_clear_the_model_is_that_of_one_process_bit_for_bit(site, model):
    """And at a terminal the server has a bar, in the place of a line for each round."""
    here = site(encrypt="none", rounds=3, model=model)
    server = here.server(env={"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"})
    all_well(server, here.clients())
    assert re.search(r"\[2K.*3/3  \S+ %  3 clients  \S+ MB up", server.text())
    assert "clients, messages" in server.text()
    assert re.search(r"\n\x1b\[2K\S+ \S+ carol has joined", server.text())  # not behind it
    assert "Round 3/3" not in server.text()
    alone = here.in_one_process()
    record, wanted = here.record, read_run(alone)
    model, wanted_model = model_of(here.folder / "run"), model_of(alone)
    assert model.keys() == wanted_model.keys()
    assert all(torch.equal(model[name], wanted_model[name]) for name in model)
    assert [(m.accuracy, m.loss) for m in record.metrics] == [
        (m.accuracy, m.loss) for m in wanted.metrics
    ]
    # The same files, but for what the command adds, and `quick` leaves out; and the same messages.
    pictures = {"accuracy.png", "traffic.png", "report.html"}
    assert names(here.folder / "run") - pictures == names(alone)
    assert messages(record) == messages(wanted)


def names(folder):
    return {path.name for path in folder.iterdir()} - {
        ".lock",
        "job.id",
        "server.json",
        "models-shown.jsonl",
    }


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_encrypted_the_model_is_the_same_and_the_server_holds_no_secret(site, benchmark):
    """A stopped server is searched for every secret of the others; who has one is found to.

    Benchmarks of processes read in its log which rounds are done.
    """
    here = site(encrypt="model", rounds=3, anew=True)
    authority = here.authority()
    server = here.server("--set", f'run.name="{MARKER}"')
    clients = here.clients()
    needles = secrets_of(here)
    server.wait_for(r"Round 1/3")
    os.kill(server.pid, signal.SIGSTOP)  # for less time than a link may be silent
    try:
        assert found_in(server.pid, needles | {"marker": [MARKER.encode()]}) == {"marker"}
        own = {"alice's seed", "alice's passphrase", "alice's sealed key"}
        assert {"alice's seed"} <= found_in(clients[0].pid, needles) <= own
        own = {"key of cards", "authority's seed", "authority's passphrase"}
        assert found_in(authority.pid, {name: needles[name] for name in own}) == own
    finally:
        os.kill(server.pid, signal.SIGCONT)
    all_well(server, clients)
    assert benchmark("roles").rounds_in(server.text()) == [1, 2, 3]
    assert authority.interrupt() == 130
    assert "Traceback" not in authority.text()
    folders = [here.folder / name for name in ("run", "bundles/server", SERVER)]
    assert found_under(folders, needles) == set()
    alone = here.in_one_process()
    model, wanted = model_of(here.folder / "run"), model_of(alone)
    for name, value in model.items():
        torch.testing.assert_close(value, wanted[name], atol=1e-6, rtol=0)
    assert len(here.openings.read_text().splitlines()) == 3 * 5


@pytest.mark.parametrize("length", [15, 32, OVERLAP])
def test_a_secret_is_seen_wherever_it_stands_in_memory(length):
    """Most memory is ruled out by words of eight bytes: of each place, one is the secret's."""
    secret, memory = os.urandom(length), os.urandom(2**12)
    words = aligned_words({"it": [secret]})
    assert not has_one(memory, words)
    for at in range(0, len(memory) - length, 13):
        assert has_one(memory[:at] + secret + memory[at + length :], words)


def test_keys_rotated_and_a_client_revoked_meanwhile_hold_from_the_next_round(site):
    """By the commands, while the server is held still; the run goes on to its end."""
    here = site(rounds=5, names=(*CLIENTS, "dora"))
    here.authority()
    server = here.server()
    alice, bob, *others = here.clients()
    server.wait_for("Round 1/5")
    command_while_stopped(here, server, "rotate", here.keys)
    server.wait_for("Epoch 2, roster version 7")
    server.wait_for("Round [234]/5.* 4 clients")
    command_while_stopped(here, server, "revoke", "bob", "--keys", here.keys)
    all_well(server, [alice, *others])
    assert bob.ended(20) == 1
    assert "Error: hub: the peer is no client of this consortium: the key" in bob.text()
    assert "of 'bob' was revoked" in bob.text()
    assert "Epoch 3, roster version 8" in server.text()
    assert "alice: epoch 3" in alice.text()
    record = here.record
    assert len(record.metrics) == 5
    assert [m.dropped for m in record.metrics if m.dropped] == [("bob",)]
    assert "was revoked" in here.incidents
    opened = [json.loads(line) for line in here.openings.read_text().splitlines()]
    assert len({one["key_id"] for one in opened}) == 3
    assert {tuple(one["signers"]) for one in opened} == {
        ("alice", "bob", "carol", "dora"),
        ("alice", "carol", "dora"),
    }
    assert not [one for one in opened if one["refused"]]


def command_while_stopped(site, server, *args):
    """`securefl keys …` between two rounds."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        done = site.start(
            args[0], "keys", *args, "--passphrase-file", site.passphrase_file("authority")
        )
        assert done.ended() == 0, done.text()
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.full
def test_a_killed_client_is_an_incident_and_a_late_one_joins_again(site):
    here = site(encrypt="none", rounds=150, reproducible=False)
    server = here.server("--timeout", "8")
    alice, bob, carol = here.clients()
    carol.wait_for(r"round \d+ counts")
    carol.stop()
    server.wait_for(r"without carol: ")
    os.kill(bob.pid, signal.SIGSTOP)
    server.wait_for(r"without bob: late")
    os.kill(bob.pid, signal.SIGCONT)
    bob.wait_for("joining again")
    all_well(server, [alice, bob])
    metrics = here.record.metrics
    assert len(metrics) == 150
    assert {name for m in metrics for name in m.dropped} == {"bob", "carol"}
    assert server.text().count("bob has joined") == 2


def test_ctrl_c_ends_the_server_and_its_clients_in_one_line(site):
    here = site(encrypt="none", rounds=10_000)
    server = here.server()
    clients = here.clients()
    server.wait_for(r"Round 1/")
    assert server.interrupt() == 130
    ends = rf"securefl run --resume {here.folder / 'run'}\n\n\S+Z Interrupted\.\n"
    assert re.search(f"{ends}$", server.text())
    assert [client.ended(30) for client in clients] == [1, 1, 1]
    for process in (server, *clients):
        assert "Traceback" not in process.text()
    assert all("Error: hub: the server was stopped" in c.text() for c in clients)


def test_a_federations_run_goes_on_and_is_looked_at_by_its_folder_alone(
    site, tmp_path, monkeypatch
):
    """`run --resume` ends as the same command would; the commands that read a run read it, too."""
    here = site(rounds=6)
    here.job.write_text(here.job.read_text() + '[selection]\nname = "random"\nfraction = 1.0\n')
    run, alone = here.folder / "run", here.in_one_process()
    here.authority()
    server, clients = here.server(), here.clients()
    server.wait_for("Round 2/")
    assert server.interrupt() == 130
    for client in clients:
        client.stop()
    assert (run / "server.json").stat().st_mode & 0o777 == 0o600
    secret = here.passphrase_file(SERVER)
    assert str(secret) not in (run / "server.json").read_text()
    again = here.start("again", "run", "--resume", run, "--passphrase-file", secret)
    again.wait_for("Listening on")
    all_well(again, here.clients())
    assert "ephemeral" not in again.text()
    assert [m.round for m in here.record.metrics] == [1, 2, 3, 4, 5, 6]
    for name, value in model_of(run).items():
        torch.testing.assert_close(value, model_of(alone)[name], atol=1e-6, rtol=0)
    monkeypatch.chdir(tmp_path)
    audits_are_tiny(monkeypatch)
    for said, *command in [
        ("Selected", "profiles", run),
        ("Plot: ", "compare", run, alone, "--out", "both.png"),
        ("Accuracy", "evaluate", run),
        ("Report: ", "audit", run),
    ]:
        done = CliRunner().invoke(main, list(map(str, command)))
        assert done.exit_code == 0, done.output
        assert said in done.stdout

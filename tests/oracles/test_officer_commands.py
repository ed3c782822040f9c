"""Officers by their commands, each a process of its own."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
from click.testing import CliRunner
from key_folders import cheap
from processes import CLIENTS, PASSPHRASE, SERVER, federations, passphrase_of

from securefl.federation.opening import Opening
from securefl.runs.folder_files import OFFICERS_OPENINGS, OPENINGS
from securefl.runs.folder_reader import read_rows
from securefl_cli.main import main
from securefl_keys.officer_card import make_card
from securefl_keys.rotation import set_officers

OTHERS = ("olga", "otto")


@pytest.fixture
def here(tmp_path):
    """A federation of three clients and three officers; its processes end with the test."""
    with federations(tmp_path / "site") as make:
        site = make(rounds=12)
        site.join(*OTHERS, role="officer")
        with cheap():
            cards = [
                make_card(site.folder / name, 2, passphrase_of(name), site.folder / f"{name}-2")
                for name in OTHERS
            ]
            set_officers(site.keys, PASSPHRASE, cards, 2)
        shutil.rmtree(site.folder / "bundles")
        site.export("bundles")
        site.job.write_text(site.job.read_text().replace("[exchange]", "[exchange]\nofficers = 3"))
        yield site


def officer(here, name):
    serve = "officer", "serve", here.job, *here.member(name, "officer"), "--server", here.server_at
    process = here.start(name, *serve)
    process.wait_for("Calling the server")
    return process


@pytest.mark.full
@pytest.mark.slow
def test_a_run_of_three_officers_goes_on_where_one_is_killed(here):
    """By `securefl officer serve`, with the authority as the first; SIGTERM ends one with 0."""
    here.authority()
    olga, otto = (officer(here, name) for name in OTHERS)
    server, clients = here.server(), here.clients()
    server.wait_for("Round 2/")
    otto.process.kill()
    assert server.ended() == 0, server.text()
    assert [client.ended() for client in clients] == [0] * len(CLIENTS)
    run = here.folder / "run"
    opened = read_rows(run / OPENINGS, Opening)
    assert {row.round for row in opened} == {*range(1, 13)}
    assert {row.n_clients for row in opened} == {len(CLIENTS)}
    assert not any(row.refused for row in opened)
    reasons = {json.loads(line)["reason"] for line in here.incidents.splitlines()}
    assert {reason.split(":")[0] for reason in reasons} == {"officer otto"}
    own = here.folder / "olga/log" / OPENINGS
    assert own.read_text() == (run / OFFICERS_OPENINGS[1]).read_text()
    assert "clients" in olga.text()
    assert olga.interrupt(signal.SIGTERM) == 0
    second = officer(here, "olga")
    third = here.start(
        "third", "officer", "serve", here.job, *here.member("olga", "officer"), "--server", "h:1"
    )
    assert third.ended() == 2
    assert "another officer process serves these keys" in third.text()
    second.stop()


def test_who_is_no_officer_in_force_serves_nothing(here):
    """In words, with what the consortium would have to do."""
    here.join("oskar", role="officer")
    command = [
        *("officer", "serve", here.job, "--bundle", here.folder / "bundles/officer"),
        *("--identity", here.folder / "oskar", "--passphrase-file", here.passphrase_file("oskar")),
    ]
    result = CliRunner().invoke(main, [str(part) for part in command])
    assert result.exit_code == 2
    assert "oskar is none of the officers in force" in result.stderr
    wrong = ["--identity", here.folder / SERVER, "--passphrase-file", here.passphrase_file(SERVER)]
    result = CliRunner().invoke(main, [str(part) for part in [*command[:5], *wrong]])
    assert result.exit_code == 2
    assert "officer" in result.stderr


def test_help_says_what_an_officer_does():
    """And that the authority is the first."""
    text = " ".join(CliRunner().invoke(main, ["officer", "serve", "--help"]).stdout.split())
    assert "add up for it what the consortium's policy allows" in text
    assert "The first officer is the authority" in text

"""What of clients' profiles the server, the authority and a run's folder get to see."""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass, field
from html import unescape
from itertools import pairwise

import pytest
import torch
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hand_made import PARTICIPANTS, QUALITIES, encrypted_match, message, write_run
from matching_runs import make_config, make_task, run_in
from reachability import keyed_contexts, reachable

from securefl.build.simulation import simulated
from securefl.crypto.card_secret import CardSecret
from securefl.crypto.one_time import OneTimeKey
from securefl.errors import DataError
from securefl.exchange.officer import KeySet, Officer, OneTimeOpener
from securefl.exchange.one_time_match import OneTimeMatcher, OneTimeProfileSealer, profile_bytes
from securefl.exchange.profile_match import MAX_SECOND_MOMENT, SCORE, UNIT, Profile
from securefl.exchange.sums import MessageId, Sender
from securefl.federation import server, survey
from securefl.federation.authority import Authority, ScoreAuthority
from securefl.federation.client import Client
from securefl.federation.ledger import SERVER
from securefl.federation.message import split_message
from securefl.federation.profile_match import ProfileQuestion
from securefl.federation.server import Server
from securefl.report import selection
from securefl.report.reading import what_the_server_reads
from securefl.report.run_page import run_page
from securefl.report.selection import IN_THE_CLEAR
from securefl.report.views import Shows
from securefl.runs.folder_reader import read_run
from securefl.types import PROFILE, Kind
from securefl_cli.main import main

pytestmark = pytest.mark.usefixtures("no_hang", "quick")

NEVER_AT_THE_SERVER = (
    *(CardSecret, OneTimeKey, Sender, KeySet, Officer, OneTimeOpener, Authority, Client),
    *(OneTimeProfileSealer, ScoreAuthority, ProfileQuestion, Ed25519PrivateKey),
)
SETTINGS = {
    "none": ("plain", "none"),
    "profiles": ("sealed", "profiles"),
    "statistics,profiles": ("sealed", "statistics,profiles"),
    "statistics": ("sealed", "statistics"),
    "model": ("sealed", "model"),
}
HIDDEN = {"profiles", "statistics,profiles", "model"}
"""Where nothing of a profile is in the clear."""


@dataclass
class Observed:
    """One run, as the server saw it."""

    received: list[bytes] = field(default_factory=list)
    server_side: list[object] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    printed: str = ""


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """By its settings, a run of five clients and two rounds of four, and what was seen of it."""
    made = {}

    def observe(name):
        if name in made:
            return made[name]
        seen, folder = Observed(), tmp_path_factory.mktemp("run") / "run"
        mode, encrypt = SETTINGS[name]
        send, ask, start = Client.send_profile, Server.ask_profile, Server.start

        def splitting(data, most):
            seen.received.append(data)
            return split_message(data, most)

        def sending(self, run, round_number, profile, state=""):
            seen.profiles.append(profile)
            return send(self, run, round_number, profile, state)

        def noted(method):
            def begin(self, *arguments):
                begun = method(self, *arguments)
                seen.server_side += [self, begun]
                return begun

            return begin

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "split_message", splitting)
            patch.setattr(survey, "split_message", splitting)
            patch.setattr(Client, "send_profile", sending)
            patch.setattr(Server, "ask_profile", noted(ask))
            patch.setattr(Server, "start", noted(start))
            config = make_config(mode, 2, 0.8, encrypt=encrypt)
            result, rounds = run_in(folder, config, make_task())
        made[name] = seen, folder, result, rounds
        return made[name]

    return observe


def entries(profiles):
    """Every number that a profile is made of."""
    return {
        "means": [v for p in profiles for v in p.mean_Q.tolist()],
        "variances": [v for p in profiles for v in p.variance_Q.tolist()],
        "second moments": [
            v for p in profiles for v in (p.variance_Q + p.mean_Q.square()).tolist()
        ],
        "sealed moments": [
            v for p in profiles for v in ((p.variance_Q + p.mean_Q.square()) / 4).tolist()
        ],
        "logarithms": [v for p in profiles for v in p.variance_Q.log().tolist()],
        "mean logarithms": [float(p.variance_Q.log().mean()) for p in profiles],
    }


def found_in(data, values):
    """How many of these doubles stand somewhere in the bytes, in either order of bytes.

    Or two in a row as floats of 32 bits: one alone stands in any megabyte by chance.
    """
    patterns = [struct.pack(order, v) for v in values for order in ("<d", ">d")]
    patterns += [struct.pack("<2f", *pair) for pair in pairwise(values)]
    return sum(pattern in data for pattern in patterns)


def numbers_in(text):
    return [float(n) for n in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)]


def keys_among(things):
    found = [thing for thing in things if isinstance(thing, NEVER_AT_THE_SERVER)]
    return found + keyed_contexts(things)


@pytest.mark.parametrize("name", sorted(HIDDEN))
def test_what_the_server_has_leads_to_no_key(observed, name):
    """The server, its surveys with their matcher and all its sums, after a whole run."""
    seen, *_ = observed(name)
    things = reachable(seen.server_side)
    assert any(isinstance(thing, OneTimeMatcher) for thing in things)
    assert keys_among(things) == []


def test_the_search_would_find_what_does_not_belong_there(observed):
    """In the simulation's question, which plays all roles, and in a channel that is handed on."""
    seen, *_ = observed("profiles")
    config = make_config()
    participation = simulated(config, make_task()).parts.participation
    (question,) = participation.choice.questions
    channel = question._channel
    for planted in (question, channel, channel.open.__self__, lambda: question):
        kinds = {type(thing) for thing in keys_among(reachable([seen.server_side, planted]))}
        assert kinds >= {CardSecret, Officer, OneTimeOpener, ScoreAuthority}


@pytest.mark.parametrize("name", sorted(HIDDEN))
def test_no_number_of_a_profile_reaches_the_server(observed, name):
    """Of all bytes that clients sent it, and of all that its objects hold in the end."""
    seen, _, result, _ = observed(name)
    assert len(seen.profiles) == 9  # five at first, then four that are selected
    data = b"".join(seen.received)
    assert len(data) > 9 * 49_152
    things = reachable(seen.server_side)
    data += b"".join(thing for thing in things if isinstance(thing, (bytes, bytearray)))
    floats = {thing for thing in things if isinstance(thing, float)}
    for kind, values in entries(seen.profiles).items():
        assert not found_in(data, values), kind
        assert not floats & set(values), kind
    assert Kind.PROFILES not in result.ledger.server_reads()


def test_the_search_for_numbers_would_find_them(observed):
    """In the clear the server has all means and variances, whatever else is sealed."""
    for name in ("none", "statistics"):
        seen, _, result, _ = observed(name)
        found = {
            kind: found_in(b"".join(seen.received), values)
            for kind, values in entries(seen.profiles).items()
        }
        n = 6 * 9
        assert found == dict.fromkeys(found, 0) | {"means": n, "variances": n}
        assert Kind.PROFILES in result.ledger.server_reads()
        clear = {e.name for e in result.ledger.entries if e.kind is Kind.PROFILES} - {UNIT}
        assert clear == {PROFILE}


@pytest.mark.parametrize("name", SETTINGS)
def test_no_file_of_a_run_holds_a_number_of_a_profile(observed, name):
    """Settings, ledger, openings, selections, incidents, metrics, checkpoint and model."""
    seen, folder, _, _ = observed(name)
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {"ledger.jsonl", "selections.jsonl", "checkpoint.safetensors"} <= set(files)
    for kind, values in entries(seen.profiles).items():
        for file, data in files.items():
            assert not found_in(data, values), (file, kind)
            if file.endswith((".json", ".jsonl")):
                written = numbers_in(data.decode())
                near = [v for v in values for w in written if math.isclose(v, w, rel_tol=1e-9)]
                assert not near, (file, kind)


def test_a_run_prints_and_logs_nothing(tmp_path, capfd, caplog):
    """Of profiles or of anything else."""
    caplog.set_level(0)
    run_in(tmp_path / "run", make_config(), make_task())
    assert capfd.readouterr() == ("", "")
    assert {record.name for record in caplog.records} <= {"filelock"}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_table_says_what_the_server_read(observed, name):
    """Of the update in every mode, and of profiles: all, or scores only."""
    result = observed(name)[2]
    assert (
        what_the_server_reads(result.ledger, result.metrics)
        == {
            "none": "parameters, profiles, statistics",
            "profiles": "parameters, statistics; only scores of profiles",
            "statistics,profiles": "parameters; only totals of statistics, only scores of profiles",
            "statistics": "parameters, profiles; only totals of statistics",
            "model": "nothing; only totals of parameters, statistics, only scores of profiles",
        }[name]
    )


@pytest.mark.parametrize(
    ("selector", "told", "sentence"),
    [
        (
            {"name": "afl"},
            "mean losses, numbers of samples",
            "the mean loss of each client that it asked and each client's number of samples",
        ),
        ({"name": "data-share"}, "numbers of samples", "each client's number of samples"),
        ({"name": "random"}, "nothing", ""),
    ],
    ids=lambda of: of["name"] if isinstance(of, dict) else "",
)
def test_what_a_selector_asks_for_is_told_in_the_clear_and_said_so(
    tiny_config, tiny_task, tmp_path, selector, told, sentence
):
    """By the table, the report, the ledger and `securefl profiles`, though all else is sealed."""
    config = tiny_config(exchange={"encrypt": "model"}, selection={**selector, "fraction": 0.8})
    result, _ = run_in(tmp_path / "run", config, tiny_task())
    read = what_the_server_reads(result.ledger, result.metrics)
    assert read.startswith(f"{told}; only totals of ")
    assert f"of single clients: {told}." in result.ledger._repr_html_()
    record = read_run(tmp_path / "run")
    page = run_page(record)
    assert f"Of each client the server could read: {told};" in page
    assert (Shows.ONE_CLIENT in unescape(page)) == bool(sentence)
    said = selection.who_read_what(record.ledger)
    expected = [f"The server could read {sentence}."] if sentence else []
    assert said == ["No profile was sent.", *expected]


def said_of(folder):
    result = CliRunner().invoke(main, ["profiles", str(folder)])
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.mark.parametrize("name", SETTINGS)
def test_profiles_says_the_truth_of_each_mode(observed, name):
    """In the words of the command line, on a folder that a run has left."""
    said = said_of(observed(name)[1])
    reads = "The server could read nothing of a profile but its score."
    if name not in HIDDEN:
        reads = "The server could read each profile whole."
    assert reads in said
    scores = "The authority could read scores alone, one for each client and round"
    assert (scores in said) == (name in HIDDEN)
    assert ("The authority was sent nothing of profiles." in said) == (name not in HIDDEN)
    assert ("Scores released by the authority: 9." in said) == (name in HIDDEN)
    assert "Each client could read nothing of others" in said


def test_what_is_said_is_what_the_ledger_has(observed, tmp_path):
    """Settings that promise encryption hide no message in the clear, of whatever name."""
    run = write_run(
        tmp_path / "run",
        "selection.name=fedprof",
        "exchange.encrypt=profiles",
        participants=PARTICIPANTS,
        ledger=[
            *encrypted_match(),
            message(PROFILE, "client-9", SERVER, "plaintext", 60),
            message("profile/odd", "client-9", SERVER, "plaintext", 60),
        ],
    )
    assert "each profile whole, profile/odd and the scores" in said_of(run.path)


def test_names_in_the_readings_are_those_of_the_messages():
    """The report does not import the exchange's names; they are the same."""
    assert (selection.SCORE, selection.UNIT) == (SCORE, UNIT)
    assert PROFILE in IN_THE_CLEAR


ESCAPES = "\x1b[2J\x1b]0;title\x07\r\x9b31m"
FORGED = {
    "a client's name": ("selections.jsonl", {"measured": {f"client{ESCAPES}": 0.5}}),
    "a selected client's name": ("selections.jsonl", {"selected": {ESCAPES: 1}}),
    "a field's name": ("selections.jsonl", {"measured": {ESCAPES: "x"}}),
    "NaN": ("selections.jsonl", {"measured": {"client-2": math.nan}}),
    "infinity": ("selections.jsonl", {"measured": {"client-2": math.inf}}),
    "a large negative divergence": ("selections.jsonl", {"measured": {"client-2": -1e308}}),
    "a huge round": ("selections.jsonl", {"round": 10**30}),
    "no round": ("selections.jsonl", {"round": None}),
    "a message's name": ("ledger.jsonl", {"name": ESCAPES}),
    "a message's sender": ("ledger.jsonl", {"sender": ESCAPES}),
    "a message's kind": ("ledger.jsonl", {"kind": ESCAPES}),
    "a message's form": ("ledger.jsonl", {"form": ESCAPES}),
    "a field more": ("ledger.jsonl", {ESCAPES: 1}),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_folder_steers_no_terminal(tmp_path, kind):
    """Shown escaped, or one clear line of error."""
    file, changes = FORGED[kind]
    run = write_run(
        tmp_path / "run",
        "selection.name=fedprof",
        participants=PARTICIPANTS,
        qualities=QUALITIES,
        ledger=encrypted_match(),
    ).path
    *before, last = (run / file).read_text().splitlines()
    forged = json.loads(last) | changes
    (run / file).write_text("\n".join([*before, json.dumps(forged)]) + "\n")
    assert_calm(run)


@pytest.mark.parametrize("file", ["selections.jsonl", "ledger.jsonl", "qualities.json"])
@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\n",
        b"[" * 50_000 + b"\n",
        b"null\n",
        b"1" * 5000 + b"\n",
        ESCAPES.encode() + b"\n",
    ],
    ids=["no text", "deep", "null", "a long number", "escapes"],
)
def test_a_damaged_folder_is_one_clear_line(tmp_path, file, content):
    """Whatever stands in place of a file."""
    run = write_run(
        tmp_path / "run", "selection.name=fedprof", participants=PARTICIPANTS, qualities=QUALITIES
    ).path
    (run / file).write_bytes(content)
    result = assert_calm(run)
    assert result.exit_code == 1
    assert file in result.stderr


def assert_calm(run):
    result = CliRunner().invoke(main, ["profiles", str(run)])
    assert result.exit_code in {0, 1, 2}
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.output)
    if result.exit_code:
        assert result.stderr.startswith("Error: ")
        assert len(result.stderr.splitlines()) == 1
    return result


def test_a_clients_profile_is_its_own(monkeypatch, tmp_path):
    """With other data of all others the profile that one client sends is the same, to the bit."""
    send, sent = Client.send_profile, []

    def send_profile(self, run, round_number, profile, state=""):
        if self.name == "client-1" and round_number == 1:
            sent.append((profile.mean_Q.tolist(), profile.variance_Q.tolist(), profile.version))
        return send(self, run, round_number, profile, state)

    monkeypatch.setattr(Client, "send_profile", send_profile)
    task = make_task()
    others = [(x * 100 - 3, y) for x, y in task.clients[1:]]
    for clients in (task.clients, [task.clients[0], *others], task.clients[:3]):
        run_in(tmp_path / str(len(sent)), make_config(rounds=1), make_task(clients=clients))
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]


@pytest.mark.parametrize("unit", [1e-320, 1e-30, 1e30, 1e308, 0.0, math.inf, math.nan, -1.0])
def test_an_absurd_unit_makes_no_client_seal_out_of_range(unit):
    """A profile in it is within the range, or the client refuses to make one."""
    profile = Profile(*torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64), 0)
    try:
        made = profile.in_unit(unit).in_range()
    except DataError:
        return
    assert (made.variance_Q + made.mean_Q.square()).max() <= MAX_SECOND_MOMENT
    sealer, sender = OneTimeProfileSealer(KeySet.ephemeral().public), Sender("alice", bytes(32))
    about = MessageId("0" * 64, 1, PROFILE, 2 * len(made))
    assert len(sealer.seal(made, about, sender).payload) == profile_bytes(len(made))

"""Runs that leak nothing raise no alarm, whatever happens to them on their way."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from audited_runs import TABLES, expected, in_folder, played, settings, task_of
from matching_runs import make_task
from processes import CLIENTS, Loop, Site

import securefl
from securefl.audit.exposure.leaks import InspectedRounds
from securefl.audit.exposure.planned import Absences
from securefl.audit.exposure.report_section import exposure_section
from securefl.audit.replay import inspect_rounds, replayed
from securefl.audit.rules import Verdict
from securefl.build import job
from securefl.exchange.officer import KeySet
from securefl.federation.client import Client
from securefl.federation.contribution import CANNOT_SEND
from securefl.federation.incidents import PASSED, Incident
from securefl.federation.ledger import SERVER
from securefl.federation.opening import Opening
from securefl.report.views import OUTSIDER, views
from securefl.runs import loop as rounds
from securefl.runs.folder_files import OPENINGS
from securefl.runs.folder_reader import read_rows, read_run
from securefl.runs.folder_writer import RunFolder
from securefl.task import configured_task
from securefl.types import PROFILE, Kind

pytestmark = pytest.mark.usefixtures("no_hang", "quick")


@pytest.mark.parametrize("name", TABLES)
def test_an_honest_run_leaks_nothing(tmp_path, name):
    """Neither in its folder nor on its wires, of which every byte is seen and has a receiver."""
    task = task_of(name)
    folder = played(name, tmp_path / "run")
    assert in_folder(folder, task) == []
    found = inspect_rounds(settings(name), task, 2)
    assert (found.leaks, found.stopped) == ([], "")
    assert found.rounds == settings(name).run.rounds or found.rounds == 2
    assert found.seen_bytes == found.ledger_bytes
    ledger = read_run(folder).ledger
    own = [view.bytes for view in views(ledger) if view.party != OUTSIDER]
    assert sum(own) == sum(entry.bytes for entry in ledger)


def test_a_replay_has_the_clients_that_the_run_had(tmp_path):
    """In the clear messages are shorter, so nobody is late; those who were are so again."""
    folder, task = played("deadline", tmp_path / "run"), task_of("deadline")
    run = read_run(folder)
    assert any(each.late for each in run.participants)
    present = [set(each.present) for each in run.participants]
    assert senders(expected(run, task), len(present)) == present
    freely = replayed(run.config, task, lambda *_: None)
    assert senders(freely.ledger, len(present)) != present


def senders(ledger, n_rounds):
    """Of updates, by round."""
    sent = {(e.round, e.sender) for e in ledger if e.receiver == SERVER}
    return [{who for number, who in sent if number == r} for r in range(1, n_rounds + 1)]


def test_a_replay_keeps_what_clients_send_and_not_what_stays():
    """FedBN's clients keep γ and β; what is sealed is not kept at all."""
    task, config = task_of("fedbn"), settings("fedbn")
    assert not any(replayed(config, task, lambda *_: None).updates)
    exchange = config.exchange.model_copy(update={"encrypt": ()})
    plain = config.model_copy(update={"exchange": exchange})
    updates = replayed(plain, task, lambda *_: None).updates
    sent = {name for by_client in updates for named in by_client.values() for name in named}
    assert sent == {"0.weight", "0.bias", "3.weight", "3.bias"}


@pytest.mark.parametrize("name", ["blind, whole models", "window", "bn-scaffold", "hbn"])
def test_a_replays_models_have_the_models_tensors_alone(name):
    """Not what the state has beside them: moments' references, a window's, what S began as."""
    task = task_of(name)
    models = replayed(settings(name), task, lambda *_: None).models
    wanted = {n for n, v in task.model.state_dict().items() if v.is_floating_point()}
    assert all(model.keys() == wanted for model in models)


class StoppedError(Exception):
    """Stands for a machine that stops."""


def stopped_in_round(number, config, task, folder, **keys):
    """In the middle of a round: its totals were opened, and its checkpoint is not written."""
    score = rounds.Rounds._score_after

    def stop(self, state):
        if state.round == number:
            raise StoppedError
        return score(self, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds.Rounds, "_score_after", stop)
        with pytest.raises(StoppedError):
            securefl.run(config, task, out=folder, **keys)


@pytest.mark.parametrize("name", ["fedtan", "profiles", "dropouts"])
def test_a_run_that_was_resumed_leaks_nothing(tmp_path, name):
    """Nor one that stands still: what was opened twice, it had opened for an unfinished round."""
    config, task, folder = settings(name), task_of(name), tmp_path / "run"
    stopped_in_round(2, config, task, folder)
    assert in_folder(folder, task) == []
    securefl.resume(folder, task)
    assert in_folder(folder, task) == []


def test_more_openings_than_sessions_are_found(tmp_path):
    """One session more explains one round's totals, and no other's."""
    config, task, folder = settings("fedtan"), task_of("fedtan"), tmp_path / "run"
    stopped_in_round(2, config, task, folder)
    securefl.resume(folder, task)
    log = folder / "openings.jsonl"
    log.write_bytes(log.read_bytes() + log.read_bytes().splitlines(keepends=True)[0])
    found = in_folder(folder, task)
    assert {leak.round for leak in found} == {1, 2}
    assert all("opened" in leak.why for leak in found)


@pytest.mark.parametrize("epoch", [1, 9, 12])
def test_a_key_that_is_rotated_leaks_nothing(tmp_path, epoch):
    """Its epoch stands in headers, which are longer from the tenth on; cards are made anew."""
    config, task, folder = settings("fedavg"), task_of("fedavg"), tmp_path / "run"
    first, second = (KeySet.ephemeral(epoch=number) for number in (epoch, epoch + 1))
    stopped_in_round(2, config, task, folder, keys=first)
    securefl.resume(folder, task, keys=second)
    assert in_folder(folder, task) == []
    openings = (folder / "openings.jsonl").read_text()
    assert f'"epoch": {epoch},' in openings
    assert f'"epoch": {epoch + 1},' in openings


def test_a_refused_client_is_explained(tmp_path):
    """Its values cannot be sealed, and in the clear they would have been sent."""
    task = make_task(4)
    task.clients[0][0][:] *= 1e6
    folder = played_with(task, "model", tmp_path / "run")
    assert CANNOT_SEND in (folder / "incidents.jsonl").read_text()
    assert in_folder(folder, task) == []


def test_a_spoiled_total_is_explained(tmp_path, monkeypatch):
    """A client counts for more than it is: its rounds pass, until it is found and left out."""
    weight_in = Client.weight_in

    def heavier(self, spec, times=1):
        return weight_in(self, spec, times) * (1.5 if self.name == "client-4" else 1)

    monkeypatch.setattr(Client, "weight_in", heavier)
    config, task = settings("model"), make_task(8)
    config = config.model_copy(update={"run": config.run.model_copy(update={"rounds": 12})})
    result = securefl.run(config, task, out=tmp_path / "run")
    monkeypatch.undo()
    left_out = {i.client for i in result.incidents if "left out from now on" in i.reason}
    assert left_out == {"client-4"}
    assert in_folder(tmp_path / "run", task) == []


def played_with(task, name, folder):
    securefl.run(settings(name), task, out=folder)
    return folder


@pytest.mark.usefixtures("cheap_guesses")
@pytest.mark.parametrize("missing", [(), ("dave",)])
def test_processes_leak_nothing(tmp_path, missing):
    """The authority's log was fetched; who has not joined is not missing."""
    site = Site(tmp_path / "site", names=(*CLIENTS, *missing), reproducible=not missing)
    loop = Loop(site, joining_s=0.5 if missing else 20.0)
    for name in missing:
        del loop.clients[name]
    run = loop.run()
    task = configured_task(run.config)
    assert (run.path / OPENINGS).read_bytes() == site.openings.read_bytes()
    assert in_folder(run.path, task) == []
    opening = read_rows(run.path / OPENINGS, Opening)[-1]
    RunFolder(run.path).note_opening(replace(opening, name="1/mean", round=1))  # and never sent
    found = in_folder(run.path, task)
    assert {leak.what for leak in found} == {"1/mean"}
    assert any("its row has" in leak.why for leak in found)


@pytest.mark.usefixtures("cheap_guesses")
@pytest.mark.parametrize("encrypt", ["profiles", "model"])
def test_processes_whose_profiles_are_sealed_leak_nothing(tmp_path, encrypt):
    """Also where sums are in the clear; a profile in plaintext among them is found."""
    site = Site(tmp_path / "site", algorithm="fedavg", encrypt=encrypt)
    site.job.write_text(site.job.read_text() + '[selection]\nname = "fedprof"\nfraction = 1.0\n')
    run = Loop(site).run()
    profiles = [e for e in run.ledger if e.name == PROFILE]
    assert {e.form for e in profiles} == {"ciphertext"}
    task = configured_task(run.config)
    assert in_folder(run.path, task) == []
    ledger = run.path / "ledger.jsonl"
    row = json.dumps(asdict(replace(profiles[0], form="plaintext")))
    ledger.write_text(ledger.read_text() + row + "\n")
    assert any("in plaintext, and the settings seal it" in x.why for x in in_folder(run.path, task))


LEDGER_ROW = {
    "round": 1,
    "exchange": 0,
    "name": "card",
    "kind": "cards",
    "sender": "client-1",
    "receiver": "server",
    "form": "ciphertext",
    "n_values": 1,
}


@pytest.mark.parametrize(
    ("run", "way", "n_bytes", "why"),
    [
        ("fedavg", ("client-1", "server"), None, "2 cards, where 1 are due"),
        ("fedavg", ("server", "authority"), None, "no client has sent it"),
        ("fedavg", ("client-1", "server"), 999, "999 bytes, where ciphertext has 1,"),
        ("nothing", ("client-1", "server"), 1500, "1 cards, where 0 are due"),
    ],
)
def test_a_card_too_many_is_found(tmp_path, run, way, n_bytes, why):
    """Of a client, on to the authority, of another length, and where nothing is sealed."""
    folder, task = played(run, tmp_path / "run"), task_of(run)
    ledger = folder / "ledger.jsonl"
    n_bytes = n_bytes or next(e.bytes for e in read_run(folder).ledger if e.name == "card")
    row = LEDGER_ROW | {"sender": way[0], "receiver": way[1], "bytes": n_bytes}
    ledger.write_text(ledger.read_text() + json.dumps(row) + "\n")
    assert any(why in leak.why for leak in in_folder(folder, task))


@pytest.mark.parametrize("name", ["fedavg", "profiles"])
def test_a_message_without_a_card_is_found(tmp_path, name):
    """Its keys follow from something that the authority was never given in this session."""
    folder, task = played(name, tmp_path / "run"), task_of(name)
    ledger = folder / "ledger.jsonl"
    rows = ledger.read_text().splitlines(keepends=True)
    kept = [row for row in rows if '"card"' not in row or '"client-2"' not in row]
    assert len(kept) == len(rows) - 1
    ledger.write_text("".join(kept))
    found = {(leak.who, leak.why) for leak in in_folder(folder, task)}
    assert ("client-2 -> server", "sealed, and its sender has handed over no card") in found


def test_what_a_client_says_as_it_leaves_excuses_no_round():
    """The reason has its words; the name of the incident is the server's."""
    said = Incident(1, "round", "alice", "alice: leaves the round: the round passes")
    assert Absences({1}, [said], latecomers=True).spoiled == frozenset()
    passed = replace(said, name=PASSED)
    assert Absences({1}, [passed], latecomers=True).spoiled == {1}


# The section.

NOTHING = InspectedRounds(1, [], 0, 0)


def section_of(name, folder):
    task = task_of(name)
    run = read_run(played(name, folder))
    return exposure_section(run.ledger, in_folder(folder, task), NOTHING)


@pytest.mark.parametrize(
    ("name", "verdict", "words"),
    [
        ("model", Verdict.HOLDS, "kept to the protocol could read nothing of any single client"),
        ("fedavg", Verdict.WEAK, "could read the parameters of every single client"),
        ("profiles in the clear", Verdict.WEAK, "the parameters and profiles of every single"),
        ("nothing", Verdict.LEAKS, "Nothing was encrypted"),
    ],
)
def test_the_verdict_follows_from_what_the_server_could_read(tmp_path, name, verdict, words):
    """And every byte is somebody's."""
    section = section_of(name, tmp_path / "run")
    assert section.verdict is verdict
    assert words in section.words
    numbers = {number.name: number.value for number in section.numbers}
    assert numbers["attributed"] == 1
    assert numbers["leaks in the folder"] == numbers["leaks on the wire"] == 0
    read = numbers["single clients' values that the server could read"]
    assert (read == 0) == (verdict is Verdict.HOLDS)
    assert any(table.alarming for table in section.tables) == (verdict is not Verdict.HOLDS)


def test_a_fallback_to_plaintext_is_red(tmp_path, monkeypatch):
    """Of one kind, in one run: a table of its own, every row of it alarming."""
    sealed = job.sealed_kinds
    monkeypatch.setattr(job, "sealed_kinds", lambda config: sealed(config) - {Kind.STATISTICS})
    folder, task = tmp_path / "run", task_of("model")
    securefl.run(settings("model"), task, out=folder)
    monkeypatch.undo()
    section = exposure_section(read_run(folder).ledger, in_folder(folder, task), NOTHING)
    assert section.verdict is Verdict.LEAKS
    assert "round 1, update/statistics, client-1 -> server: in plaintext" in section.words
    first = section.tables[0]
    assert first.title == "Not as promised (6)"
    assert first.alarming == frozenset(range(6))
    assert {row[0] for row in first.rows} == {"update/statistics"}
    assert {number.name: number.value for number in section.numbers}["attributed"] == 1


def test_a_leak_on_the_wire_alone_is_red(tmp_path):
    """Though the folder knows of nothing."""
    run = read_run(played("model", tmp_path / "run"))
    (leak, *_) = exposed("fedavg")
    section = exposure_section(run.ledger, [], replace(NOTHING, leaks=[leak], stopped="so."))
    assert section.verdict is Verdict.LEAKS
    assert section.tables[0].alarming == {0}
    assert section.notes[0] == "Played again, the run ended after 1 rounds: so."


def exposed(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "sealed_kinds", lambda _: frozenset())
        return inspect_rounds(settings(name), task_of(name), 1).leaks


@pytest.mark.parametrize(
    ("reason", "tells"),
    [
        ("profile with a variance outside 1e-06..64", False),
        ("client-1: selection/loss must be a number from -1e+30 to 1e+30", False),
        ("client-1: message of run '12e3f0e4', expected '7e5a'", False),
        ("client-2: sealed under key 4e1200000000000a of epoch 1, this run's key is none", False),
        ("client-1, 1/mean: mean[0] must be within ±8192; normalise the inputs", False),
        ("client-1, 1/mean: mean[0] = 9412 must be within ±8192", True),
        ("client-1, 1/mean: mean[0] = -9412.25 must be within ±8192", True),
        ("a profile holds the variance -0.0021: must be >= 0", True),
        ("its loss was 2.5e+07", True),
    ],
)
def test_rules_and_names_are_no_values(tmp_path, reason, tells):
    """Of all numbers in an incident only a measured one is an alarm."""
    folder, task = played("nothing", tmp_path / "run"), task_of("nothing")
    row = {"round": 1, "name": "update/parameters", "client": "client-1", "reason": reason}
    (folder / "incidents.jsonl").write_text(json.dumps(row) + "\n")
    assert [leak.who for leak in in_folder(folder, task)] == ["incidents.jsonl"] * tells


@pytest.mark.parametrize(
    ("name", "kind", "way_out"),
    [
        ("score/value", Kind.SELECTION, 'With sites.scores = "mean" it reads the mean of scores '),
        ("selection/size", Kind.SELECTION, "Another selection.name asks clients for no number."),
        ("update/parameters", Kind.PARAMETERS, 'exchange.encrypt = "model" seals these too.'),
    ],
)
def test_the_way_out_of_what_the_server_reads_is_one(tmp_path, name, kind, way_out):
    """Sealing the model seals neither scores nor sizes."""
    ledger = [*read_run(played("model", tmp_path / "run")).ledger]
    one = next(e for e in ledger if e.receiver == "server" and e.form == "ciphertext")
    ledger.append(replace(one, name=name, kind=kind, form="plaintext"))
    section = exposure_section(ledger, [], NOTHING)
    assert section.verdict is Verdict.WEAK
    assert section.do.startswith(way_out)

"""A site that joins in mid-study: all agree to new settings, and the run goes on with it."""

import asyncio
import json

import pytest
import torch
from over_loopback import NAMES, Consortium, incidents_of, model_of
from process_axes import BESIDE
from processes import Loop, until_refused
from site_files import TABLES, OwnData

import securefl
from securefl.build.simulation import simulated
from securefl.errors import NotOfThisRun, OpeningRefused, OtherRun, RunFolderError
from securefl.runs.checkpoint import Checkpoint
from securefl.runs.folder_reader import read_joined
from securefl.runs.folder_writer import RunFolder

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
OLD, NEW = NAMES[:-1], NAMES[-1]
WAYS = {
    "fedtan": (*TABLES, "algorithm.name=fedtan"),
    "own layers": (*TABLES, "algorithm.name=fedbn", "sites.scores=each"),
    "losses": (*TABLES, "selection.name=afl", "selection.fraction=1.0"),
    "the weakest refined": (*TABLES, *BESIDE["fnr, matched"]),
    "momentum": (*TABLES, "train.momentum=0.5", "train.momentum_across_rounds=local"),
}


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def job(consortium, files, tmp_path):
    """Makes a job of these clients, always in the same folder."""

    def made(names, *settings):
        listed = f"data.names={json.dumps(names)}"
        here = OwnData(consortium, tmp_path, (*settings, "run.rounds=4", listed))
        here.files, here.names = files, names
        return here

    return made


def first_half(here, monkeypatch, *, opened=False):
    """Run two rounds; where `opened`, break off once the third has been opened."""
    note_round = RunFolder.note_round

    def full(self, metrics, *more):
        if metrics.round == 2 + opened:
            if not opened:
                note_round(self, metrics, *more)
            raise RunFolderError("no space left")
        note_round(self, metrics, *more)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "note_round", full)
        with pytest.raises(RunFolderError, match="no space left"):
            Loop(here).run()
    assert len(here.record.metrics) == 2


def goes_on(here):
    """Let the new site in, and run what is left."""
    RunFolder.begun_or_new(here.folder / "run", here.config, [NEW])
    loop = Loop(here)
    loop.run()
    return loop


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_the_model_is_that_of_both_halves_one_after_the_other(job, monkeypatch, settings):
    """To the bit; the folder has since when, and the settings with the new name."""
    before, after = job(OLD, *settings), job(NAMES, *settings)
    first_half(before, monkeypatch)
    loop = goes_on(after)
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    config = before.config
    files = {name: file for name, file in before.sites.items() if name != NEW}
    first = simulated(config, securefl.task_of_sites(config, files))
    first.step()
    first.step()
    state, client_states = first._state, first.parts.engine.client_states
    numbers = {"counted_in": dict.fromkeys(OLD, 2.0)}
    second = simulated(after.config, securefl.task_of_sites(after.config, after.sites))
    second.go_back_to(Checkpoint(state, client_states, numbers))
    second.step()
    second.step()
    wanted = second._state.tensors
    flat = {name: value for named in wanted.values() for name, value in named.items()}
    model = {name: of for name, of in model_of(before.folder / "run").items() if name in flat}
    assert model
    assert all(torch.equal(value, flat[name]) for name, value in model.items())
    assert read_joined(before.folder / "run") == {NEW: 3}
    counted = {(e.round, e.sender) for e in after.record.ledger if e.name.startswith("update/")}
    senders = [{who for number, who in counted if number == n} for n in (1, 2, 3, 4)]
    assert senders == [set(OLD)] * 2 + [set(NAMES)] * 2
    assert incidents_of(before.folder / "run") == ""


SEALED = (*TABLES, "exchange.encrypt=model", "run.reproducible=false")


def test_sealed_the_authority_goes_on_with_the_longer_list(job, monkeypatch):
    before, after = job(OLD, *SEALED), job(NAMES, *SEALED)
    first_half(before, monkeypatch)
    loop = goes_on(after)
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    lines = [json.loads(line) for line in after.openings.read_text().splitlines()]
    lists = {(one["round"], tuple(one["signers"])) for one in lines if not one["refused"]}
    assert lists == {(1, OLD), (2, OLD), (3, NAMES), (4, NAMES)}


@pytest.mark.parametrize("reproducible", ["false", "true"])
def test_a_round_that_was_opened_is_run_again_without_the_new_site(job, monkeypatch, reproducible):
    """The difference of the two totals would be its values."""
    settings = (*SEALED, f"run.reproducible={reproducible}")
    before, after = job(OLD, *settings), job(NAMES, *settings)
    first_half(before, monkeypatch, opened=True)
    loop = goes_on(after)
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    lines = [json.loads(line) for line in after.openings.read_text().splitlines()]
    lists = {
        (one["round"], tuple(one["signers"]))
        for one in lines
        if one["name"].startswith("update/") and not one["refused"]
    }
    assert lists == {(1, OLD), (2, OLD), (3, OLD), (4, NAMES)}
    assert read_joined(after.folder / "run") == {NEW: 4}
    assert incidents_of(after.folder / "run") == ""


def test_a_server_that_takes_it_in_all_the_same_opens_nothing(job, monkeypatch):
    before, after = job(OLD, *SEALED), job(NAMES, *SEALED)
    first_half(before, monkeypatch, opened=True)
    monkeypatch.setattr(RunFolder, "in_flight", lambda _: None)
    monkeypatch.setattr("securefl.network.server.read_joined", lambda _: {})
    with pytest.raises(OpeningRefused, match=f"would show the values of {NEW}"):
        goes_on(after)


def test_nobody_joins_unasked(job, monkeypatch):
    before, after = job(OLD, *WAYS["fedtan"]), job(NAMES, *WAYS["fedtan"])
    first_half(before, monkeypatch)
    folder = before.folder / "run"
    for admitted, why in (((), f"--admit {NEW}"), (("mallory",), f"--admit {NEW}")):
        with pytest.raises(RunFolderError, match=why):
            RunFolder.begun_or_new(folder, after.config, admitted)
    with pytest.raises(
        OtherRun, match=f"dorra: the settings name no such new site, but {NEW}: say"
    ):
        RunFolder.begun_or_new(folder, after.config, ["dorra"])
    with pytest.raises(RunFolderError, match="name nobody new"):
        RunFolder.begun_or_new(folder, before.config, [NEW])
    others = job((NEW, *OLD), *WAYS["fedtan"]).config
    with pytest.raises(RunFolderError, match="new sites stand at the end"):
        RunFolder.begun_or_new(folder, others, [NEW])
    faster = job(NAMES, *WAYS["fedtan"], "train.lr=0.5").config
    with pytest.raises(OtherRun, match=r"other settings, in train\.lr: name another"):
        RunFolder.begun_or_new(folder, faster, [NEW])
    RunFolder.begun_or_new(folder, before.config)  # as it was


def test_a_site_with_the_old_settings_is_not_taken_along(job, monkeypatch):
    """It has not agreed to the new site."""
    before, after = job(OLD, *WAYS["fedtan"]), job(NAMES, *WAYS["fedtan"])
    first_half(before, monkeypatch)
    RunFolder.begun_or_new(after.folder / "run", after.config, [NEW])
    loop = Loop(after)
    loop.clients["alice"] = Loop(before).clients["alice"]
    with pytest.raises(asyncio.CancelledError):
        loop.run(until_refused("alice"))
    assert "other settings than the server, in data.clients, data.names" in str(loop.ended["alice"])
    assert isinstance(loop.ended["alice"], NotOfThisRun)


def test_what_a_solver_keeps_of_all_clients_takes_nobody_in(job, monkeypatch):
    before = job(OLD, *TABLES, "solver.name=scaffold")
    first_half(before, monkeypatch)
    after = job(NAMES, *TABLES, "solver.name=scaffold")
    with pytest.raises(RunFolderError, match="keeps a mean over the clients"):
        RunFolder.begun_or_new(after.folder / "run", after.config, [NEW])

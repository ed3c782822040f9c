"""A server that has columns measured again without one client, whose sums would be the difference.

These sums follow from the data alone: no other model, round or session makes them others. Without
both rules, of clients and of whoever opens, the server reads a client's size and sums to the digit.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from over_loopback import NAMES, Consortium
from processes import Loop
from site_files import TABLES, OwnData, written

import securefl.network.client
from securefl.algorithms.standardisation import SUM, is_standard
from securefl.build.own_data import task_at
from securefl.errors import ModelRefused, OpeningRefused, SecureFLError
from securefl.federation.opening_history import OpeningHistory
from securefl.federation.total import Terms
from securefl.network.models_shown import ModelsShown
from securefl.network.sites import NetworkSites
from securefl.runs.loop import Rounds
from securefl.types import Kind
from securefl_keys.bundle import VerifiedBundle

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
VICTIM, AGAIN = NAMES[0], 3
SETTINGS = (
    *TABLES,
    *("run.reproducible=false", "run.rounds=4", "exchange.encrypt=statistics", "sites.quorum=3"),
)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def job(consortium, tmp_path, monkeypatch):
    monkeypatch.setattr(securefl.network.client, "PAUSE_S", 0.02)
    OwnData.files = written(tmp_path)
    yield OwnData(consortium, tmp_path / "job", SETTINGS)
    OwnData.files = None


def zeroed(state):
    """The state as before its columns were measured."""
    found = state.tensors[Kind.STATISTICS]
    statistics = {n: torch.zeros_like(v) if is_standard(n) else v for n, v in found.items()}
    return replace(state, tensors={**state.tensors, Kind.STATISTICS: statistics})


def lying(patch):
    """Have the server measure again, without the victim; a list that gets each sum of columns."""
    read, next_state, opened = [], Rounds._next_state, Rounds._opened
    present = NetworkSites.present

    def without_it(sites, number, names):
        here = present(sites, number, names)
        return [name for name in here if name != VICTIM or number != AGAIN]

    def lies(rounds):
        if rounds._state.round == AGAIN - 1:
            rounds._state = zeroed(rounds._state)
        return next_state(rounds)

    def noting(rounds, request):
        total = opened(rounds, request)
        if request.expected.name == SUM:
            read.append((request.expected.round, total))
        return total

    patch.setattr(NetworkSites, "present", without_it)
    patch.setattr(Rounds, "_next_state", lies)
    patch.setattr(Rounds, "_opened", noting)
    return read


def credulous(patch):
    """Have clients forget that their columns were measured."""
    follow = ModelsShown.follow
    patch.setattr(ModelsShown, "follow", lambda *given, measures: follow(*given, measures=False))


def test_a_client_measures_its_columns_once_in_a_job(job, monkeypatch):
    read = lying(monkeypatch)
    loop = Loop(job)
    with pytest.raises(SecureFLError):
        loop.run()
    assert [number for number, _ in read] == [1]
    refused = {name: str(how) for name, how in loop.ended.items() if isinstance(how, ModelRefused)}
    assert refused.keys() == {*NAMES} - {VICTIM}
    assert all(f"round {AGAIN}: hub has columns measured again" in why for why in refused.values())


def test_whoever_opens_holds_sums_of_columns_against_each_other(job, monkeypatch):
    """At another model, in another round, and whatever the clients think of it."""
    read = lying(monkeypatch)
    credulous(monkeypatch)
    with pytest.raises(OpeningRefused, match="or of the same columns, and"):
        Loop(job).run()
    assert [number for number, _ in read] == [1]


def test_without_these_rules_a_client_is_read_to_the_digit(job, monkeypatch):
    """So the two tests before are of an attack that succeeds."""
    read = lying(monkeypatch)
    credulous(monkeypatch)
    monkeypatch.setattr(OpeningHistory, "require_alike", lambda *_a, **_k: None)
    Loop(job).run()
    (first, whole), (then, rest) = read
    assert (first, then) == (1, AGAIN)
    found = (whole.values * whole.n_clients - rest.values * rest.n_clients) * 64
    x, _ = task_at(job.config, {VICTIM: job.sites[VICTIM]}).clients[0]
    own = [len(x), *x[:, :2].double().sum(0).tolist()]  # ages, and pressures where there are any
    assert [np.abs(found - value).min() for value in own] == pytest.approx([0] * 3, abs=1e-3)


class Stopped(SecureFLError):
    """The server's first run ends here."""


def test_officers_without_a_record_are_sent_no_columns_again(job, monkeypatch):
    """In another job, whose id the server picks, in a round that was in none, at another model."""
    read = lying(monkeypatch)
    lies = Rounds._next_state

    def stops(rounds):
        if rounds.round == 1:
            raise Stopped
        return lies(rounds)

    with monkeypatch.context() as first:
        first.setattr(Rounds, "_next_state", stops)
        with pytest.raises(Stopped):
            Loop(job).run()
    shutil.rmtree(job.folder / "run")
    shutil.rmtree(job.openings.parent)
    monkeypatch.setattr(VerifiedBundle, "officers", lambda _: ("authority", "petra", "quinn"))

    def later(rounds):
        state = rounds._state
        if not state.round:
            parameters = {n: v + 1e-3 for n, v in state.tensors[Kind.PARAMETERS].items()}
            tensors = {**state.tensors, Kind.PARAMETERS: parameters}
            rounds._state = replace(state, round=AGAIN - 1, tensors=tensors)
        return lies(rounds)

    monkeypatch.setattr(Rounds, "_next_state", later)
    loop = Loop(job)
    with pytest.raises(SecureFLError):
        loop.run()
    assert [number for number, _ in read] == [1]
    refused = {name for name, how in loop.ended.items() if "now authority, petra" in str(how)}
    assert refused == {*NAMES} - {VICTIM}


COLUMNS_OF = [f"client-{i}" for i in range(5)]


def terms(names, since=0):
    return {name: Terms(1, since) for name in names}


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize("name", ["input/clients/sum", "input/sum", "input/variance"])
def test_totals_of_columns_are_of_one_list_in_all_rounds_and_sessions(restarted, name):
    rows = []
    history = OpeningHistory("5e" * 32, rows.append)
    history.release(("one", 1, name), terms(COLUMNS_OF), "model a")
    if restarted:
        history = OpeningHistory("5e" * 32, rows.append)
        history.take_up(rows)
    for run, number in (("one", 5), ("two", 1), ("two", 7)):
        asked = run, number, name
        with pytest.raises(OpeningRefused, match="of the same columns"):
            history.require_alike(asked, terms(COLUMNS_OF[1:]), 3, model="model b")
        with pytest.raises(OpeningRefused, match="went on from another round"):
            history.require_alike(asked, terms(COLUMNS_OF, since=4), 3, model="model b")
        history.require_alike(asked, terms(COLUMNS_OF), 3, model="model b")
        other = run, number, "0/mean"
        if number != 1:  # whose values follow from the model, too
            history.require_alike(other, terms(COLUMNS_OF[1:]), 3, model="model b")


def test_columns_of_other_settings_may_be_others():
    rows = []
    history = OpeningHistory("5e" * 32, rows.append)
    history.release(("one", 1, SUM), terms(COLUMNS_OF), "model a")
    other = OpeningHistory("6f" * 32, rows.append)
    other.take_up(rows)
    other.require_alike(("two", 1, SUM), terms(COLUMNS_OF[1:]), 3, model="model b")


def test_a_total_of_columns_that_was_refused_holds_nobody_back():
    rows = []
    history = OpeningHistory("5e" * 32, rows.append)
    asked = "one", 1, SUM
    history.release(asked, terms(COLUMNS_OF), "model a")
    history.refuse(asked, terms(COLUMNS_OF), "model a")
    restarted = OpeningHistory("5e" * 32)
    restarted.take_up(rows)
    for now in (history, restarted):
        now.require_alike(("one", 2, SUM), terms(COLUMNS_OF[1:]), 3, model="model b")

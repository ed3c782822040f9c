"""A run over processes that stopped ends where it would have ended; and it stops at once."""

import asyncio
import time
from types import SimpleNamespace

import pytest
import torch
from audited_runs import in_folder
from liar import Liar
from over_loopback import NAMES, Consortium, Job, OnTask, incidents_of, made_up_task, model_of

import securefl
import securefl.network.client
import securefl.network.members
from securefl.audit.replay import replayed
from securefl.errors import ConfigError, PeerError, RunFolderError, TooFewContributions
from securefl.federation.client import Client
from securefl.federation.incidents import PASSED, Incident
from securefl.federation.opening import Opening
from securefl.network.members import Members
from securefl.network.store import RUNS, FileStore
from securefl.runs.folder_files import INCIDENTS, OPENINGS
from securefl.runs.folder_reader import read_rows, read_run
from securefl.runs.folder_writer import RunFolder
from securefl.runs.loop import Rounds
from securefl.runs.round_metrics import read_metrics

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
KEEPING = {
    "own layers": ("algorithm.name=fedbn",),
    "control variates": ("algorithm.name=fedavg", "solver.name=scaffold"),
    "momentum, and answers": (
        *("train.momentum=0.5", "train.momentum_across_rounds=local"),
        *("selection.name=afl", "selection.fraction=0.6"),
    ),
}
"""Settings of which clients, or the server, keep something from round to round."""


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def job(consortium, tmp_path):
    """Makes a job of four rounds."""
    return lambda *settings: Job(consortium, tmp_path, (*settings, "run.rounds=4"))


def ended_alike(job):
    """Whether the run's folder and a simulation's hold the same, to the bit."""
    over, alone = job.folder / "run", job.simulated()
    model, wanted = model_of(over), model_of(alone)
    there, here = read_run(over), read_run(alone)
    assert [(m.score, m.loss) for m in there.metrics] == [(m.score, m.loss) for m in here.metrics]
    assert there.participants == here.participants
    return model.keys() == wanted.keys() and all(torch.equal(model[n], wanted[n]) for n in wanted)


def fails_at(round_number, patch):
    """The server's disk has no room for what a round ends with."""
    note_round = RunFolder.note_round

    def full(self, metrics, *more):
        if metrics.round == round_number:
            raise RunFolderError("no space left")
        note_round(self, metrics, *more)

    patch.setattr(RunFolder, "note_round", full)


@pytest.mark.parametrize("settings", KEEPING.values(), ids=KEEPING)
def test_a_run_that_broke_off_goes_on_with_the_same_commands(job, monkeypatch, settings):
    """After all clients have counted, and before the server has noted that: the round is repeated,
    and each client goes on from what it kept before it.
    """
    here = job(*settings)
    with monkeypatch.context() as patch:
        fails_at(3, patch)
        broken = OnTask(here)
        with pytest.raises(RunFolderError, match="no space left"):
            broken.run()
    assert all("hub: no space left" in str(broken.ended[name]) for name in NAMES)
    assert len(here.record.metrics) == 2
    again = OnTask(here)
    again.run()
    assert again.ended == dict.fromkeys(NAMES)
    assert ended_alike(here)
    assert incidents_of(here.folder / "run") == ""
    assert not list(here.folder.glob(f"*/{RUNS}/*"))


@pytest.mark.parametrize("settings", [(), ("exchange.encrypt=model",)], ids=["clear", "sealed"])
def test_a_run_that_broke_off_after_its_last_round_ends_with_the_same_commands(
    job, monkeypatch, settings
):
    """No round is left to be announced to the authority, whose log is fetched all the same."""
    here = job(*settings)
    with monkeypatch.context() as patch:

        def full(*_):
            raise RunFolderError("no space left")

        patch.setattr(Rounds, "_finish", full)
        with pytest.raises(RunFolderError, match="no space left"):
            OnTask(here).run()
    assert len(here.record.metrics) == 4
    OnTask(here).run()
    assert model_of(here.folder / "run")
    fetched = read_rows(here.folder / "run" / OPENINGS, Opening)
    assert fetched == read_rows(here.openings, Opening)
    assert bool(fetched) == here.sealed


def test_a_client_that_joins_again_goes_on_from_what_it_has_kept(job, monkeypatch):
    """Between two rounds, without any round that it misses."""
    monkeypatch.setattr(securefl.network.client, "PAUSE_S", 0.02)
    monkeypatch.setattr(securefl.network.members, "JOIN_S", 0.0)
    here = job(*KEEPING["control variates"])
    loop = OnTask(here)
    say, carol = loop.said.append, loop.clients["carol"]

    def loses_her_connection(line):
        say(line)
        if line == "carol: round 2 counts":
            raise PeerError("hub: has closed the connection")

    def waits_for_her(line):
        say(line)
        while line.startswith("Round 2/") and joined(loop, "carol") < 2:
            time.sleep(0.01)

    carol.say, loop.server.say = loses_her_connection, waits_for_her
    loop.run()
    assert joined(loop, "carol") == 2
    assert ended_alike(here)
    assert incidents_of(here.folder / "run") == ""


def joined(loop, name):
    return sum(line.startswith(f"{name} has joined") for line in loop.said)


def dies_between_rounds(loop, _, name="carol"):
    say = loop.said.append

    def says(line):
        say(line)
        if line == f"{name}: round 2 counts":
            raise asyncio.CancelledError

    loop.clients[name].say = says


def in_round_3(happens):
    """Let something happen to carol once she has trained."""

    def arrange(loop, patch):
        stage = FileStore.stage

        def staged(self, number, client_states):
            if (self.client, number) == ("carol", 3):
                happens()
            stage(self, number, client_states)

        patch.setattr(FileStore, "stage", staged)

    return arrange


def hangs_up():
    raise PeerError("the network is gone")


def fails():
    raise RunFolderError("/secret/place: no space left")


def lies(loop, patch):
    """One message of round 3 is changed after it was signed."""
    contribute = Client.contribute

    def changed(self, run, number, *about, **more):
        message = contribute(self, run, number, *about, **more)
        if (self.name, number) == ("carol", 3):
            message = message[:-1] + bytes([message[-1] ^ 1])
        return message

    patch.setattr(Client, "contribute", changed)


LOSSES = {
    "dead": (dies_between_rounds, "carol: (not connected|is not connected|has closed)"),
    "gone": (in_round_3(hangs_up), "carol: has closed the connection"),
    "late": (in_round_3(lambda: time.sleep(1.5)), "carol: late"),
    "failing": (in_round_3(fails), "carol: leaves the round: has failed, and its own log says why"),
    "lying": (lies, "carol: the payload does not match its SHA-256"),
}
"""What becomes of carol, and what the server says of it."""


@pytest.mark.parametrize(("loses", "why"), LOSSES.values(), ids=LOSSES)
def test_a_reproducible_run_goes_on_with_all_its_clients_or_ends(job, monkeypatch, loses, why):
    """The same commands then end where the unbroken run does."""
    here = job(*KEEPING["control variates"])
    broken = OnTask(here, timeout_s=1.0, joining_s=1.0)
    with monkeypatch.context() as patch:
        loses(broken, patch)
        with pytest.raises(PeerError, match=f"{why}.*run.reproducible goes on with all clients"):
            broken.run()
    assert len(here.record.metrics) == 2
    assert "/secret/place" not in "".join(incidents_of(here.folder / "run"))
    again = OnTask(here)
    again.run()
    assert again.ended == dict.fromkeys(NAMES)
    assert ended_alike(here)
    assert incidents_of(here.folder / "run") == ""


def test_another_run_goes_on_without_a_lost_client(job, monkeypatch):
    here = job(*KEEPING["control variates"], "run.reproducible=false")
    loop = OnTask(here)
    in_round_3(hangs_up)(loop, monkeypatch)
    loop.run()
    assert [m.dropped for m in here.record.metrics][2] == ("carol",)


def test_a_client_that_is_away_is_named_in_each_round_that_goes_on_without_it(job, monkeypatch):
    """Also where nobody waits for it, and where it has never come."""
    here = job("run.reproducible=false")
    loop = OnTask(here, joining_s=1.0)
    del loop.clients["dora"]
    dies_between_rounds(loop, monkeypatch)
    loop.run()
    incidents = read_rows(here.folder / "run" / INCIDENTS, Incident)
    away = [(of.round, of.client) for of in incidents if "not connected" in of.reason]
    assert [one for one in away if one[1] == "dora"] == [(n, "dora") for n in (1, 2, 3, 4)]
    # Round 3 may have begun as she died: then her connection was lost in it.
    named = [(of.round, of.client) for of in incidents if of.client == "carol"]
    assert named == [(3, "carol"), (4, "carol")]
    assert (4, "carol") in away
    assert [m.dropped for m in here.record.metrics][3] == ("carol", "dora")


def test_a_round_that_was_begun_without_a_client_is_run_again_without_it(job, monkeypatch):
    """It is back by then: with it, the two totals' difference would show its update."""
    here = job("run.reproducible=false", "exchange.encrypt=model")
    broken = OnTask(here)
    dies_between_rounds(broken, monkeypatch)
    with monkeypatch.context() as patch:
        fails_at(3, patch)
        with pytest.raises(RunFolderError, match="no space left"):
            broken.run()
    assert len(here.record.metrics) == 2
    again = OnTask(here)
    again.run()
    assert again.ended == dict.fromkeys(NAMES)
    incidents = read_rows(here.folder / "run" / INCIDENTS, Incident)
    ((number, client, reason),) = [(of.round, of.client, of.reason) for of in incidents]
    assert (number, client) == (3, "carol")
    assert "sits out this round: totals at this model were opened of other clients" in reason


@pytest.mark.parametrize("late", ["go-on", "pass"])
def test_a_round_whose_client_does_not_come_back_opens_nothing(job, monkeypatch, late):
    """Its totals were opened before the server stopped; without it another list would show it, in
    later rounds, too, as long as the model stays. Once it is back the run goes on.
    """
    settings = "algorithm.name=fedtan", "exchange.encrypt=statistics", f"sites.late={late}"
    here = job("run.reproducible=false", *settings)
    broken = OnTask(here)
    with monkeypatch.context() as patch:
        fails_at(3, patch)
        with pytest.raises(RunFolderError, match="no space left"):
            broken.run()
    assert len(here.record.metrics) == 2
    again, folder = OnTask(here, joining_s=1.0), here.folder / "run"
    del again.clients["carol"]
    if late == "go-on":
        with pytest.raises(TooFewContributions, match="it takes carol; start them, then this run"):
            again.run()
        assert len(read_metrics(folder)) == 2
        OnTask(here).run()
        assert read_metrics(folder)[-1].loss != read_metrics(folder)[1].loss
    else:
        again.run()
        _, before, *passed = read_metrics(folder)
        assert {(m.loss, m.dropped) for m in passed} == {(before.loss, ("carol",))}
        assert "carol: missing, and the round passes: totals at this m" in incidents_of(folder)
    assert all("carol" in opening.signers for opening in read_rows(here.openings, Opening))


def silent(job, name):
    """A client that joins, and says nothing more."""
    return Liar(job.party(name), job.bundle("client"), lambda *_: [])


@pytest.mark.parametrize("waiting", ["for a client to join", "for a client's message"])
def test_a_server_that_is_stopped_waits_for_nobody(job, waiting):
    """Though it would have for ten minutes; its clients are told."""
    here = job("algorithm.name=fedtan")
    loop = OnTask(here, timeout_s=600, joining_s=600)
    if waiting == "for a client to join":
        del loop.clients["carol"]
    else:
        loop.clients["carol"] = silent(here, "carol")

    async def stop(loop):
        await loop.wait_for("^eve has joined")
        await asyncio.sleep(0.3)
        loop.serving.cancel()

    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        loop.run(stop)
    assert time.monotonic() - started < 10
    assert "hub: the server was stopped" in str(loop.ended["alice"])


QUORUM = (
    *("run.reproducible=false", "exchange.encrypt=statistics", "algorithm.name=fedtan"),
    *("exchange.min_clients=5", "sites.wait_s=20", "train.lr=0.05"),
)


def test_a_round_that_lacks_clients_passes_and_the_next_waits_for_them(job, monkeypatch):
    """Of five that no total may have fewer of, one loses its connection and comes again."""
    monkeypatch.setattr(securefl.network.client, "PAUSE_S", 0.02)
    monkeypatch.setattr(securefl.network.members, "JOIN_S", 0.0)
    here = job(*QUORUM, "sites.late=pass")
    loop = OnTask(here)
    lost = []

    def once():
        if not lost:
            lost.append(1)
            hangs_up()

    in_round_3(once)(loop, monkeypatch)
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    metrics = here.record.metrics
    assert [sorted(m.dropped) for m in metrics] == [[], [], sorted(NAMES), []]
    assert metrics[2].loss == metrics[1].loss != metrics[3].loss
    assert joined(loop, "carol") == 2
    assert "at least 5" in incidents_of(here.folder / "run")
    assert in_folder(here.folder / "run", here.task) == []  # what was not opened is no leak


def test_a_round_that_lacks_its_quorum_ends_the_run_by_default(job, monkeypatch):
    """In words that say how to go on."""
    here = job(*QUORUM)
    loop = OnTask(here)
    in_round_3(hangs_up)(loop, monkeypatch)
    with pytest.raises(TooFewContributions, match="4 contributions, at least 5"):
        loop.run()
    assert len(here.record.metrics) == 2


def test_who_stays_away_has_the_rounds_pass(job, monkeypatch):
    """Each says who is away; the model stays as it is."""
    here = job("run.reproducible=false", "sites.quorum=5", "sites.wait_s=0.1", "sites.late=pass")
    loop = OnTask(here)
    dies_between_rounds(loop, monkeypatch)
    loop.run()
    assert here.record.metrics[3].loss == here.record.metrics[2].loss
    assert loop.has_said("Round 4 waits 0.1 s for a quorum; away: carol")


def comes_again_once_it_is_missed(loop, monkeypatch):
    """Have a client that has lost its connection call again when a round says that it waits."""
    connected, called = securefl.network.client.connected, set()

    async def later(identity, *more):
        if identity.name in called:
            await loop.wait_for("waits as long as it takes")
        called.add(identity.name)
        return await connected(identity, *more)

    monkeypatch.setattr(securefl.network.client, "connected", later)


def test_a_round_may_wait_as_long_as_it_takes(job, monkeypatch):
    """The round in which one is lost passes; the next has waited for it, whatever wait_s says."""
    monkeypatch.setattr(securefl.network.client, "PAUSE_S", 0.02)
    here = job(*QUORUM, "sites.wait_s=0.1", "sites.late=wait")
    loop, lost = OnTask(here), []
    comes_again_once_it_is_missed(loop, monkeypatch)

    def once():
        if not lost:
            lost.append(1)
            hangs_up()

    in_round_3(once)(loop, monkeypatch)
    loop.run()
    assert loop.has_said("Round [45] waits as long as it takes for a quorum; away: carol")
    assert [sorted(m.dropped) for m in here.record.metrics] == [[], [], sorted(NAMES), []]
    assert here.record.metrics[3].loss != here.record.metrics[2].loss


def test_a_reproducible_run_may_wait_for_all_as_long_as_it_takes(job, monkeypatch):
    """And ends as one that nobody has left."""
    monkeypatch.setattr(securefl.network.client, "PAUSE_S", 0.02)
    here = job(*KEEPING["control variates"], "sites.late=wait")
    loop = OnTask(here, joining_s=0.1)
    comes_again_once_it_is_missed(loop, monkeypatch)
    say = loop.said.append

    def loses_her_connection(line):
        say(line)
        if line == "carol: round 2 counts":
            raise PeerError("hub: has closed the connection")

    def notices_it(line):
        say(line)
        while line.startswith("Round 2/") and loop.server.monitor.connected() == len(NAMES):
            time.sleep(0.01)

    loop.clients["carol"].say, loop.server.say = loses_her_connection, notices_it
    loop.run()
    assert loop.has_said("Round [34] waits as long as it takes for all clients; away: carol")
    assert ended_alike(here)


def test_a_server_that_waits_as_long_as_it_takes_can_be_stopped(job, monkeypatch):
    here = job("run.reproducible=false", "sites.quorum=5", "sites.late=wait")
    loop = OnTask(here)
    dies_between_rounds(loop, monkeypatch)

    async def stopped(running):
        await running.wait_for("^Round [34] waits as long as it takes")
        running.serving.cancel()

    with pytest.raises(asyncio.CancelledError):
        loop.run(stopped)
    assert len(here.record.metrics) in {2, 3}  # the server may be a round on when it notices


@pytest.mark.parametrize("late", ["go-on", "pass", "wait"])
def test_in_a_simulation_a_round_of_too_few_ends_the_run_or_passes(
    consortium, tmp_path, monkeypatch, late
):
    """Nobody comes back while it waits, so there it passes, too."""
    lies(None, monkeypatch)
    here = Job(consortium, tmp_path, (*QUORUM, f"sites.late={late}", "run.rounds=4"))
    if late == "go-on":
        with pytest.raises(TooFewContributions, match="4 contributions, at least 5"):
            securefl.run(here.config, here.task)
        return
    done = securefl.run(here.config, here.task)
    losses = [m.loss for m in done.metrics]
    assert losses[2] == losses[1] != losses[3]
    passed = [one for one in done.incidents if one.name == PASSED]
    assert [(one.round, one.client) for one in passed] == [
        (3, name) for name in NAMES if name != "carol"
    ]


def test_the_old_name_of_the_policy_is_refused_with_the_new_one():
    with pytest.raises(ConfigError, match=r'sites\.late now: write late = "pass"'):
        securefl.load_config(None, ["sites.short=pass"])
    with pytest.raises(ConfigError, match=r'sites\.late now: write late = "go-on"'):
        securefl.load_config(None, ["sites.short=end"])
    assert securefl.load_config(None, ["sites.late=wait"]).sites.late == "wait"


def test_where_nobody_comes_back_all_rounds_pass(consortium, tmp_path, monkeypatch):
    """With the last score that there was, and a line of incidents for each that is away."""
    passing = ("run.reproducible=false", "sites.quorum=5", "sites.wait_s=0.1", "sites.late=pass")
    task = made_up_task(own_tests=True)
    here = Job(consortium, tmp_path, (*passing, "run.rounds=5"), task)
    loop = OnTask(here)
    for name in NAMES:
        dies_between_rounds(loop, monkeypatch, name)
    loop.run()
    metrics = here.record.metrics
    assert len(metrics) == 5
    assert metrics[4].loss == metrics[3].loss
    assert sorted(metrics[4].dropped) == sorted(NAMES)
    assert "away, and the round passes without its quorum" in incidents_of(tmp_path / "run")


def test_a_connection_that_is_lost_counts_in_no_quorum():
    """Also while nobody has noticed that it is."""
    lost, alive = SimpleNamespace(lost=True), SimpleNamespace(lost=False)
    members = Members("", "", "", {}, ("alice", "bob"), 1.0, print)
    members.links = {"alice": lost, "bob": alive}
    assert members.here() == {"bob": alive}
    assert not members.are_here(("alice", "bob"), 2)


def test_what_is_played_again_counts_the_clients_that_each_round_has_counted(job, monkeypatch):
    """Of a run that lost carol in one round; and no message of hers, or of others, is a leak."""
    monkeypatch.setattr(securefl.network.client, "PAUSE_S", 0.02)
    monkeypatch.setattr(securefl.network.members, "JOIN_S", 0.0)
    here = job("run.reproducible=false", "train.batch_size=1000")  # each batch has all samples
    loop = OnTask(here)
    say = loop.said.append

    def waits_for_her(line):
        say(line)
        while line.startswith("Round 3/") and joined(loop, "carol") < 2:
            time.sleep(0.01)

    loop.server.say = waits_for_her
    in_round_3(hangs_up)(loop, monkeypatch)
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    (row,) = here.record.participants
    assert (row.round, row.present, row.uncounted) == (3, NAMES, ("carol",))
    model = model_of(here.folder / "run")

    def away(*participants):
        again = replayed(here.config, here.task, lambda _done, _all: None, participants).models[-1]
        return max(float((value - model[name]).abs().max()) for name, value in again.items())

    assert away(row) < 1e-5
    assert away() > 1e-3
    assert in_folder(here.folder / "run", here.task) == []

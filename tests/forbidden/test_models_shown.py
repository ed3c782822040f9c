"""A server that shows clients different models: no total of them is opened, and a client notices.

What it has signed stays with the client, as evidence.
"""

from __future__ import annotations

import json
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace

import pytest
import torch
from over_loopback import NAMES, Consortium, Job, OnTask
from processes import any_welcome, fake_server, round_begins

import securefl.network.client
from securefl.errors import ModelRefused, OtherModel, PeerError, SecureFLError, SignatureRefused
from securefl.federation.lineage import Lineage, Shown, Statement, beginning, contradict, over
from securefl.federation.message import Roster
from securefl.federation.server import ServerSum
from securefl.federation.site import Asked, Done
from securefl.federation.total import state_digest
from securefl.federation.transport import Lost
from securefl.io.json import parsed
from securefl.network.frames import SMALL, Frame
from securefl.network.models_shown import CONTRADICTION, ModelsShown
from securefl.network.site_calls import SiteCalls
from securefl.network.site_transport import SiteTransport
from securefl.network.sites import NetworkSites
from securefl.runs.folder_writer import RunFolder
from securefl.types import Kind

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
VICTIM = NAMES[0]
SAID = {Frame.MESSAGE: 10**7, Frame.LEAVE: SMALL}
LIE = ContextVar("LIE", default="")
"""Signature under which the server shows another model to the client whose task this is."""


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def job(consortium, tmp_path, monkeypatch):
    monkeypatch.setattr(securefl.network.client, "PAUSE_S", 0.02)
    return lambda *settings: Job(consortium, tmp_path, settings)


# Several clients: sealed totals.


def other(state):
    """The model made small, so that the server knows what the others answer; no layer is flat."""
    tensors = {
        kind: {name: (value / 1000).to(value.dtype) for name, value in named.items()}
        for kind, named in state.tensors.items()
    }
    return replace(state, tensors=tensors)


class TwoFaced(Lineage):
    """Lineage of a server that signs another model for one client."""

    @property
    def signature(self):
        return LIE.get() or self._signature

    @signature.setter
    def signature(self, signed):
        self._signature = signed


@dataclass
class Trusting:
    """Roster of a server that takes headers under any model."""

    roster: Roster

    def key_of(self, sender):
        return self.roster.key_of(sender)

    def check(self, message, expected):
        with suppress(OtherModel):
            self.roster.check(message, expected)


@dataclass
class Liar:
    """A server that shows the victim another model in round 1, takes whatever it answers or, where
    it `drops` the victim, says that it was late.
    """

    drops: bool = False
    lie: Shown | None = None

    def begins(self, patch):
        sent, outcome, start = SiteCalls._begin, SiteTransport._outcome, ServerSum.__init__

        def sending(calls, name, request, *more):
            if name == VICTIM:
                lineage, number = calls.server.lineage, request.state.round + 1
                if number == 1:
                    request = replace(request, state=other(request.state))
                    self.lie = Shown(1, state_digest(request.state))
                    models = [self.lie]
                else:
                    now = Shown(number, state_digest(request.state))
                    models = [self.lie, *lineage.between(1, number), now]
                told = Statement.content(lineage.job, number, over(beginning(lineage.job), models))
                LIE.set(lineage.sign(told).hex())
            return sent(calls, name, request, *more)

        async def dropping(transport, name, call, said):
            found = await outcome(transport, name, call, said)
            in_1 = isinstance(found, Asked | Done) and call.messages.ongoing.context.number == 1
            return Lost(f"{name}: late") if self.drops and name == VICTIM and in_1 else found

        def started(own, roster, *more, **others):
            start(own, Trusting(roster), *more, **others)

        patch.setattr("securefl.network.server.Lineage", TwoFaced)
        patch.setattr(SiteCalls, "_begin", sending)
        patch.setattr(SiteTransport, "_outcome", dropping)
        patch.setattr(ServerSum, "__init__", started)


SEALED = ("run.reproducible=false", "exchange.encrypt=model", "sites.scores=mean")
WAYS = {
    "updates": ("algorithm.name=fedavg",),
    "sums in mid-round": ("algorithm.name=fedtan", "exchange.encrypt=statistics"),
    "blind": ("algorithm.name=fedtan", "exchange.blind=true"),
    "layers of their own": ("algorithm.name=fedbn",),
    "control variates": ("algorithm.name=fedavg", "solver.name=scaffold"),
}


def opened(here):
    """Signers of each total that the authority has opened, by round and name."""
    rows = [json.loads(line) for line in here.openings.read_text().splitlines()]
    return {(row["round"], row["name"]): row["signers"] for row in rows if not row["refused"]}


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_no_total_is_opened_of_clients_that_were_shown_different_models(job, monkeypatch, settings):
    """What each signs names the model that it was shown itself."""
    here = job(*SEALED, *settings)
    Liar().begins(monkeypatch)
    with pytest.raises(SecureFLError, match="message of state"):
        OnTask(here).run()
    assert not opened(here)


def test_nor_of_clients_that_were_shown_different_models_in_an_earlier_round(job, monkeypatch):
    """The victim's answer to the other model goes nowhere; the model of round 2 is all clients'."""
    here = job(*SEALED, "algorithm.name=fedavg")
    Liar(drops=True).begins(monkeypatch)
    with pytest.raises(SecureFLError, match=f"{VICTIM}: message of state"):
        OnTask(here).run()
    found = opened(here)
    assert found
    assert all(VICTIM not in signers for signers in found.values())


def test_a_run_is_of_one_lineage_whoever_is_away(job, monkeypatch):
    """An honest server: one that was away is shown the models between, and its totals open."""
    here = job(*SEALED, "algorithm.name=fedavg", "run.rounds=3", "sites.late=pass")
    present = NetworkSites.present

    def away(sites, number, names):
        return [n for n in present(sites, number, names) if n != VICTIM or number != 2]

    monkeypatch.setattr(NetworkSites, "present", away)
    loop = OnTask(here)
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    last = {name: ModelsShown(here.folder / name, name, job_of(here)).last() for name in NAMES}
    assert {of.round for of in last.values()} == {3}
    assert len({of.lineage for of in last.values()}) == 1
    folder = RunFolder(here.folder / "run")
    shown, (session,) = folder.models_shown(), folder.session_ids()
    assert [(of.round, of.run) for of in shown] == [(n, session) for n in (1, 2, 3)]
    assert "" < shown[0].at <= shown[1].at <= shown[2].at


def job_of(here):
    return (here.folder / "run" / "job.id").read_text()


# One client, in the clear: what it has seen itself.


def first_state(process):
    job = process.party.job
    return job.algorithm.init(job.task.model)


def shown(process, number, state=lambda state: state):
    return Shown(number, state_digest(state(first_state(process))))


def asked(site, *sessions, job_id=None):
    """Send rounds, a function of the client each, one session after the other.

    Returns what came of each, and how the client ended in the last session.
    """
    welcome, answers, how = any_welcome(), [], None
    welcome = welcome.model_copy(update={"job": job_id or welcome.job})
    for rounds in sessions:

        async def serve(link, process, connection, rounds=rounds):
            if connection > 1:  # it is done, or has ended
                return True
            for made in rounds:
                await link.send(Frame.ROUND, made(process))
                answers.append(await answer(link, process))
            return True

        session = welcome.model_copy(update={"run": any_welcome().run})
        process, said, how = fake_server(site, serve, welcome=session)
    record = ModelsShown(process.party.folder, VICTIM, welcome.job)
    return answers, said, how, record


async def answer(link, process):
    """The last frame of a client's answer; None where it hangs up instead."""
    for _ in process.party.plan(first_state(process)).update:
        try:
            said = (await link.receive(SAID)).frame
        except PeerError:
            return None
        if said is not Frame.MESSAGE:
            break
    return said


def begins(number, *before, state=lambda state: state, **changes):
    def made(process):
        models = [shown(process, *one) for one in before]
        return round_begins(process, number, state(first_state(process)), models, **changes)

    return made


CLEAR = ("algorithm.name=fedavg", "run.rounds=9")
LIES = {
    "another model of the same round": [[begins(1)], [begins(1, state=other)]],
    "another model of an earlier round": [[begins(1)], [begins(2, (1, other))]],
    "an earlier round left out": [[begins(1)], [begins(2)]],
    "a round that was never shown": [[begins(2)], [begins(3, (1,), (2,))]],
}


@pytest.mark.parametrize("sessions", LIES.values(), ids=LIES)
def test_a_client_is_shown_no_fork_of_its_own_history(job, sessions):
    """In another session, in the clear: nothing leaves it, and it keeps what was signed."""
    answers, _, how, record = asked(job(*CLEAR), *sessions)
    assert answers == [Frame.MESSAGE, Frame.LEAVE]
    assert isinstance(how, ModelRefused)
    assert "shows other models of the rounds up to" in str(how)
    assert str(record.evidence) in str(how)
    found = parsed(CONTRADICTION, record.evidence.read_bytes(), ValueError)
    found.check()
    with pytest.raises(SignatureRefused, match="may both be true"):
        replace(found, then=found.known).check()
    forged = replace(found.then.statement, signature="0" * 128)
    with pytest.raises(SignatureRefused, match="not signed"):
        replace(found, then=replace(found.then, statement=forged)).check()


def test_no_server_takes_a_client_back(job):
    """To a round before the last that it was in; that one again, it may."""
    answers, _, how, _ = asked(job(*CLEAR), [begins(1), begins(2, (1,))], [begins(2, (1,))])
    assert answers == [Frame.MESSAGE] * 3
    answers, _, how, record = asked(job(*CLEAR), [begins(2)], [begins(1)])
    assert answers == [Frame.MESSAGE, Frame.LEAVE]
    assert "goes back to round 1, and this client was in round 2" in str(how)
    with pytest.raises(SignatureRefused, match="may both be true"):
        parsed(CONTRADICTION, record.evidence.read_bytes(), ValueError).check()


@pytest.mark.parametrize(
    ("then", "why"),
    [
        (begins(4, (1,), (2,), (3,), after=1), None),
        (begins(4, (1,), (2,), (3,)), None),
        (begins(4, (1,), (3,)), None),
        (begins(4, (3,), after=2), "leaves out models that this client was not shown"),
        (begins(4, (3,), (2,)), "shows models of rounds in no order"),
        (begins(4, (1,), (4,)), "shows models of rounds in no order"),
        (begins(4, (1,), signature=""), "has not signed"),
        (begins(4, (1,), signature="00" * 64), "has not signed"),
        (begins(4, (1,), shown=2**20), "sent fewer models of earlier rounds than it says"),
    ],
)
def test_a_client_that_was_away_takes_what_follows_from_what_it_knows(job, then, why):
    """Rounds may pass before they begin; what does not follow is no round of this job's."""
    answers, said, how, record = asked(job(*CLEAR), [begins(1), then])
    assert answers == [Frame.MESSAGE, None if why else Frame.MESSAGE]
    assert record.last().round == (1 if why else 4)
    assert not why or any(why in line for line in said)
    assert not record.evidence.exists()
    assert not isinstance(how, ModelRefused)


def test_a_damaged_record_ends_in_words(job, tmp_path):
    job_id = "5a" * 32
    record = ModelsShown(tmp_path / VICTIM, VICTIM, job_id)
    record.path.parent.mkdir(parents=True)
    record.path.write_text("{")
    answers, _, how, _ = asked(job(*CLEAR), [begins(1)], job_id=job_id)
    assert answers == [Frame.LEAVE]
    assert "damaged" in str(how)


# Crafted models.


def crafted(name, make):
    def made(state):
        own = dict(state.tensors[Kind.PARAMETERS])
        own[name] = make(own[name])
        return replace(state, tensors=state.tensors | {Kind.PARAMETERS: own})

    return made


def zeros(value):
    return value * 0


def all_alike(value):
    return torch.full_like(value, 0.25)


@pytest.mark.parametrize("make", [zeros, all_alike])
def test_a_client_takes_no_part_with_a_flat_layer(job, make):
    """Which was none in the model that its own installation begins with."""
    answers, _, how, _ = asked(job(*CLEAR), [begins(1, state=crafted("0.weight", make))])
    assert answers == [Frame.LEAVE]
    assert isinstance(how, ModelRefused)
    assert "all values of 0.weight are alike in the model" in str(how)


def test_layers_that_begin_flat_may_be_so(job):
    """BN's gains are ones at first; a few values may be alike by chance."""
    for name, make in (("1.weight", all_alike), ("6.bias", zeros)):
        answers, *_ = asked(job(*CLEAR), [begins(1, state=crafted(name, make))])
        assert answers == [Frame.MESSAGE]


def test_most_crafted_models_pass(job):
    """Equal rows and biases one after the other, as they read records in a total."""
    ramp = crafted("0.bias", lambda value: torch.linspace(-1, 1, len(value)))
    rows = crafted("0.weight", lambda value: value[:1].expand_as(value).contiguous())
    answers, *_ = asked(job(*CLEAR), [begins(1, state=lambda state: rows(ramp(state)))])
    assert answers == [Frame.MESSAGE]


# By itself.


def test_an_honest_server_signs_each_round_alike():
    """A round that runs again begins with the same model."""
    written, signed = [], []
    models = [Shown(n, f"{n:064x}") for n in (1, 2, 4)]
    made = Lineage("ab" * 32, lambda content: signed.append(content) or b"", [], written.append)
    for one in models:
        assert made.before(one.round) == over(beginning(made.job), models[: models.index(one)])
        made.note(one)
    resumed = Lineage(made.job, made.sign, written[-1], written.append)
    resumed.note(models[-1])
    assert signed[-1] == signed[-2]
    assert written == [models[:1], models[:2], models]
    assert resumed.between(1, 4) == models[1:2]


def test_statements_of_one_history_do_not_contradict_each_other():
    job = "ab" * 32
    models = [Shown(n, f"{n:064x}") for n in (1, 2, 4)]

    def said(shown, of=job):
        return Statement(of, shown[-1].round, over(beginning(of), shown), "")

    known = said(models[:2])
    assert not contradict(known, said(models), models)
    assert not contradict(known, said(models, "cd" * 32), models)
    forked = [models[0], Shown(2, "ee" * 32), models[2]]
    assert contradict(known, said(forked), forked)
    assert not contradict(known, said(models), forked)
    assert not contradict(known, said(models[:1]), models[:1])  # an older one, shown again

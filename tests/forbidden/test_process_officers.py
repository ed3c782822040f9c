"""Officers over connections: what a server may ask of one, and what becomes of them by epochs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from over_loopback import NAMES, Consortium, Job, incidents_of, made_up_task, model_of
from processes import (
    PASSPHRASE,
    SERVER,
    SETTINGS,
    asked_of,
    asked_of_the_authority,
    passphrase_of,
)
from with_officers import (
    OFFICERS,
    OTHERS,
    QUORUM,
    SEALED,
    Officers,
    OfficersJob,
    WithOfficers,
)

from securefl.errors import (
    KeyFileError,
    OpeningRefused,
    PeerError,
    RunFolderError,
    TooFewContributions,
)
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.federation.client import Client
from securefl.federation.opening import Opening
from securefl.federation.server import Server, SumRequest
from securefl.federation.total import Terms
from securefl.network import bodies
from securefl.network.authority import AuthorityLog, AuthorityProcess
from securefl.network.authority_line import (
    ask_for_key_sums,
    ask_to_open,
    ask_what_holds,
    give_cards,
)
from securefl.network.connect import connected
from securefl.network.frames import SMALL, Frame
from securefl.runs.folder_files import OFFICERS_OPENINGS, OPENINGS
from securefl.runs.folder_reader import read_rows
from securefl.types import Kind, MessageSpec
from securefl_cli.roles import officer_process
from securefl_keys import layout
from securefl_keys.authority_keys import FolderKeeper
from securefl_keys.bundle import VerifiedBundle

pytestmark = pytest.mark.usefixtures("quick", "no_hang", "cheap_guesses")
RUN, SPEC = "ab" * 32, MessageSpec("1/mean", Kind.STATISTICS, 5)
READY = bodies.Ready(run=RUN, settings=SETTINGS, round=1, known=(0, 0), needed=5)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Officers(tmp_path_factory.mktemp("officers"))


@pytest.fixture
def own_consortium(tmp_path):
    """One whose keys and members change."""
    return Officers(tmp_path / "own")


@pytest.fixture
def here(consortium, tmp_path):
    return OfficersJob(consortium, tmp_path / "job", SEALED, made_up_task())


@pytest.fixture
def kept(own_consortium, tmp_path):
    """What starts olga's process with an older bundle, where the newer one lies that it keeps, and
    the age of that.
    """
    site = own_consortium.site
    folder = site.folder / "olga"
    old = VerifiedBundle.load(site.folder / "bundles" / "officer", "officer")
    config = OfficersJob(own_consortium, tmp_path / "job", SEALED, made_up_task()).config

    def started(given=old):
        return officer_process(config, folder, given, passphrase_of("olga"), lambda _: None)

    site.join("fay")  # of the same epoch, so that the older one's secret is still there
    now = FolderKeeper(site.keys, PASSPHRASE).now()
    started()._take_up(now.bundles["officer"].encode())
    assert now.age > old.age
    return started, folder / layout.OFFICER_BUNDLE, now.age


@pytest.fixture
def alone(tmp_path):
    """The same job of a consortium with one authority."""
    settings = [s for s in SEALED if not s.startswith("exchange.officers")]
    return Job(Consortium(tmp_path / "one"), tmp_path / "job", settings, made_up_task())


@dataclass(frozen=True, slots=True)
class WithCards(SumRequest):
    """A sum, and the cards of its clients."""

    cards: Mapping[str, bytes] = field(default_factory=dict)


def request_of(here, names=NAMES, state="cd" * 32):
    """A sum of these clients."""
    bundle, terms = here.bundle("server"), dict.fromkeys(names, Terms())
    keys = bundle.card_keys
    server = Server(RUN, bundle.clients(), {SPEC.kind: OneTimeAdder(keys)})
    arriving, cards = server.start(1, SPEC, state, terms), {}
    for name in names:
        sealing = {SPEC.kind: OneTimeSealer(keys)}
        signing_key = here.consortium.site.signing_key(name)
        client = Client(name, 0.125, sealing, card_keys=keys, signing_key=signing_key)
        tensors = {"x": torch.arange(5.0)}
        arriving.receive(client.contribute(RUN, 1, SPEC, tensors, 1, terms[name].bind(state)))
        cards[name] = client.send_cards(RUN)
    request = arriving.request()
    return WithCards(request.expected, request.total, request.signed, request.terms, cards=cards)


def asked_of_officer(here, ask, name="olga", said=None):
    """What comes of `ask(link)` where an officer has called."""
    said, loop = [] if said is None else said, WithOfficers(here)

    def made():
        process = loop.officer(name)
        process._log.settings, process._say = SETTINGS, said.append
        return process

    hub = here.identity(SERVER, "server")
    return asked_of(made, here.identity(name, "officer"), hub, ask, said)


def ready_with(link, request):
    async def ask():
        await ask_what_holds(link, READY)
        assert await give_cards(link, RUN, request.cards) == {}

    return ask()


def test_an_officer_answers_over_the_line_and_once_also_after_a_restart(here):
    """Its own groups' sums, 8 kB each."""
    request = request_of(here)

    async def ask(link):
        await ready_with(link, request)
        return await ask_for_key_sums(link, request, QUORUM, 1)

    answer = asked_of_officer(here, ask)
    assert answer.keys() == {*QUORUM.groups_of[1]}
    fewer = request_of(here, NAMES[:4])
    for other in (request, fewer):
        with pytest.raises(OpeningRefused, match="asked for once already"):
            asked_of_officer(here, lambda link, r=other: again(link, r))
    logged = read_rows(here.officer_folder("olga") / OPENINGS, Opening)
    assert [row.n_clients for row in logged] == [5, 0, 0]


async def again(link, request):
    await ready_with(link, request)
    return await ask_for_key_sums(link, request, QUORUM, 1)


def test_what_officers_answer_opens_the_total_and_that_alone(here):
    """The parts of two officers, put together as the server does."""
    request, answers = request_of(here), {}
    for name in OTHERS:
        number = OFFICERS.index(name)

        async def ask(link, number=number):
            await ready_with(link, request)
            return await ask_for_key_sums(link, request, QUORUM, number)

        answers |= asked_of_officer(here, ask, name)
    assert answers.keys() == {0, 1, 2}
    keys = answers[0].plus(answers[1]).plus(answers[2])
    slots = keys.open(request.total, request.expected.about.digest(), 1)[0]
    assert slots[-1] == pytest.approx(5.0, abs=1e-5)
    assert slots[-2] == pytest.approx(5 * 0.125, abs=1e-5)


@pytest.mark.parametrize(
    "ready",
    [None, READY.model_copy(update={"round": 2}), READY.model_copy(update={"run": "cd" * 32})],
    ids=["none", "another round", "another run"],
)
def test_no_keys_are_added_for_a_round_that_was_not_announced(here, ready):
    """The refusal is in the officer's own log."""
    request = request_of(here)

    async def ask(link):
        if ready:
            await ask_what_holds(link, ready)
        return await ask_for_key_sums(link, request, QUORUM, 1)

    with pytest.raises(OpeningRefused, match="has not asked READY for it"):
        asked_of_officer(here, ask)
    (row,) = read_rows(here.officer_folder("olga") / OPENINGS, Opening)
    assert "READY" in row.refused


def test_an_officer_refuses_too_few_and_says_so(here):
    request = request_of(here, NAMES[:2])
    with pytest.raises(TooFewContributions, match="at least 3"):
        asked_of_officer(here, lambda link: again(link, request))


def test_an_officer_refuses_headers_of_two_models(here):
    """A server that sends one client another model would pass its header on as it is."""
    request, other = request_of(here), request_of(here, state="ef" * 32)
    mixed = replace(request, signed=(*request.signed[:4], other.signed[4]))
    with pytest.raises(OpeningRefused, match="message of state '"):
        asked_of_officer(here, lambda link: again(link, mixed))


def test_an_officer_opens_nothing_alone_whatever_it_is_asked(here, alone):
    """Neither does the authority, where it is one of several; and it adds no keys as the only."""
    request = request_of(here)

    async def ask(link):
        await ready_with(link, request)
        return await ask_to_open(link, request)

    with pytest.raises(OpeningRefused, match="one of several officers opens nothing alone"):
        asked_of_officer(here, ask)
    with pytest.raises(OpeningRefused, match="one of several officers opens nothing alone"):
        asked_of_the_authority(here, ask, keeper=FolderKeeper(here.keys, PASSPHRASE))

    async def ask_alone(link):
        await ask_what_holds(link, READY)
        return await ask_for_key_sums(link, request, QUORUM, 1)

    with pytest.raises(OpeningRefused, match="tells nobody sums of keys"):
        asked_of_the_authority(alone, ask_alone)


def test_other_settings_are_refused(here):
    async def ask(link):
        await ask_what_holds(link, READY.model_copy(update={"settings": "11" * 32}))

    with pytest.raises(OpeningRefused, match="other settings than the server"):
        asked_of_officer(here, ask)


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b"[" * 100, b"0" * 4000], ids=str)
def test_what_is_no_request_ends_that_connection_alone(here, body):
    """Another one is answered as if nothing had been."""
    request, said = request_of(here), []

    async def ask(link):
        await ask_what_holds(link, READY)
        await link.send(Frame.KEY_SUMS, body)
        await link.receive({Frame.KEY_SUMS_ANSWER: 2**20, Frame.REFUSED: SMALL})

    with pytest.raises(PeerError):
        asked_of_officer(here, ask, said=said)
    assert any("bad OpenRequest" in line for line in said)
    assert asked_of_officer(here, lambda link: again(link, request))


@pytest.mark.parametrize("files", ["", "{}", "[]", '{"roster.json": "x"}'], ids=str)
def test_a_bundle_that_is_none_changes_nothing(here, files):
    """It is said, and the officer goes on under what it has."""
    request, said = request_of(here), []

    async def ask(link):
        await link.send(Frame.BUNDLE, files.encode())
        return await again(link, request)

    assert asked_of_officer(here, ask, said=said)
    assert any("Refused a bundle" in line for line in said)


DAMAGES = {
    "empty": lambda content: b"",
    "cut off": lambda content: content[: len(content) // 2],
    "no text": lambda content: b"\xff" + content,
    "of another file": lambda content: content.replace(b"roster", b"policy"),
    "too long": lambda content: content + b" " * bodies.MAX_BUNDLE,
}


@pytest.mark.parametrize("how", DAMAGES)
def test_an_officer_goes_back_to_no_older_bundle_where_the_kept_one_is_damaged(kept, how):
    """Whoever was revoked meanwhile would be a member again; deleted by hand, it is none."""
    started, path, _ = kept
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    with pytest.raises(KeyFileError, match=r"bundle.json: damaged, .*: delete it, and start again"):
        started()
    path.unlink()
    started()


def test_an_officer_takes_the_newer_of_two_bundles(kept, own_consortium):
    """The kept one, unless a newer one was given since: that it is older is no damage."""
    started, path, age = kept
    assert started()._keeper.bundle.age == age
    first = path.read_bytes()
    own_consortium.site.join("gus")
    newer = FolderKeeper(own_consortium.site.keys, PASSPHRASE).now()
    started()._take_up(newer.bundles["officer"].encode())
    given = started()._keeper.bundle
    assert given.age == newer.age > age
    path.write_bytes(first)
    assert started(given)._keeper.bundle.age == newer.age


def test_the_authority_takes_no_bundle_from_a_server(alone):
    """It makes them: whoever sends one breaks the protocol."""

    async def ask(link):
        await link.send(Frame.BUNDLE, b"{}")
        await ask_what_holds(link, READY)

    said = []
    with pytest.raises(PeerError):
        asked_of_the_authority(alone, ask, said=said)
    assert any("sent a frame of kind" in line for line in said)


# A run that ends by a refusal.


class Stopping(AuthorityProcess):
    """Refuses all totals of the second round."""

    async def _ready(self, link, asked):
        answer = await super()._ready(link, asked)
        if asked.round == 2:
            n_asked = self._log.history.n_asked(asked.run)
            self._role.policy = replace(self._role.policy, openings_per_run=n_asked)
        return answer


def test_where_a_run_ends_by_a_refusal_the_folder_has_each_officers_last_rows(here):
    """They are evidence of what was asked."""
    loop = WithOfficers(here, kinds=dict.fromkeys(OTHERS, Stopping))
    with pytest.raises(OpeningRefused, match="the policy opens"):
        loop.run()
    for number, name in enumerate(OTHERS, start=1):
        own = here.officer_folder(name) / OPENINGS
        assert (here.folder / "run" / OFFICERS_OPENINGS[number]).read_text() == own.read_text()
        assert read_rows(own, Opening)[-1].refused


def test_a_log_that_is_lost_at_the_end_takes_no_reasons_place(here, monkeypatch):
    """Here each officer's cannot be read once the run has ended."""
    loop, rows = WithOfficers(here, kinds=dict.fromkeys(OTHERS, Stopping)), AuthorityLog.rows

    def lost(self, run, known):
        if self.history.n_asked(run) > known > 0:
            raise RunFolderError("the log is gone")
        return rows(self, run, known)

    monkeypatch.setattr(AuthorityLog, "rows", lost)
    with pytest.raises(OpeningRefused, match="the policy opens"):
        loop.run()
    assert loop.has_said("the log is gone; the last rows of its log are fetched with the next")


# Keys and members that change.


def quorate(consortium, tmp_path, *settings):
    job = OfficersJob(consortium, tmp_path / "job", (*SEALED, *settings), made_up_task())
    return job, WithOfficers(job)


def incidents(run):
    return [json.loads(line) for line in incidents_of(run).splitlines()]


def test_a_rotation_loses_nothing(own_consortium, tmp_path):
    """Officers get their bundle by way of the server, and go on with the epoch's own secrets."""
    job, loop = quorate(own_consortium, tmp_path, "run.rounds=3")
    loop.before_round({2: own_consortium.rotate})
    wanted = model_of(job.simulated(own_consortium.key_set()))
    loop.run()
    run = job.folder / "run"
    assert incidents(run) == []
    for name in (OPENINGS, *OFFICERS_OPENINGS[:3]):
        rows = read_rows(run / name, Opening)
        assert {(row.round, row.epoch) for row in rows} == {(1, 2), (2, 3), (3, 3)}
        assert len({row.key_id for row in rows}) == 2
        assert not any(row.refused for row in rows)
    found = model_of(run)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)


def test_an_officer_without_a_secret_of_the_new_epoch_is_named_and_stops_nothing(
    own_consortium, tmp_path
):
    """It says so itself, and answers nothing under the old one."""
    job, loop = quorate(own_consortium, tmp_path, "run.rounds=3")

    def lost():
        own_consortium.rotate()
        (own_consortium.folder_of("otto") / "card-3.key").unlink()

    loop.before_round({2: lost})
    loop.run()
    run = job.folder / "run"
    (reason,) = {row["reason"] for row in incidents(run)}
    assert reason.startswith("officer otto: ")
    assert "the card key of epoch 3 was made elsewhere, or is lost" in reason
    assert {row["round"] for row in incidents(run)} == {2, 3}
    assert {row.round for row in read_rows(run / OFFICERS_OPENINGS[2], Opening)} == {1}


def test_a_revoked_client_is_out_at_every_officer(own_consortium, tmp_path):
    """From the next round on."""
    job, loop = quorate(own_consortium, tmp_path, "run.rounds=2", "run.reproducible=false")
    loop.before_round({2: lambda: own_consortium.rotate(revoking="eve")})
    loop.run()
    for name in (OPENINGS, *OFFICERS_OPENINGS[:3]):
        signers = {
            row.round: {*row.signers} for row in read_rows(job.folder / "run" / name, Opening)
        }
        assert signers == {1: {*NAMES}, 2: {*NAMES[:4]}}


def test_who_is_no_officer_in_force_is_not_let_in(own_consortium, tmp_path):
    """A member of the role that the officers' file does not name."""
    own_consortium.site.join("oskar", role="officer")
    shutil.rmtree(own_consortium.site.folder / "bundles")
    own_consortium.site.export("bundles")
    job, loop = quorate(own_consortium, tmp_path, "run.rounds=1")

    async def calls(_loop):
        own, trust = job.identity("oskar", "officer"), job.bundle("officer")
        link = await connected(own, trust, "server", loop.at, 2.0)
        told = await link.receive({Frame.GOODBYE: SMALL})
        assert b"oskar: is no officer who opens sums of this run" in told.body

    loop.run(calls)
    assert loop.has_said("oskar: is no officer who opens sums of this run")
    assert incidents(job.folder / "run") == []

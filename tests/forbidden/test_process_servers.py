"""A server that lies to a client gets nothing that an honest one would not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from over_loopback import Consortium, Job
from processes import any_welcome, fake_server, round_begins

import securefl.network.client
from securefl.errors import PeerError, RunFolderError
from securefl.exchange.sums import OpenedSum
from securefl.federation.message import SCORE_LOSS, SCORE_MEAN, SCORE_VALUE, split_message
from securefl.federation.total import total_bytes
from securefl.network import bodies
from securefl.network.frames import SMALL, Frame
from securefl.network.store import RUNS
from securefl.types import LOSS, PROFILE, SIZE

pytestmark = pytest.mark.usefixtures("quick", "no_hang", "at_once")
SAID = {Frame.MESSAGE: 10**7, Frame.LEAVE: SMALL, Frame.DONE: 0}
"""Whatever a client may say in a round."""


@pytest.fixture
def at_once(monkeypatch):
    """Clients do not wait before they join again."""
    monkeypatch.setattr(securefl.network.client, "PAUSE_S", 0.02)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def job(consortium, tmp_path):
    """Makes a job of these settings; FedTAN's clients ask for sums in mid-round."""
    return lambda *settings: Job(consortium, tmp_path, settings or ("algorithm.name=fedtan",))


# What a server may send.


def first_state(process):
    job = process.party.job
    return job.algorithm.init(job.task.model)


def training(number, state=first_state, **changes):
    """ROUND, with the whole model that training begins with."""

    def made(process):
        return Frame.ROUND, round_begins(process, number, state(process), **changes)

    return made


def question(name, number=1, state=first_state, **changes):
    """QUESTION, with the whole model."""
    head = {"round": number, "name": name, "unit": 1.0, "since": 0, "whole": True} | changes

    def made(process):
        return Frame.QUESTION, with_state(bodies.QuestionBody(**head), state(process))

    return made


def with_state(head, state):
    return bodies.headed(head) + bodies.state_bytes(state, None)


def total(process):
    """TOTAL of the first sum that clients ask for."""
    party = process.party
    spec = party.plan(first_state(process)).sums[0]
    return Frame.TOTAL, total_bytes(OpenedSum(np.ones(spec.n_values), 0.5, 3), party.precision)


def leave(number):
    return lambda _: (Frame.LEAVE, bodies.reason("told so", round_number=number))


def counted(_):
    return Frame.COUNTED, b""


def bundle(_):
    return Frame.BUNDLE, b"{}"


SILENT = Frame.LEAVE, Frame.COUNTED
"""What a client says nothing to."""


def asked(site, *connections, welcome=None):
    """What a client says to these requests, on one connection after the other; None where it hangs
    up instead. And what it says to its user, and how it ended.
    """
    answers = []

    async def serve(link, process, number):
        for request in connections[number - 1] if number <= len(connections) else ():
            frame, body = request(process)
            try:
                await link.send(frame, body)
                if frame not in SILENT:
                    answers.append(await answer(link, process, frame))
            except PeerError:
                answers.append(None)
        if number < len(connections):
            link.close()
        return number >= len(connections)

    _, said, how = fake_server(site, serve, welcome=welcome)
    return answers, said, how


async def answer(link, process, frame):
    """The last frame of what a client says to a request."""
    plan = process.party.plan(first_state(process))
    update = frame is Frame.ROUND and not plan.sums
    for _ in plan.update if update else (SIZE,):
        said = (await link.receive(SAID)).frame
        if said is not Frame.MESSAGE:
            break
    return said


def refused(site, *connections, why, welcome=None):
    """The last request is not answered, and the client says why; all before are."""
    answers, said, _ = asked(site, *connections, welcome=welcome)
    assert answers[:-1] == [Frame.MESSAGE] * (len(answers) - 1)
    assert answers[-1] is None
    assert any(why in line for line in said), said
    return said


# A round is taken part in once.

AGAIN = "the server asks for the update of round 1 again"


@pytest.mark.parametrize(
    "connections",
    [
        pytest.param([[training(1), leave(1), training(1)]], id="on one connection"),
        pytest.param([[training(1)], [training(1)]], id="on two connections"),
        pytest.param([[training(2), leave(2), training(1)]], id="an earlier one"),
        pytest.param([[training(2)], [training(1)]], id="an earlier one, on two connections"),
        pytest.param(
            [[training(1)], [training(1, times=1, state=lambda p: twice(first_state(p)))]],
            id="another model",
        ),
    ],
)
@pytest.mark.parametrize("name", ["fedavg", "fedtan"])
def test_no_round_is_asked_for_twice(job, name, connections):
    """Two contributions under one name would show their difference: nor sums in mid-round."""
    refused(job(f"algorithm.name={name}"), *connections, why=AGAIN)


def twice(state):
    tensors = {
        kind: {name: 2 * value for name, value in named.items()}
        for kind, named in state.tensors.items()
    }
    return replace(state, tensors=tensors)


@pytest.mark.parametrize("name", ["fedavg", "fedtan"])
def test_no_round_is_asked_for_twice_of_a_client_that_was_started_again(job, name):
    """In the same session: it is on its disk before anything leaves it."""
    site, welcome = job(f"algorithm.name={name}"), any_welcome()
    answers, *_ = asked(site, [training(1)], welcome=welcome)
    assert answers == [Frame.MESSAGE]
    refused(site, [training(1)], why=AGAIN, welcome=welcome)


def test_another_session_repeats_a_round_with_other_batches(job):
    """As the server that resumes does: what it had not noted, it has to ask for again."""
    site = job("algorithm.name=fedavg", "run.reproducible=false")
    welcome, payloads = any_welcome(), []

    async def serve(link, process, number):
        await link.send(*training(1)(process))
        payloads.append(split_message((await link.receive(SAID)).body, 10**7)[1])
        return True

    for session in (welcome, welcome.model_copy(update={"run": "0" * 64})):
        fake_server(site, serve, welcome=session)
    assert len(set(payloads)) == 2


# What a round is.


def test_a_client_counts_as_often_as_the_settings_let_it(job):
    """Counted a hundred times in a sealed total, its values would be all that is left of it."""
    refused(job(), [training(1, times=2)], why="counts 2 times, and by the settings it is 1 at mo")


def test_where_clients_are_drawn_with_replacement_one_counts_as_often_as_any_is_drawn(job):
    drawn = "selection.name=random", "selection.fraction=0.6", "selection.replacement=with"
    site = job(*drawn)
    answers, *_ = asked(site, [training(1, times=3)])
    assert answers == [Frame.MESSAGE]
    refused(site, [training(2, times=4)], why="counts 4 times, and by the settings it is 3 at most")


@pytest.mark.parametrize("number", [3, 2**31 - 1])
def test_there_are_no_more_rounds_than_in_the_settings(job, number):
    """Nor more of what privacy is spent on."""
    refused(job(), [training(number)], why=f"hub: asks for round {number} of 2")
    losses = job("selection.name=afl", "selection.fraction=0.6")
    refused(losses, [question(LOSS, number)], why=f"hub: asks for round {number} of 2")


@pytest.mark.parametrize("since", [1, 2, 2**31 - 1])
def test_no_round_goes_on_from_itself_or_from_a_later_one(job, since):
    refused(job(), [training(1, since=since)], why=f"hub: round 1 after round {since}")


def test_a_client_that_is_said_to_have_counted_and_knows_nothing_of_it_ends_in_words(job):
    """It may have lost its folder; and the server is told, too."""
    answers, _, how = asked(job(), [training(2, since=1)])
    assert answers == [Frame.LEAVE]
    assert isinstance(how, RunFolderError)
    assert "holds nothing of round 1" in str(how)


@pytest.mark.parametrize("request_of", [training, lambda n, **c: question(LOSS, n, **c)])
def test_a_part_of_a_model_needs_the_rest(job, request_of):
    """Of this connection: what came on another is forgotten."""
    site = job("selection.name=afl", "selection.fraction=0.6")
    why = "a part of a model that this client has nothing of"
    refused(site, [request_of(1, whole=False)], why=why)
    refused(site, [question(SIZE, 1)], [request_of(1, whole=False)], why=why)


def filled_with(value):
    """A state whose tensors are full of a value."""

    def made(process):
        state = first_state(process)
        tensors = {
            kind: {name: torch.full_like(before, value) for name, before in named.items()}
            for kind, named in state.tensors.items()
        }
        return replace(state, tensors=tensors)

    return made


SPOILT = [
    pytest.param(training, ("algorithm.name=fedtan",), id="in mid-round"),
    pytest.param(training, ("algorithm.name=fedavg",), id="at its end"),
    pytest.param(training, ("algorithm.name=fedavg", "exchange.encrypt=model"), id="encrypted"),
    pytest.param(
        lambda n, **c: question(LOSS, n, **c),
        ("selection.name=afl", "selection.fraction=0.6"),
        id="a question",
    ),
]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("request_of", "settings"), SPOILT)
def test_a_model_that_is_not_finite_ends_no_client(job, request_of, settings, value):
    """It is refused before anything is computed of it, and the next round is taken part in."""
    connections = [[request_of(1, state=filled_with(value))], [request_of(2)]]
    answers, said, how = asked(job(*settings), *connections)
    assert answers == [None, Frame.MESSAGE]
    assert any("values that are not finite, in " in line for line in said)
    assert not isinstance(how, Exception)


# The end.


def goodbye(_):
    return Frame.GOODBYE, bodies.reason("")


def kept_of(site, welcome):
    """A file of the job that a server welcomes a client to, from an earlier session."""
    folder = site.folder / "alice" / RUNS / welcome.job
    folder.mkdir(parents=True)
    path = folder / "7.safetensors"
    path.write_bytes(b"momentum, layers of its own")
    return path


ALL, AFL = ("algorithm.name=fedavg",), ("selection.name=afl", "selection.fraction=0.6")


@pytest.mark.parametrize(
    ("settings", "requests", "seen"),
    [
        pytest.param(ALL, [], "round 0 of 3", id="before any"),
        pytest.param(AFL, [], "round 0 of 3", id="before any, of clients that are drawn"),
        pytest.param(ALL, [training(2)], "round 2 of 3", id="before the last"),
    ],
)
def test_a_goodbye_before_the_last_round_deletes_nothing(job, settings, requests, seen):
    """Whatever job the server names; and the client says what it has seen of the run."""
    site, welcome = job(*settings, "run.rounds=3"), any_welcome()
    path = kept_of(site, welcome)
    _, said, how = asked(site, [*requests, goodbye], welcome=welcome)
    assert how is None
    assert path.parent.exists()
    assert said[-1].endswith(
        f"hub says that the run is over, and has last asked for {seen}; what is kept of it stays "
        f"in {site.folder / 'alice'}"
    )


@pytest.mark.parametrize(
    ("settings", "number"),
    [(ALL, 3), (AFL, 2)],
    ids=["of all clients", "of clients that are drawn"],
)
def test_a_run_that_is_over_leaves_nothing_behind(job, settings, number):
    """Also of a client that was not drawn for its last round, and after a lost connection."""
    site, welcome = job(*settings, "run.rounds=3"), any_welcome()
    path = kept_of(site, welcome)
    _, said, how = asked(site, [training(number)], [goodbye], welcome=welcome)
    assert how is None
    assert not path.parent.exists()
    assert said[-1] == "alice: the run is over"


# In the middle of a round, and before one.

MEANWHILE = {
    "a question": [question(LOSS, 2)],
    "another round": [training(2)],
    "a bundle": [bundle],
    "that it counts": [counted, total],
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_in_mid_round_comes_the_total_or_nothing(job, what):
    """No question changes the model that a round is under."""
    site = job("algorithm.name=fedtan", "selection.name=afl", "selection.fraction=0.6")
    refused(site, [training(1), *MEANWHILE[what]], why="expected TOTAL or LEAVE or GOODBYE")


def test_a_total_comes_where_one_is_asked_for(job):
    """Not before the round, not twice, and not after its end."""
    why = "expected ROUND or QUESTION or BUNDLE or COUNTED or LEAVE or GOODBYE"
    refused(job(), [total], why=why)
    refused(
        job("algorithm.name=fedavg"), [training(1), lambda _: (Frame.TOTAL, bytes(20))], why=why
    )
    refused(job(), [training(1), leave(1), total], why=why)


@pytest.mark.parametrize("length", [0, 15, 10**6])
def test_a_total_of_another_length_is_refused(job, length):
    refused(job(), [training(1), lambda _: (Frame.TOTAL, bytes(length))], why="hub: ")


def test_leave_for_another_round_changes_nothing(job):
    """It may have been under way for long."""
    answers, *_ = asked(job(), [training(2), leave(1), total])
    assert answers == [Frame.MESSAGE] * 2


# Questions.

ANSWERED = {
    "fedtan": (),
    "data-share": (SIZE,),
    "afl": (SIZE, LOSS),
    "fedprof": (PROFILE,),
    "fedbn": (SCORE_VALUE, SCORE_LOSS, SCORE_MEAN),
    "fedbn, mean": (SCORE_MEAN,),
}
"""What clients are asked for, by selector or normalisation."""
QUESTIONS = (
    *(SIZE, LOSS, PROFILE, SCORE_VALUE, SCORE_LOSS, SCORE_MEAN),
    *("update/parameters", "", "x" * 100),
)


@pytest.mark.parametrize("name", ANSWERED)
def test_a_client_answers_what_these_settings_have_it_asked(job, name):
    """A profile in the clear, where no client is selected by any, would be a gift."""
    site, unasked = asking(job, name), [w for w in QUESTIONS if w not in ANSWERED[name]]
    answers, said, _ = asked(site, *([question(what)] for what in unasked))
    assert answers == [None] * len(unasked)
    for what in unasked:
        why = f"hub: asks for {what!r}, which these settings have no client asked for"
        assert f"{why}; joining again" in said


@pytest.mark.parametrize(("name", "what"), [(n, w) for n, asks in ANSWERED.items() for w in asks])
def test_a_question_is_answered_once_in_a_round(job, name, what):
    """Under another model a second answer would tell more of the same data."""
    site, why = asking(job, name), f"the server asks for the {what} of round 1 again"
    again = question(what, state=lambda process: twice(first_state(process)))
    refused(site, [question(what), again], why=why)
    refused(site, [question(what, 2)], [question(what, 1)], why=why)


def asking(job, name):
    """A job whose clients are selected so, or which has that normalisation."""
    if name in {"data-share", "afl", "fedprof"}:
        return job(f"selection.name={name}", "selection.fraction=0.6")
    if name == "fedbn, mean":
        return job("algorithm.name=fedbn", "sites.scores=mean")
    return job(f"algorithm.name={name}")


def test_scores_of_a_round_that_never_was_are_not_given(job):
    """A client has no model of its own from it."""
    answers, _, how = asked(job("algorithm.name=fedbn"), [question(SCORE_VALUE, 2, since=2)])
    assert answers == [Frame.LEAVE]
    assert "holds nothing of round 2" in str(how)


@pytest.mark.parametrize("unit", [5e-324, 1e308])
def test_a_unit_that_no_profile_has_ends_no_client(job, unit):
    site = job("selection.name=fedprof", "selection.fraction=0.6")
    answers, _, how = asked(site, [question(PROFILE, unit=unit), question(PROFILE, 2)])
    assert answers[1] is Frame.MESSAGE
    assert not isinstance(how, Exception)

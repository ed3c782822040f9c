"""A client that says something else than is due loses its round, and nobody else does."""

import pytest
from liar import Liar
from over_loopback import NAMES, Consortium, Job, OnTask, incidents_of

from securefl.network.frames import Frame
from securefl.types import LOSS, SIZE

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
ANYTHING = dict.fromkeys(Frame, 10**7)
CAROL = "carol"


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


def only_to(frame):
    """Says it to this frame, and nothing to others."""

    def wrap(says):
        return lambda liar, received: says(liar) if received.frame is frame else []

    return wrap


to_round, to_question = only_to(Frame.ROUND), only_to(Frame.QUESTION)
DONE = Frame.DONE, b""
GARBAGE = Frame.MESSAGE, b"\xff" * 300
HUGE = Frame.MESSAGE, bytes(10**6)
OTHER, NOTHING = "carol: sent another message", "not a SecureFL message"
FEDTAN = ("algorithm.name=fedtan",)
FEDAVG = ("algorithm.name=fedavg",)
AFL = ("selection.name=afl", "selection.fraction=1.0")


def of_sum(liar, number):
    return liar.plan.sums[number]


def unscored(liar, received):
    """Takes part, and then gives no score of its model."""
    if received.frame is Frame.QUESTION:
        return [DONE]
    return liar.update() if received.frame is Frame.ROUND else []


LIES = {
    "done where a sum is due": (FEDTAN, to_round(lambda liar: [DONE]), OTHER),
    "an update where a sum is due": (FEDTAN, to_round(lambda liar: liar.update()), OTHER),
    "a sum before its turn": (
        FEDTAN,
        to_round(lambda liar: [liar.message(of_sum(liar, 1))]),
        OTHER,
    ),
    "an answer where a sum is due": (FEDTAN, to_round(lambda liar: [liar.number(LOSS)]), OTHER),
    "a sum under another model": (
        FEDTAN,
        to_round(lambda liar: [liar.message(of_sum(liar, 0), state="ab" * 32)]),
        "carol: message of state 'abab",
    ),
    "done where an update is due": (FEDAVG, to_round(lambda liar: [DONE]), OTHER),
    "half an update": (
        FEDAVG,
        to_round(lambda liar: [liar.update()[0], DONE]),
        NOTHING,
    ),
    "half an update twice": (
        FEDAVG,
        to_round(lambda liar: liar.update()[:1] * 2),
        "carol: MESSAGE of",
    ),
    "an update from its end": (FEDAVG, to_round(lambda liar: liar.update()[::-1]), OTHER),
    "an answer where an update is due": (FEDAVG, to_round(lambda liar: [liar.number(SIZE)]), OTHER),
    "garbage": (FEDAVG, to_round(lambda liar: [GARBAGE]), OTHER),
    "more than fits": (FEDAVG, to_round(lambda liar: [HUGE]), "MESSAGE of 1000000 bytes, at most"),
    "a frame of the server's": (FEDAVG, to_round(lambda liar: [(Frame.COUNTED, b"")]), "of kind 7"),
    "a message before it is asked": (
        FEDAVG,
        only_to(Frame.WELCOME)(lambda liar: [liar.number(SIZE)]),
        OTHER,
    ),
    "that it leaves": (
        FEDAVG,
        to_round(lambda liar: [(Frame.LEAVE, b'{"reason": "\\u001b[31m"}')]),
        "carol: leaves the round: \\u001b[31m",
    ),
    "an update where an answer is due": (
        AFL,
        to_question(lambda liar: liar.update()[:1]),
        "MESSAGE of",
    ),
    "done where an answer is due": (AFL, to_question(lambda liar: [DONE]), NOTHING),
    "another answer": (
        AFL,
        to_question(lambda liar: [liar.number("score/loss")]),
        "expected 'selection/loss'",
    ),
    "an answer out of range": (
        AFL,
        to_question(lambda liar: [liar.number(LOSS, float("nan"))]),
        "carol: selection/loss must be a number from",
    ),
    "no score where one is due": (("algorithm.name=fedbn",), unscored, NOTHING),
}
"""Settings, what carol says, and why she is out."""


def run(consortium, folder, settings, says):
    """The record of a run in which carol says that."""
    job = Job(consortium, folder, (*settings, "run.reproducible=false"))
    loop = OnTask(job)
    loop.clients[CAROL] = Liar(job.party(CAROL), job.bundle("client"), says)
    record = loop.run()
    assert len(record.metrics) == 2
    others = {name: loop.ended[name] for name in NAMES if name != CAROL}
    assert others == dict.fromkeys(others)
    return record


@pytest.mark.parametrize("lie", LIES)
def test_who_says_another_thing_than_is_due_loses_the_round_alone(consortium, tmp_path, lie):
    """And the others' run goes on to its end."""
    settings, says, reason = LIES[lie]
    record = run(consortium, tmp_path, settings, says)
    lost = () if says is unscored else (CAROL,)  # a missing score takes nothing from the update
    assert record.metrics[0].dropped == lost
    assert {name for m in record.metrics for name in m.dropped} == set(lost)
    assert reason in incidents_of(tmp_path / "run").splitlines()[0]


def replayed(liar):
    """An update in the first round, and the same bytes in the second."""
    if not liar.sent:
        return liar.update()
    return [(Frame.MESSAGE, message) for message in liar.sent]


def doubled(liar):
    """One update more than is due."""
    return liar.update() * 2


@pytest.mark.parametrize("says", [replayed, doubled])
def test_an_update_counts_in_its_round_alone(consortium, tmp_path, says):
    record = run(consortium, tmp_path, FEDAVG, to_round(says))
    assert [m.dropped for m in record.metrics] == [(), (CAROL,)]
    assert "carol: message of round 1, expected 2" in incidents_of(tmp_path / "run")

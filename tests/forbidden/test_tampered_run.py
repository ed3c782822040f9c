"""Whole runs in which what some clients send is changed on its way: the others go on, or all end.

Also in the middle of FedTAN's passes, where every other client waits for the one that is refused.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from on_the_wire import nothing_is_handed_over
from torch import nn

import securefl
from securefl.errors import TooFewContributions, TotalRefused
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.sums import ONE_TIME, Sender
from securefl.federation import pausable
from securefl.federation.client import Client
from securefl.federation.incidents import SITS_OUT
from securefl.federation.opening_history import fewest
from securefl.types import MessageSpec

pytestmark = pytest.mark.usefixtures("no_hang", "quick")
FULL = pytest.mark.full

HONEST_CONTRIBUTE = Client.contribute
FAULTY = "client-5"  # the last one: without it the others are a run of four
FEDTAN_MESSAGES = ["1/mean", "1/variance", "1/gradient"]


def truncated(message, **_):
    return message[:-1]


def cut_to_nothing(message, **_):
    return b""


def cut_in_the_header(message, **_):
    return message[:50]


def oversized(message, **_):
    return message + b"\x00"


def far_oversized(message, **_):
    return message + bytes(1_000_000)


def flipped_in(share):
    def flipped(message, **_):
        position = int(share * (len(message) - 1))
        return message[:position] + bytes([message[position] ^ 4]) + message[position + 1 :]

    return flipped


def other_round(contribute, round_number, **_):
    return contribute(round_number=round_number + 1)


def other_run(contribute, **_):
    return contribute(run="00" * 32)


def other_name(contribute, spec, **_):
    return contribute(spec=MessageSpec(spec.name + "x", spec.kind, spec.n_values))


def random_bytes(message, **_):
    return np.random.default_rng(len(message)).bytes(len(message))


TAMPER = {
    "truncated": truncated,
    "cut to nothing": cut_to_nothing,
    "cut in the header": cut_in_the_header,
    "oversized": oversized,
    "far oversized": far_oversized,
    "flipped in the first byte": flipped_in(0),
    "flipped in the last byte": flipped_in(1),
    "flipped in the middle": flipped_in(0.5),
    "of another round": other_round,
    "of another run": other_run,
    "of another name": other_name,
    "random": random_bytes,
}


@pytest.fixture
def tamper(monkeypatch):
    """Changes what some clients send, all of it or in messages of one name."""

    def install(change, names=(FAULTY,), only=None, rounds=range(1, 100)):
        def contribute(self, run, round_number, spec, tensors, times=1, state="", *, model=""):
            def again(run=run, round_number=round_number, spec=spec):
                return HONEST_CONTRIBUTE(
                    self, run, round_number, spec, tensors, times, state, model=model
                )

            message = again()
            if self.name in names and only in {None, spec.name} and round_number in rounds:
                return change(
                    message=message,
                    contribute=again,
                    client=self,
                    round_number=round_number,
                    spec=spec,
                )
            return message

        nothing_is_handed_over(monkeypatch)
        monkeypatch.setattr(Client, "contribute", contribute)

    return install


@pytest.fixture(autouse=True)
def _no_thread_blocked():
    """After each test no client's thread stands in the engine, waiting for a turn."""
    yield
    deadline = time.monotonic() + 5
    while standing_in_turns() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert standing_in_turns() == []


def standing_in_turns():
    """Names of the other threads whose stacks go through the engine's turns."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = {
        ident: frame
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    }
    standing = []
    for ident, bottom in stacks.items():
        frame = bottom
        while frame:
            if frame.f_code.co_filename == pausable.__file__:
                standing.append(names.get(ident, str(ident)))
                break
            frame = frame.f_back
    return standing


def names(*numbers):
    return tuple(f"client-{number}" for number in numbers)


def assert_dropped(result, *clients, rounds=(1, 2)):
    """Each round's metrics name the dropped clients, each with an incident; no opening does."""
    for metrics in result.metrics:
        assert metrics.dropped == (clients if metrics.round in rounds else ())
    found = {(incident.round, incident.client) for incident in result.incidents}
    assert found == {(number, client) for number in rounds for client in clients}
    assert all(incident.reason and incident.name for incident in result.incidents)
    assert not any(opening.refused for opening in result.openings)
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())


def assert_same_model(result, other, **tolerance):
    for name, value in other.model.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], value, **tolerance)


@pytest.fixture(scope="module")
def run_of_four(tiny_config, tiny_task):
    """The run without the faulty client, made once for each algorithm and encryption."""

    def run(algorithm, encrypt):
        config = tiny_config(algorithm={"name": algorithm}, exchange={"encrypt": encrypt})
        return securefl.run(config, tiny_task(4))

    return cache(run)


@pytest.mark.parametrize("kind", TAMPER)
@pytest.mark.parametrize(
    ("algorithm", "encrypt"), [("fedtan", "statistics"), ("fedavg", "model"), ("fedavg", "none")]
)
def test_the_others_train_the_model_that_they_would_have_trained_alone(
    tiny_config, tiny_task, tamper, run_of_four, kind, algorithm, encrypt
):
    """One client's tampered messages cost that client alone: the model is that of a run of four."""
    config = tiny_config(algorithm={"name": algorithm}, exchange={"encrypt": encrypt})
    alone = run_of_four(algorithm, encrypt)
    tamper(TAMPER[kind])
    result = securefl.run(config, tiny_task(5))
    assert_dropped(result, FAULTY)
    assert all(set(opening.signers) == set(names(1, 2, 3, 4)) for opening in result.openings)
    assert all(opening.n_clients == 4 for opening in result.openings)
    assert bool(result.openings) == (encrypt != "none")
    exact = {"rtol": 0, "atol": 0} if encrypt == "none" else {"rtol": 0, "atol": 1e-5}
    assert_same_model(result, alone, **exact)


@pytest.fixture
def sealing_under(foreign_key_set, tamper):
    """A client seals for another authority, or under keys that its card has nothing of."""

    def install(says):
        tamper(foreign(foreign_key_set, says))

    return install


class Lying(OneTimeSealer):
    """Its keys follow from a secret that is on no card."""

    def seal(self, values, weight, about, sender):
        return super().seal(values, weight, about, Sender(sender.name, bytes(32)))


def foreign(foreign_key_set, says):
    def sealed(message, client, contribute, spec, **_):
        ours, theirs = client.sealers[spec.kind], OneTimeSealer(foreign_key_set.public)
        if ours.form != ONE_TIME:
            return message
        if says == "a lie":
            theirs = Lying(ours.keys)
        sealers = client.sealers
        client.sealers = dict.fromkeys(sealers, theirs)
        try:
            return contribute()
        finally:
            client.sealers = sealers

    return sealed


def test_a_client_with_a_foreign_key(tiny_config, tiny_task, sealing_under):
    """Sealed under another key, a message is refused by its key id."""
    sealing_under("the truth")
    result = securefl.run(tiny_config(), tiny_task())
    assert_dropped(result, FAULTY)
    assert all("sealed under key" in incident.reason for incident in result.incidents)


def test_a_client_that_spoils_totals_is_found(tiny_config, tiny_task, sealing_under):
    """By who is left out where totals open; the model stays in a round whose total is refused."""
    sealing_under("a lie")
    result = securefl.run(tiny_config(run={"rounds": 8}), tiny_task())
    everybody = set(names(1, 2, 3, 4, 5))
    took_part = {each.round: set(each.present) for each in result.participants}
    refused = {opening.round for opening in result.openings if opening.refused}
    assert refused == {number for number, present in took_part.items() if FAULTY in present}
    assert took_part[1] == everybody
    assert all(len(present) >= 3 for present in took_part.values())
    losses = [result.metrics[number - 1].loss for number in (1, *sorted(refused))]
    assert losses[0] == losses[1] == losses[2]  # before any round was trained
    guilty = [i for i in result.incidents if "left out from now on" in i.reason]
    assert {incident.client for incident in guilty} == {FAULTY}
    (found_in,) = {incident.round for incident in guilty}
    assert found_in == max(refused) < 8
    last = [set(opening.signers) for opening in result.openings if opening.round == 8]
    assert last == [everybody - {FAULTY}] * len(last) != []
    assert not result.metrics[-1].dropped


def test_a_spoiled_total_ends_a_run_of_too_few_to_leave_one_out(
    tiny_config, tiny_task, sealing_under
):
    """Where a total needs all five, nobody can find out whose fault it is."""
    sealing_under("a lie")
    spoiled = r"does not count its clients.*client-1.*client-5 has spoiled"
    with pytest.raises(TotalRefused, match=spoiled):
        securefl.run(tiny_config(exchange={"min_clients": 5}), tiny_task())


@pytest.mark.parametrize("only", [*FEDTAN_MESSAGES, "update/parameters", "update/statistics"])
@pytest.mark.parametrize(
    ("encrypt", "position"), [("model", 1), ("model", 3), ("model", 5), ("none", 3)]
)
def test_a_client_may_fail_at_any_message_of_fedtan(
    tiny_config, tiny_task, tamper, only, encrypt, position
):
    """Forward, backward or at the end, in whatever turn.

    Before the round's first sealed total, and in the clear, the round goes on without it. After
    that, the difference of two totals could show its values: the round passes, and all are there
    in the next.
    """
    faulty = names(position)
    tamper(truncated, faulty, only, rounds={2})
    result = securefl.run(
        tiny_config(run={"rounds": 3}, exchange={"encrypt": encrypt}), tiny_task()
    )
    passes = encrypt == "model" and only != FEDTAN_MESSAGES[0]
    assert_dropped(result, *(names(1, 2, 3, 4, 5) if passes else faulty), rounds=(2,))
    reasons = {incident.client: incident.reason for incident in result.incidents}
    others = [reason for client, reason in reasons.items() if client not in faulty]
    assert all(f"the round passes: {faulty[0]}: not in each total" in why for why in others)
    assert (result.metrics[1].loss == result.metrics[0].loss) == passes
    assert result.metrics[2].loss != result.metrics[1].loss
    in_order = [*FEDTAN_MESSAGES, "update/parameters", "update/statistics"]
    if only in FEDTAN_MESSAGES:
        opened = in_order[: in_order.index(only)] if passes else in_order
    else:
        opened = FEDTAN_MESSAGES
    in_clear = encrypt == "none"
    in_2 = [opening for opening in result.openings if opening.round == 2]
    assert [opening.name for opening in in_2] == ([] if in_clear else opened)
    everybody = set(names(1, 2, 3, 4, 5))
    assert all(set(o.signers) == everybody - set(() if passes else faulty) for o in in_2)
    assert all(len(o.signers) == 5 for o in result.openings if o.round != 2)


@pytest.mark.parametrize("algorithm", [{"name": "forward-only"}, {"moments": "fused"}])
def test_the_variants_of_fedtan_go_on_too(tiny_config, tiny_task, tamper, algorithm):
    """Forward-only and fused moments survive a tampered client in the same way."""
    tamper(truncated)
    assert_dropped(securefl.run(tiny_config(algorithm=algorithm), tiny_task()), FAULTY)


def test_clients_may_fail_one_after_the_other(tiny_config, tiny_task, tamper):
    """One client is lost at the mean and another backward, in each round: the model moves.

    The second has totals opened that the next ones must not differ from by few, so each round
    without it leaves others out, too, and the first, which fails before any total, costs one more.
    Both sit out longer and longer.
    """

    def by_turns(message, client, spec, **_):
        due = {"client-2": "1/mean", "client-4": "1/gradient"}[client.name]
        return message[:-1] if spec.name == due else message

    tamper(by_turns, names(2, 4))
    result = securefl.run(tiny_config(run={"rounds": 9}), tiny_task(8))
    losses, moved = [metrics.loss for metrics in result.metrics], set()
    for before, after in zip(result.metrics, result.metrics[1:], strict=False):
        if after.loss != before.loss:
            moved.add(after.round)
    assert moved == {6, 9}, losses
    out = [
        i for i in result.incidents if i.name == SITS_OUT and "rounds have lately lost" in i.reason
    ]
    assert {(i.round, i.client) for i in out} >= {(3, "client-4"), (6, "client-2")}
    lists = [
        {frozenset(o.signers) for o in result.openings if o.round in rounds}
        for rounds in (range(1, 7), range(7, 10))
    ]
    assert all(len(fewest(at_one_model)) >= 3 for at_one_model in lists)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan", "forward-only"])
@pytest.mark.parametrize("encrypt", ["statistics", "model"])
def test_too_many_tampered_clients_stop_the_run(
    tiny_config, tiny_task, tamper, tmp_path, algorithm, encrypt
):
    """Two of five may be lost, not three: the authority refuses, and the folder's log says so."""
    config = tiny_config(algorithm={"name": algorithm}, exchange={"encrypt": encrypt})
    tamper(truncated, names(1, 3))
    assert_dropped(securefl.run(config, tiny_task()), *names(1, 3))
    tamper(truncated, names(1, 3, 4), rounds={2})
    with pytest.raises(
        TooFewContributions, match=r"2 contributions.*Refused before: client-\d: payload of"
    ):
        securefl.run(config, tiny_task(), out=tmp_path / "run")
    openings = [
        json.loads(line) for line in (tmp_path / "run/openings.jsonl").read_text().splitlines()
    ]
    assert "at least 3 (exchange.min_clients" in openings[-1]["refused"]
    assert not any(opening["refused"] for opening in openings[:-1])
    metrics = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in metrics] == [1]


@pytest.mark.parametrize("only", FEDTAN_MESSAGES)
def test_too_few_are_left_in_the_middle_of_fedtan(tiny_config, tiny_task, tamper, only):
    """Where the others wait for a sum that will never be opened, all of them are sent home."""
    tamper(truncated, names(2, 3, 5), only)
    with pytest.raises(TooFewContributions, match=f"'{only}': 2 contributions"):
        securefl.run(tiny_config(), tiny_task())


def test_min_clients_may_ask_for_all(tiny_config, tiny_task, tamper):
    """Where the authority wants five clients, one tampered message is one too many."""
    tamper(truncated)
    with pytest.raises(TooFewContributions, match="4 contributions"):
        securefl.run(tiny_config(exchange={"min_clients": 5}), tiny_task())


@pytest.mark.parametrize("encrypt", ["none", "statistics"])
@pytest.mark.parametrize("only", [None, *FEDTAN_MESSAGES])
def test_a_run_without_any_usable_message_ends(tiny_config, tiny_task, tamper, encrypt, only):
    """All clients tampered with: an error that shows the first refusal and blames no training."""
    tamper(truncated, names(1, 2, 3, 4, 5), only)
    with pytest.raises(TooFewContributions, match="payload of") as caught:
        securefl.run(tiny_config(exchange={"encrypt": encrypt}), tiny_task())
    assert "diverged" not in str(caught.value)


def test_an_incident_names_the_message_that_was_refused(tiny_config, tiny_task, tamper):
    """Of two messages that travel together it is the refused one."""
    tamper(truncated, only="update/statistics")
    result = securefl.run(tiny_config(algorithm={"name": "fedavg"}), tiny_task())
    assert {incident.name for incident in result.incidents} == {"update/statistics"}


@pytest.mark.parametrize("only", ["update/parameters", "update/statistics"])
def test_a_contribution_counts_as_a_whole_or_not_at_all(tiny_config, tiny_task, tamper, only):
    """A client of which one message is refused is in none of the totals that travel with it."""
    tamper(truncated, only=only)
    config = tiny_config(algorithm={"name": "fedavg"}, exchange={"encrypt": "model"})
    result = securefl.run(config, tiny_task())
    assert_dropped(result, FAULTY)
    assert {opening.n_clients for opening in result.openings} == {4}


def test_a_client_that_has_left_cannot_ask_again():
    """A client's code that catches everything, or asks while it cleans up, keeps nobody waiting."""

    def work(ask):
        try:
            ask("first")
        finally:
            ask("second")

    with ThreadPoolExecutor(1, "client") as pool:
        thread = pausable.Pausable(pool, work)
        assert thread.resume() == pausable.Waiting("first")
        thread.dismiss()
        leaving = threading.Thread(target=thread.wait)
        leaving.start()
        leaving.join(timeout=1)
        waits = leaving.is_alive()
        thread._go.release()  # lets it go where it does wait
        leaving.join()
    assert not waits


def client_threads():
    gc.collect()
    return {thread for thread in threading.enumerate() if thread.name.startswith("client")}


def kept_client_threads():
    """The engine's objects for one client's round that something still refers to."""
    gc.collect()
    return sum(type(thing) is pausable.Pausable for thing in gc.get_objects())


def two_layers(tiny_task):
    """A model with two BN layers, so that a client can fail while a graph of the first is alive."""
    norms = [nn.BatchNorm1d(6), nn.BatchNorm1d(6)]
    return tiny_task(
        model=nn.Sequential(nn.Linear(4, 6), norms[0], nn.Linear(6, 6), norms[1], nn.Linear(6, 3))
    )


@pytest.mark.parametrize(
    "only",
    [
        None,
        "1/mean",
        *(pytest.param(n, marks=FULL) for n in ("1/variance", "1/gradient", "3/mean")),
    ],
)
def test_a_client_that_left_leaves_nothing_behind(tiny_config, tiny_task, tamper, only):
    """After a run its threads end and its clients' graphs are freed, wherever one has left."""
    threads_before, kept_before = client_threads(), kept_client_threads()
    tamper(truncated, only=only)
    securefl.run(tiny_config(), two_layers(tiny_task))
    assert kept_client_threads() == kept_before
    deadline = time.monotonic() + 5
    while (left := client_threads() - threads_before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == set()


@pytest.mark.parametrize(("encrypt", "enough"), [("statistics", False), ("none", True)])
def test_min_clients_holds_for_sums_in_the_clear_of_a_run_that_encrypts(
    tiny_config, tiny_task, tamper, encrypt, enough
):
    """FixBN's second stage seals nothing any more, and still nobody is told a total of two."""
    algorithm = {"name": "fixbn", "switch": 1}
    config = tiny_config(algorithm=algorithm, exchange={"encrypt": encrypt})
    tamper(truncated, names(1, 3, 4), rounds={2})
    if enough:
        assert securefl.run(config, tiny_task()).metrics[-1].dropped == names(1, 3, 4)
    else:
        with pytest.raises(TooFewContributions, match="2 contributions, at least 3"):
            securefl.run(config, tiny_task())

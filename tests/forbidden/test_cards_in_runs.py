"""A client without a card, with a bad one or with a second one is left out, and the run goes on."""

from __future__ import annotations

import pytest
import torch
from over_loopback import NAMES, Consortium, Job, model_of

import securefl
from securefl.errors import TooFewContributions
from securefl.exchange.sums import Sealed, Sender
from securefl.federation.cards import Cards
from securefl.federation.client import Client
from securefl.federation.incidents import Incident
from securefl.federation.ledger import AUTHORITY, SERVER
from securefl.federation.message import CARD, card_expected
from securefl.federation.opening import Opening
from securefl.runs.folder_files import INCIDENTS, OPENINGS
from securefl.runs.folder_reader import read_rows, read_run
from securefl.settings.tables import ExchangeTable
from securefl.simulation.in_memory import InMemory as Engine

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
CAROL, ROUNDS = "carol", 3
OTHERS = tuple(name for name in NAMES if name != CAROL)
PLAIN = ExchangeTable(encrypt=())
SEALED = (
    "exchange.encrypt=model",
    "algorithm.name=fedtan",
    f"run.rounds={ROUNDS}",
    "run.reproducible=false",
    "train.batch_size=64",
)
"""Of whole batches, so that nothing is drawn."""


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def job(consortium, tmp_path):
    return Job(consortium, tmp_path, SEALED)


def signed(client, run, cards):
    return client._signed(card_expected(run, client.card_keys), Sealed(cards))


def other(client):
    """A sender of another secret under this client's name."""
    return Sender(client.name, b"another secret of one client...!")


def rubbish(client, run):
    return signed(client, run, bytes(client.card_keys.card_bytes))


def of_another_session(client, run):
    return signed(client, run, client.card_keys.cards("cd" * 32, other(client)))


def of_another_name(client, run):
    return signed(client, run, client.card_keys.cards(run, Sender("dora", b"s" * 32)))


BAD = {
    "none": (lambda client, run: b"", "not a SecureFL message"),
    "rubbish": (rubbish, "does not open"),
    "of another session": (of_another_session, "does not open"),
    "of another name": (of_another_name, "does not open"),
    "too short": (lambda client, run: signed(client, run, b"short"), "expected exactly"),
}
"""What carol gives where her card is due, and why it is refused."""


def gives(monkeypatch, message, rounds=range(1, ROUNDS + 1)):
    """Have carol answer so where she is asked for a card, in these of her answers."""
    honest, asked = Client.send_cards, []

    def send(client, run):
        if client.name != CAROL:
            return honest(client, run)
        asked.append(run)
        return message(client, run) if len(asked) in rounds else honest(client, run)

    monkeypatch.setattr(Client, "send_cards", send)
    return asked


def incidents(folder):
    return read_rows(folder / INCIDENTS, Incident)


def counted(folder):
    """Whose updates the server was sent, by round."""
    updates = [e for e in read_run(folder).ledger if e.name == "update/parameters"]
    return [
        {e.sender for e in updates if e.round == number and e.receiver == SERVER} - {AUTHORITY}
        for number in range(1, ROUNDS + 1)
    ]


def without_carol(job, monkeypatch):
    """The model of a run in the clear of the same settings from which carol is away."""
    with monkeypatch.context() as patch:
        there = Engine.present
        patch.setattr(Engine, "present", lambda *about: [n for n in there(*about) if n != CAROL])
        return securefl.run(job.config.model_copy(update={"exchange": PLAIN}), job.task).model


def same_to_the_rounding(found, wanted):
    for name, value in wanted.state_dict().items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize("carried", [Job.simulated, Job.over_loopback], ids=["here", "gRPC"])
@pytest.mark.parametrize("bad", BAD)
def test_a_client_without_a_good_card_is_left_out(bad, carried, job, monkeypatch):
    """It is asked again in each round, with an incident; the model is the others' alone."""
    message, reason = BAD[bad]
    asked = gives(monkeypatch, message)
    folder = carried(job)
    found = incidents(folder)
    assert [(i.round, i.name, i.client) for i in found] == [
        (number, CARD, CAROL) for number in range(1, ROUNDS + 1)
    ]
    assert all(reason in i.reason for i in found)
    assert len(asked) == ROUNDS
    assert counted(folder) == [{*OTHERS}] * ROUNDS
    same_to_the_rounding(model_of(folder), without_carol(job, monkeypatch))


def test_a_client_whose_card_comes_late_takes_part_from_then_on(job, monkeypatch):
    """Its first answer is rubbish, and its second its card."""
    gives(monkeypatch, rubbish, rounds=[1])
    folder = job.simulated()
    assert [(i.round, i.client) for i in incidents(folder)] == [(1, CAROL)]
    assert counted(folder) == [{*OTHERS}, {*NAMES}, {*NAMES}]


@pytest.mark.parametrize("carried", [Job.simulated, Job.over_loopback], ids=["here", "gRPC"])
def test_a_second_card_is_an_incident_and_the_first_one_holds(carried, job, monkeypatch):
    """The server has forgotten all cards in round 2, and carol gives one with another secret."""
    honest = Cards.holders

    def holders(cards, state, clients):
        if state.round == 1:
            cards._known.clear()
        return honest(cards, state, clients)

    def second(client, run):
        return signed(client, run, client.card_keys.cards(run, other(client)))

    monkeypatch.setattr(Cards, "holders", holders)
    asked = gives(monkeypatch, second, rounds=[2])
    folder = carried(job)
    (found,) = incidents(folder)
    assert (found.round, found.name, found.client) == (2, CARD, CAROL)
    assert found.reason == "carol: a second card, with another secret"
    assert len(asked) == 3  # in the third round for the first card again
    assert counted(folder) == [{*NAMES}, {*OTHERS}, {*NAMES}]


def test_with_too_few_cards_the_run_ends_and_says_why(job, monkeypatch):
    """Two of five have one: the authority refuses the first total of theirs."""
    honest = Client.send_cards
    monkeypatch.setattr(
        Client,
        "send_cards",
        lambda client, run: b"" if client.name in NAMES[2:] else honest(client, run),
    )
    with pytest.raises(TooFewContributions):
        job.simulated()
    folder = job.folder / "alone"
    assert {i.client for i in incidents(folder)} >= {*NAMES[2:]}
    (asked,) = read_rows(folder / OPENINGS, Opening)
    assert asked.n_clients == 0
    assert "2 contributions, at least 3" in asked.refused

"""Officers who each check for themselves: what a server might have them answer, and is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reachability import reachable

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.one_time import KeySum
from securefl.crypto.params import SUMS
from securefl.errors import (
    Duplicate,
    KeyMismatch,
    MessageRefused,
    OpeningRefused,
    OtherModel,
    PeerError,
    SenderRevoked,
    SignatureRefused,
    TooFewContributions,
    TotalRefused,
)
from securefl.exchange.answers import Combiner
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.exchange.policy import OpeningRule, Policy
from securefl.exchange.sums import Sealed, Sender
from securefl.federation.authority import CheckingOfficer
from securefl.federation.message import Roster, card_expected, encode_message, header_for
from securefl.federation.officers import Officers, OfficersHere
from securefl.federation.opening_history import OpeningHistory
from securefl.federation.total import Terms

COARSE = Policy(rules=(OpeningRule("*", precision_bits=8),))


class Board:
    """Three officers of whom two are needed, of one federation, and who asks them."""

    def __init__(self, federation, policy=COARSE):
        self.federation = federation
        self.logs, self.rows, self.said, self.openings = [], [], [], []
        self.officers = [self._officer(one, policy) for one in federation.keys.officers()]
        self.opener = Officers(
            federation.keys.public,
            OfficersHere(self.officers),
            self.openings.append,
            self.said.append,
        )
        cards = {n: c.send_cards(federation.run) for n, c in federation.clients.items()}
        assert self.opener.take_cards(federation.run, cards) == {}

    def _officer(self, officer, policy):
        log, rows = [], []
        self.logs.append(log)
        self.rows.append(rows)
        history = OpeningHistory("5e" * 32, rows.append)
        return CheckingOfficer(officer, self.federation.roster, policy, log.append, history)

    @property
    def reasons(self):
        return [incident.reason for incident in self.said]


@pytest.fixture(scope="module")
def quorate_keys():
    return KeySet.ephemeral(Quorum(2, 3))


@pytest.fixture
def federation(federate, quorate_keys):
    return federate(quorate_keys)


@pytest.fixture
def board(federation):
    return Board(federation)


def test_officers_open_the_total_at_full_precision(federation, board):
    """The policy's 8 bits are not enforced: whoever asks has the sum of keys; the page says so."""
    opened = board.opener.open(federation.collect().request())
    assert opened.n_clients == 4
    np.testing.assert_allclose(opened.values, federation.mean(), rtol=0, atol=1e-7)
    coarse = federation.authority_of(COARSE).open(federation.collect(round_number=2).request())
    assert np.abs(coarse.values - federation.mean()).max() > 1e-5
    assert board.said == []
    (line,) = board.openings
    assert (line.name, line.n_clients, line.refused) == ("layer/mean", 4, "")


def test_each_officer_logs_its_own_answer_and_keeps_its_own_history(federation, board):
    """With the names that it was for, and rows that outlive the process."""
    board.opener.open(federation.collect().request())
    for log, rows in zip(board.logs, board.rows, strict=True):
        ((line,), (claimed, released)) = log, rows
        assert line.signers == tuple(federation.clients)
        assert line.refused == ""
        assert line.key_id == federation.keys.public.key_id
        assert claimed == (federation.run, 1, "layer/mean")
        assert [name for name, *_ in released[4]] == sorted(federation.clients)


def too_few(federation):
    return federation.collect("client-1", "client-2").request()


def doubled(federation):
    request = federation.collect().request()
    return replace(request, signed=(*request.signed[:3], request.signed[0]))


def forged(federation):
    request = federation.collect().request()
    first, *others = request.signed
    broken = replace(first, signature=bytes(64))
    return replace(request, signed=(broken, *others))


def other_nonce(federation):
    """The header's nonce is exchanged for another client's: the key of a message of its choice."""
    request = federation.collect().request()
    first, second, *others = request.signed
    header = first.header.model_copy(update={"nonce": second.header.nonce})
    changed = replace(first, header=header, signed=header.model_dump_json().encode())
    return replace(request, signed=(changed, second, *others))


def other_state(federation):
    """One client was sent another model than the rest, which the server hides."""
    names, told = list(federation.clients), ("aa" * 32, "bb" * 32)
    terms = dict.fromkeys(names, Terms())
    request = federation.collect(*names[:3], told=told[0], terms=terms).request()
    lonely = federation.collect(names[3], told=told[1], terms=terms)
    return replace(request, signed=(*request.signed, *lonely.request().signed))


def other_key(federation):
    request = federation.collect().request()
    return replace(request, expected=replace(request.expected, key_id="cd" * 32))


def other_round(federation):
    """Headers of the first round, listed as those of the second."""
    request = federation.collect().request()
    return replace(request, expected=replace(request.expected, round=2))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (too_few, TooFewContributions),
        (doubled, Duplicate),
        (forged, SignatureRefused),
        (other_nonce, SignatureRefused),
        (other_state, OtherModel),
        (other_key, KeyMismatch),
        (other_round, MessageRefused),
    ],
    ids=lambda of: of.__name__,
)
def test_every_officer_refuses_by_itself(federation, board, make, error):
    """No officer's word is another's, nor the server's; the refusal is logged, and no key added."""
    request = make(federation)
    for officer, log in zip(board.officers, board.logs, strict=True):
        with pytest.raises(error):
            officer.key_sums(request)
        (line,) = log
        assert line.refused
        assert line.n_clients == 0


def test_every_officer_refuses_a_client_that_was_revoked(federation, board):
    """By its own roster."""
    keys = {name: c.identity for name, c in federation.clients.items() if name != "client-4"}
    request = federation.collect().request()
    for officer in board.officers:
        officer.roster = Roster(keys, revoked=frozenset({"client-4"}))
        with pytest.raises(SenderRevoked):
            officer.key_sums(request)


def test_two_lists_fail_by_each_officers_own_history(federation, board):
    """Whoever is asked first has answered; the other list gets no second answer, nor a quorum."""
    whole = federation.collect().request()
    part = federation.collect("client-1", "client-2", "client-3").request()
    one, two, three = board.officers
    assert one.key_sums(whole).keys() == {0, 1}
    assert two.key_sums(whole).keys() == {0, 2}
    for officer in (one, two):
        with pytest.raises(OpeningRefused, match="once already"):
            officer.key_sums(part)
    three.key_sums(part)
    with pytest.raises(OpeningRefused, match="0 of 3 officers answer, and 2 are needed"):
        board.opener.open(part)


def test_a_list_is_refused_after_an_officers_restart(federation, board):
    """And any other of another run with the same settings: some officer may not have seen it."""
    whole = federation.collect().request()
    part = federation.collect("client-1", "client-2", "client-3").request()
    rows = board.rows[0]
    board.officers[0].key_sums(whole)
    again = OpeningHistory("5e" * 32)
    again.take_up(rows)
    anew = CheckingOfficer(
        board.officers[0].opener, federation.roster, COARSE, board.logs[0].append, again
    )
    with pytest.raises(OpeningRefused, match="once already"):
        anew.key_sums(part)
    other = replace(federation, run="cd" * 32)
    anew.roster = other.roster
    cards = {name: client.send_cards(other.run) for name, client in other.clients.items()}
    assert anew.take_cards(other.run, cards) == {}
    with pytest.raises(OpeningRefused, match=r"of other clients.* 1 list at most may be opened"):
        anew.key_sums(other.collect("client-1", "client-2", "client-3").request())


def test_a_total_is_answered_once_also_where_officers_refuse(federation, board):
    """Who asked with too few names gets no second try with more."""
    with pytest.raises(TooFewContributions, match="2 contributions, at least 3"):
        board.opener.open(too_few(federation))
    with pytest.raises(OpeningRefused, match="once already"):
        board.opener.open(federation.collect().request())
    assert [line.n_clients for line in board.openings] == [0, 0]


@pytest.mark.parametrize("change", [{"sender": "client-2"}, {"run": "cd" * 32}], ids=str)
def test_every_officer_refuses_a_card_that_its_client_has_not_signed(federation, board, change):
    """The server cannot make one up, nor move one."""
    keys = federation.keys.public
    expected = card_expected(federation.run, keys)
    cards = keys.cards(federation.run, Sender("client-1", b"s" * 32))
    header = header_for(expected, "client-1", Sealed(cards)).model_copy(update=change)
    message = encode_message(header, cards, federation.clients["client-1"].signing_key)
    for officer in board.officers:
        assert officer.take_cards(federation.run, {"client-1": message}).keys() == {"client-1"}


class Instead:
    """An officer that answers a request in its own way."""

    def __init__(self, officer, answer):
        self._officer, self._answer = officer, answer

    def take_cards(self, run, cards):
        return self._officer.take_cards(run, cards)

    def key_sums(self, request):
        return self._answer(self._officer, request)


def lies(officer, request):
    answer = dict(officer.key_sums(request))
    group = next(iter(answer))
    changed = answer[group].coefficients.copy()
    changed[7] += 1
    return {**answer, group: KeySum(changed, SUMS)}


def is_away(_officer, _request):
    raise PeerError("does not answer")


def is_shy(_officer, _request):
    return {}


def refuses(_officer, _request):
    raise TooFewContributions("three are not enough")


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lies, "gave a wrong sum of keys for 'layer/mean'"),
        (is_away, "does not answer"),
        (is_shy, "has answered for other groups than its own"),
        (refuses, "refuses: three are not enough"),
    ],
    ids=lambda of: getattr(of, "__name__", ""),
)
def test_one_officer_of_three_stops_nothing_and_is_named(federation, board, number, answer, reason):
    """Once a round, whatever it does to how many totals."""
    board.officers[number] = Instead(board.officers[number], answer)
    board.opener.panel.officers[number] = board.officers[number]
    for name in ("layer/mean", "layer/variance"):
        spec = replace(federation.spec, name=name)
        assert board.opener.open(federation.collect(spec=spec).request()).n_clients == 4
    assert board.reasons == [f"officer {number + 1}: {reason}"]
    board.opener.be_ready_for(2, ())
    board.opener.open(federation.collect(round_number=2).request())
    assert len(board.reasons) == 2


def test_too_few_clients_are_no_officers_doing(federation, board):
    """Nobody is named for it, also where an officer is away; so a round may pass by the policy."""
    board.officers[0] = board.opener.panel.officers[0] = Instead(board.officers[0], is_away)
    with pytest.raises(TooFewContributions, match=r"^round 1, 'layer/mean': 2 contributions"):
        board.opener.open(too_few(federation))
    assert board.reasons == []


def test_two_liars_of_three_open_nothing(federation, board):
    """The total is refused: who lied cannot be told."""
    for number in (0, 1):
        board.opener.panel.officers[number] = Instead(board.officers[number], lies)
    with pytest.raises(TotalRefused):
        board.opener.open(federation.collect().request())
    assert "TotalRefused" not in board.openings[0].refused
    assert board.openings[0].n_clients == 0


def test_what_combines_answers_holds_no_secret(federation, board):
    """It reads totals by sums of keys, and reaches no officer but through the panel."""
    board.opener.open(federation.collect().request())
    secrets = (CardSecret, Sender, CheckingOfficer)
    panel, board.opener.panel = board.opener.panel, None
    assert not [thing for thing in reachable(board.opener) if isinstance(thing, secrets)]
    assert [thing for thing in reachable(panel) if isinstance(thing, CardSecret)]


def test_a_client_whose_card_leaves_too_few_officers_that_are_here_is_out():
    """One officer is away, one refuses: the client leaves the round, and not the run its end."""
    combiner, bad = Combiner(KeySet.ephemeral(Quorum(2, 3)).public), MessageRefused("is none")
    with pytest.raises(MessageRefused, match="is none"):
        combiner.note_refusals("run", "client-1", {1: bad}, away=[2])
    assert combiner.able("run") == [0, 1, 2]
    combiner.note_refusals("run", "client-1", {1: bad})
    assert combiner.able("run") == [0, 2]

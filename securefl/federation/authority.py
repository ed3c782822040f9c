"""The authority: opens totals, never one client's value, and logs every opening."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from securefl.errors import (
    Duplicate,
    KeyMismatch,
    MessageRefused,
    NotBlind,
    OpeningRefused,
    TotalRefused,
)
from securefl.exchange.base import Channel, OpenedSum
from securefl.exchange.blind import BlindTotal
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.opener import Opener
from securefl.exchange.policy import Policy, require_clients
from securefl.federation.message import Expected, Roster, card_expected, split_message
from securefl.federation.opening_history import OpeningHistory
from securefl.federation.server import SumRequest
from securefl.federation.total import RELEASED, total_bytes
from securefl.types import MessageSpec


@dataclass(frozen=True, slots=True)
class Opening:
    """Line of the authority's log: a total or scores that were asked for."""

    round: int
    name: str
    n_values: int
    signers: tuple[str, ...]
    n_clients: int
    """Number of clients counted inside the ciphertext; 0 where it was not opened."""
    refused: str = ""
    """Reason for a refusal; empty where it was opened."""
    key_id: str = ""
    """Id of the key that the messages name."""
    epoch: int = 0
    """Epoch of that key."""
    run: str = ""
    """Id of the session, which every signed header names."""


class Authority:
    """The authority over sums: it opens the totals that the policy allows, of several clients each.

    Opener, roster and policy are replaced where the key or the consortium changes.
    """

    def __init__(
        self,
        opener: Opener,
        roster: Roster,
        policy: Policy,
        log: Callable[[Opening], None],
        history: OpeningHistory | None = None,
    ) -> None:
        """Take the key and the rules.

        Args:
            opener: has the officers' answers, and clients' cards.
            roster: clients whose signatures count.
            policy: names, precision and number of totals that may be opened.
            log: writes an opening down, before its total is released.
            history: openings of earlier runs; None where there are none.
        """
        self.opener = opener
        self.roster = roster
        self.policy = policy
        self._log = log
        self._history = history or OpeningHistory()

    @property
    def card_keys(self) -> CardKeys:
        """See `engine.Opener.card_keys`."""
        return self.opener.keys

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """See `engine.Opener.be_ready_for`: in one process keys and members stay."""

    def take_cards(self, run: str, cards: Mapping[str, bytes]) -> dict[str, str]:
        """Take clients' signed cards of a session; returns the reason for each that is refused."""
        keys, refused = self.card_keys, dict[str, str]()
        for client, message in cards.items():
            try:
                signed, payload = split_message(message, keys.card_bytes)
                self.roster.check(signed, card_expected(run, keys))
                self.opener.take_cards(run, signed.header.sender, payload)
            except MessageRefused as error:
                refused[client] = str(error)
        return refused

    def open(self, request: SumRequest) -> OpenedSum | BlindTotal:
        """Return the opened total, as precise as the policy allows for its name.

        It is sealed for its clients where the policy says so, whatever the server asks for.

        A run, round and name is answered once, be the answer a refusal; what is of another key,
        or of a client without a card, is no question.

        Raises:
            TooFewContributions: fewer than the policy requires.
            TotalRefused: the ciphertext is malformed, or does not count the clients that have
                signed.
            OpeningRefused: the policy opens no such name, or no more in this run; one of this name
                was asked for in this round before (the difference of two totals would show single
                clients), or totals of other runs and this one together would show too few
                clients (`OpeningHistory.require_alike`).
            NotBlind: the server asks to read what the policy has sealed for clients alone, or to
                have sealed what the server reads.
            Duplicate: a client is listed twice.
            MessageRefused: a signature does not hold for this total (`Roster.check`).
        """
        expected = request.expected
        signers = tuple(signed.header.sender for signed in request.signed)
        try:
            opened = self._checked(request, signers)
        except (MessageRefused, OpeningRefused) as error:
            what = f"round {expected.round}, {expected.name!r}"
            self._note(expected, signers, 0, f"{what}: {error}")
            raise type(error)(f"{what}: {error}") from error
        self._note(expected, signers, opened.n_clients)
        if not self.policy.is_blind(expected.name):
            return opened
        return self.opener.sealed_for(total_bytes(opened, RELEASED), expected.about, signers)

    def _note(
        self, expected: Expected, signers: tuple[str, ...], n_clients: int, refused: str = ""
    ) -> None:
        about = expected.round, expected.name, expected.n_values
        key = expected.key_id, expected.epoch
        self._log(Opening(*about, signers, n_clients, refused, *key, expected.run))

    def _checked(self, request: SumRequest, signers: tuple[str, ...]) -> OpenedSum:
        expected = request.expected
        asked = expected.run, expected.round, expected.name
        require_own_key(self.opener, expected)
        require_blind(request, self.policy)
        if without := self.opener.without_card(expected.run, signers):
            raise OpeningRefused(f"no card of {', '.join(without):.200} in this session")
        n_asked = self._history.claim(asked)
        rule = self.policy.rule_for(expected.name)
        if n_asked > self.policy.openings_per_run:
            raise OpeningRefused(
                f"the policy opens {self.policy.openings_per_run} totals in a run, and these "
                "were asked for"
            )
        if len(set(signers)) != len(signers):
            raise Duplicate("a client stands in it twice")
        require_clients(len(signers), self.policy.min_contributions)
        terms = request.signers
        for signed in request.signed:
            self.roster.check(signed, expected.under(terms[signed.header.sender]))
        self._history.require_alike(asked, terms, self.policy.min_contributions)
        try:
            nonces = {signed.header.sender: signed.header.nonce for signed in request.signed}
            opened = self.opener.open(request.total, expected.about, nonces, rule.precision_bits)
        except TotalRefused:
            raise
        except MessageRefused as error:
            raise TotalRefused(str(error)) from error
        if request.due and not request.due.is_that_of(opened):
            raise TotalRefused("it does not weigh what its clients do: one lies about its weight")
        self._history.release(asked, terms)
        return opened


def require_blind(request: SumRequest, policy: Policy) -> None:
    """Raise NotBlind where the server asks for a total in another way than the policy has it."""
    name = request.expected.name
    if request.blind != policy.is_blind(name):
        ways = {True: "sealed for its clients", False: "in the clear"}
        asked, due = ways[request.blind], ways[not request.blind]
        raise NotBlind(f"asked for {asked}, and exchange.blind of the authority has it {due}")


def require_own_key(opener: Channel, expected: Expected) -> None:
    """Raise KeyMismatch where messages were sent under another key, or in another encoding."""
    ours = opener.form, opener.key_id, opener.epoch
    if (expected.form, expected.key_id, expected.epoch) != ours:
        raise KeyMismatch(
            f"sent as {expected.form!r} under key {expected.key_id[:16] or 'none'} of epoch "
            f"{expected.epoch}; the authority opens {opener.form!r} under key "
            f"{opener.key_id[:16]} of epoch {opener.epoch}"
        )

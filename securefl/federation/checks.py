"""Checks before totals are opened or keys added up: an authority's, and each officer's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from securefl.errors import Duplicate, KeyMismatch, MessageRefused, NotBlind, OpeningRefused
from securefl.exchange.card_keys import CardKeys, Quorum
from securefl.exchange.opener import CardHolder
from securefl.exchange.policy import OpeningRule, Policy, require_clients
from securefl.exchange.sums import ONE_TIME, ONE_TIME_PROFILE, Keyed
from securefl.federation.message import Expected, Roster, card_expected, split_message
from securefl.federation.opening import Opening, logged
from securefl.federation.opening_history import MOST_LISTS, MOST_SESSIONS, OpeningHistory
from securefl.federation.server import SumRequest
from securefl.federation.survey import ScoreRequest
from securefl.federation.total import Terms
from securefl.io.uncopyable import Held
from securefl.types import MessageSpec

Holder = TypeVar("Holder", bound=CardHolder)
Result = TypeVar("Result")


class Checks(Held, Generic[Holder]):
    """Request checks of one who answers for sums: it takes nobody's word for what a request says.

    Opener, roster and policy are replaced where the key or the consortium changes.
    """

    def __init__(
        self,
        opener: Holder,
        roster: Roster,
        policy: Policy,
        log: Callable[[Opening], None],
        history: OpeningHistory | None = None,
    ) -> None:
        """Take the key and the rules.

        Args:
            opener: has clients' cards, and opens totals or adds up keys.
            roster: clients whose signatures count.
            policy: names, precision and number of totals that may be opened.
            log: writes an opening down, before anything of it is released.
            history: openings of earlier runs; None where there are none.
        """
        self.opener = opener
        self.roster = roster
        self.policy = policy
        self._log = log
        self._history = history or OpeningHistory()

    @property
    def card_keys(self) -> CardKeys:
        """Card keys in force: see `engine.Opener.card_keys`."""
        return self.opener.keys

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """Do nothing: in one process keys and members stay. See `engine.Opener.be_ready_for`."""

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

    def _answered(
        self,
        request: SumRequest,
        answer: Callable[[SumRequest, OpeningRule], Result],
        n_clients: Callable[[Result], int],
    ) -> Result:
        """Return what `answer` gives for a request that is in order, and log it, or its refusal.

        A run, round and name is answered once, be the answer a refusal; what is of another key,
        or of a client without a card, is no question.

        Raises:
            TooFewContributions: fewer than the policy requires.
            OpeningRefused: the policy opens no such name, or no more in this run; a client counts
                more than once; one of this name was asked for in this round before (the difference
                of two totals would show single clients), or totals of other runs, or of other
                rounds at this model, and this one together would show too few clients
                (`OpeningHistory.require_alike`), or their mean has too little noise
                (`require_sessions_left`).
            NotBlind: the server asks to read what the policy has sealed for clients alone, or to
                have sealed what the server reads.
            Duplicate: a client is listed twice.
            MessageRefused: a signature does not hold for this total (`Roster.check`).
        """
        signers = tuple(signed.header.sender for signed in request.signed)

        def answered() -> Result:
            return self._checked(request, signers, answer)

        members = self.roster.names
        return logged(self._log, request.expected, signers, answered, n_clients, members)

    def _checked(
        self,
        request: SumRequest,
        signers: tuple[str, ...],
        answer: Callable[[SumRequest, OpeningRule], Result],
    ) -> Result:
        expected = request.expected
        asked = expected.run, expected.round, expected.name
        require_own_key(self.opener, ONE_TIME, expected)
        require_blind(request, self.policy)
        self._require_cards(expected.run, signers)
        if self._history.n_asked(expected.run) >= self.policy.openings_per_run:
            raise OpeningRefused(
                f"the policy opens {self.policy.openings_per_run} totals in a run, and these "
                "were asked for"
            )
        self._history.claim(asked)
        rule, terms = self.policy.rule_for(expected.name), request.signers
        self._require_signed(request, signers)
        n_lists, least = most_lists(self.card_keys.quorum), self.policy.min_contributions
        self._history.require_alike(asked, terms, least, n_lists, expected.model)
        if self.policy.noise_hides_clients:
            self._history.require_sessions_left(asked, expected.model, self._most_sessions)
        # First: a refusal tells of these clients, too.
        self._history.release(asked, terms, expected.model)
        return answer(request, rule)

    @property
    def _most_sessions(self) -> int:
        """Number of sessions that one who answers may count, so that all together count so many."""
        quorum = self.card_keys.quorum
        return MOST_SESSIONS * quorum.needed // quorum.officers

    def is_signed(self, request: SumRequest) -> bool:
        """Return True where as many clients as are needed have signed for this total and its size.

        Its ciphertext is not looked at, and no answer is used up.
        """
        try:
            self._require_signed(request, [signed.header.sender for signed in request.signed])
        except (OpeningRefused, MessageRefused):
            return False
        return True

    def _require_signed(self, request: SumRequest, signers: Sequence[str]) -> None:
        require_distinct(signers)
        require_clients(len(signers), self.policy.min_contributions)
        expected, terms = request.expected, request.signers
        for signed in request.signed:
            self.roster.check(signed, expected.under(terms[signed.header.sender]))
        require_once(terms)

    def answered_scores(
        self, request: ScoreRequest, answer: Callable[[ScoreRequest, OpeningRule], Result]
    ) -> Result:
        """Return what `answer` gives for scores that are in order, and log it, or its refusal.

        Raises:
            OpeningRefused: the policy opens no scores, or a client's score was asked for in this
                round before, or they are of profiles under several models
                (`OpeningHistory.claim_scores`).
            Duplicate: a client is listed twice.
            MessageRefused: a signature does not hold, or the profiles were sent under another key.
        """
        signers = tuple(signed.header.sender for signed in request.signed)
        about = replace(request.expected, name=request.name, n_values=len(request.scores))

        def answered() -> Result:
            return answer(request, self._rule_of_scores(request, signers))

        n_signed, members = len(signers), self.roster.names
        return logged(self._log, about, signers, answered, lambda _scores: n_signed, members)

    def _rule_of_scores(self, request: ScoreRequest, signers: tuple[str, ...]) -> OpeningRule:
        expected, rule = request.expected, self.policy.rule_for(request.name)
        require_distinct(signers)
        if len(signers) != len(request.scores):
            raise OpeningRefused(
                f"{len(request.scores)} scores and {len(signers)} headers; must be one of each for "
                "every client"
            )
        require_own_key(self.opener, ONE_TIME_PROFILE, expected)
        for signed in request.signed:
            self.roster.check(signed, expected)
        self._require_cards(expected.run, signers)
        about = expected.run, expected.round, expected.state
        self._history.claim_scores(*about, signers, self._most_sessions)
        return rule

    def _require_cards(self, run: str, signers: Sequence[str]) -> None:
        if without := self.opener.without_card(run, signers):
            raise OpeningRefused(f"no card of {', '.join(without):.200} in this session")


def most_lists(quorum: Quorum) -> int:
    """Return the most lists that totals of a round, and all at one model, may have.

    Any two lists have an officer in common, but three may not where some officers may be away:
    three pairs of three, say.
    """
    return MOST_LISTS if quorum.needed == quorum.officers else 1


def require_distinct(signers: Sequence[str]) -> None:
    """Raise Duplicate where a client is listed twice."""
    if len(set(signers)) != len(signers):
        raise Duplicate("a client stands in it twice")


def require_once(terms: Mapping[str, Terms]) -> None:
    """Raise OpeningRefused where a client counts several times: the total would be nearly its own.

    The server says how often each counts, and `selection.replacement = "with"` goes with sums in
    the clear alone: an honest draw may be as uneven.
    """
    if several := [name for name, own in terms.items() if own.times != 1]:
        raise OpeningRefused(
            f"{', '.join(several):.200} would count {terms[several[0]].times} times: in a sealed "
            "total each client counts once"
        )


def require_blind(request: SumRequest, policy: Policy) -> None:
    """Raise NotBlind where the server asks for a total in another way than the policy has it."""
    name = request.expected.name
    if request.blind != policy.is_blind(name):
        ways = {True: "sealed for its clients", False: "in the clear"}
        asked, due = ways[request.blind], ways[not request.blind]
        raise NotBlind(f"asked for {asked}, and exchange.blind of the authority has it {due}")


def require_own_key(opener: Keyed, form: str, expected: Expected) -> None:
    """Raise KeyMismatch where messages were sent under another key, or in another encoding."""
    ours = form, opener.key_id, opener.epoch
    if (expected.form, expected.key_id, expected.epoch) != ours:
        raise KeyMismatch(
            f"sent as {expected.form!r} under key {expected.key_id[:16] or 'none'} of epoch "
            f"{expected.epoch}; the authority opens {form!r} under key "
            f"{opener.key_id[:16]} of epoch {opener.epoch}"
        )

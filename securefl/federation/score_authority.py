"""The authority of the profile match: opens scores, several at a time, and logs every opening."""

from __future__ import annotations

from collections.abc import Callable
from math import ldexp

from securefl.errors import Duplicate, KeyFileError, MessageRefused, OpeningRefused
from securefl.exchange.matching import ScoreOpener
from securefl.exchange.policy import Policy
from securefl.federation.checks import require_own_key
from securefl.federation.message import Roster
from securefl.federation.opening import Opening
from securefl.federation.opening_history import OpeningHistory
from securefl.federation.survey import ScoreRequest


class ScoreAuthority:
    """The authority over scores: it opens one score of each client a round."""

    def __init__(
        self,
        opener: ScoreOpener,
        roster: Roster,
        policy: Policy,
        log: Callable[[Opening], None],
        history: OpeningHistory | None = None,
    ) -> None:
        """Take the key and the rules.

        Args:
            opener: holds the key.
            roster: clients whose signatures count.
            policy: names that may be opened, with their precision.
            log: writes an opening down, before its scores are released.
            history: openings of earlier runs, keys and processes; None where there are none.
        """
        self._opener = opener
        self._roster = roster
        self._policy = policy
        self._log = log
        self._history = history or OpeningHistory()

    def open(self, request: ScoreRequest) -> list[float | None]:
        """Return the scores, flooded and as precise as the policy allows, in the request's order.

        A score is None where the ciphertext holds none under this key: its client sent rubbish.

        Raises:
            OpeningRefused: the policy opens no scores, or a client's score was opened in this
                round before (`OpeningHistory.claim_scores`).
            KeyWornOut: the key has released as many scores as it may.
            Duplicate: a client is listed twice.
            MessageRefused: a signature does not hold, or the profiles were sent under another key.
            KeyFileError: the record of this key's releases cannot be read.
        """
        expected, signers = request.expected, tuple(s.header.sender for s in request.signed)
        try:
            opened = self._checked(request, signers)
        except (KeyFileError, MessageRefused, OpeningRefused) as error:
            what = f"round {expected.round}, {request.name!r}"
            self._note(request, signers, 0, f"{what}: {error}")
            raise type(error)(f"{what}: {error}") from error
        self._note(request, signers, len(signers))
        return opened

    def _note(
        self, request: ScoreRequest, signers: tuple[str, ...], n_clients: int, refused: str = ""
    ) -> None:
        expected = request.expected
        opening = Opening(
            round=expected.round,
            name=request.name,
            n_values=len(request.scores),
            signers=signers,
            n_clients=n_clients,
            refused=refused,
            key_id=expected.key_id,
            epoch=expected.epoch,
            run=expected.run,
        )
        self._log(opening)

    def _checked(self, request: ScoreRequest, signers: tuple[str, ...]) -> list[float | None]:
        expected = request.expected
        bits = self._policy.rule_for(request.name).precision_bits
        if len(set(signers)) != len(signers):
            raise Duplicate("a client stands in it twice")
        if len(signers) != len(request.scores):
            raise OpeningRefused(
                f"{len(request.scores)} scores and {len(signers)} headers; must be one of each for "
                "every client"
            )
        require_own_key(self._opener, expected)
        for signed in request.signed:
            self._roster.check(signed, expected)
        self._history.claim_scores(expected.run, expected.round, signers)
        opened = self._opener.open(request.scores)
        return [None if s is None else ldexp(round(ldexp(s, bits)), -bits) for s in opened]

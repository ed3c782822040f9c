"""One of several officers: it checks each request itself, and answers with sums of keys."""

from __future__ import annotations

from typing import final

from securefl.exchange.one_time_match import split_score
from securefl.exchange.opener import Answer, KeyAdder, ScorePart
from securefl.exchange.policy import OpeningRule
from securefl.federation.checks import Checks
from securefl.federation.server import SumRequest
from securefl.federation.survey import ScoreRequest


@final
class CheckingOfficer(Checks[KeyAdder]):
    """An officer, who makes the authority's checks itself and sees no value.

    It answers each total once, for one list of clients, be the answer a refusal.
    """

    def key_sums(self, request: SumRequest) -> Answer:
        """Return the sum of the listed clients' keys, by group; the ciphertext is not looked at.

        Its log names as many clients as have signed: nothing was counted inside the ciphertext.

        Raises:
            OpeningRefused, MessageRefused: as `Checks` refuses requests.
        """
        n_signed = len(request.signed)
        return self._answered(request, self._added, lambda _answer: n_signed)

    def _added(self, request: SumRequest, _rule: OpeningRule) -> Answer:
        return self.opener.key_sums(request.expected.about, request.nonces)

    def score_parts(self, request: ScoreRequest) -> list[ScorePart]:
        """Return the parts of scores, in the request's order; their constants are not looked at.

        Raises:
            OpeningRefused, MessageRefused: as `Checks.answered_scores`.
        """
        return self.answered_scores(request, self._parts)

    def _parts(self, request: ScoreRequest, _rule: OpeningRule) -> list[ScorePart]:
        about = request.expected.about
        return [
            self.opener.score_parts(
                about, signed.header.sender, signed.header.nonce, split_score(content)[2]
            )
            for signed, content in zip(request.signed, request.scores, strict=True)
        ]

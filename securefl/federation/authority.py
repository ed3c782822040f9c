"""Opening after checks: an authority opens totals and scores, an officer adds up keys."""

from collections.abc import Callable
from math import ldexp
from typing import final

from securefl.errors import MessageRefused, TotalRefused
from securefl.exchange.blind import BlindTotal
from securefl.exchange.decode_total import SPOILT
from securefl.exchange.noise import Draw, ScoreNoise, gaussian
from securefl.exchange.one_time_match import split_score
from securefl.exchange.opener import Answer, KeyAdder, ScorePart, TotalOpener
from securefl.exchange.policy import OpeningRule
from securefl.exchange.sums import OpenedSum
from securefl.federation.checks import Checks
from securefl.federation.server import SumRequest
from securefl.federation.survey import ScoreRequest
from securefl.federation.total import RELEASED, total_bytes


@final
class Authority(Checks[TotalOpener]):
    """Authority over sums: it opens the totals that the policy allows, of several clients each.

    The server is told the total, never the sum of keys that opens it.
    """

    def open(self, request: SumRequest) -> OpenedSum | BlindTotal:
        """Return the opened total, as precise as the policy allows for its name.

        It is sealed for its clients where the policy says so, whatever the server asks for.

        Raises:
            TotalRefused: the ciphertext is malformed, or does not count the clients that have
                signed.
            OpeningRefused, MessageRefused: as `Checks` refuses requests; an answer is given once.
        """
        opened = self._answered(request, self._opened, lambda opened: opened.n_clients)
        about = request.expected.about
        if not self.policy.is_blind(about.name):
            return opened
        return self.opener.sealed_for(total_bytes(opened, RELEASED), about, tuple(request.nonces))

    def _opened(self, request: SumRequest, rule: OpeningRule) -> OpenedSum:
        try:
            return self._decrypted(request, rule)
        except TotalRefused:
            expected = request.expected
            asked = expected.run, expected.round, expected.name
            self._history.refuse(asked, request.signers, expected.model)
            raise

    def _decrypted(self, request: SumRequest, rule: OpeningRule) -> OpenedSum:
        nonces, about = request.nonces, request.expected.about
        try:
            opened = self.opener.open(request.total, about, nonces, rule.precision_bits)
        except TotalRefused:
            raise
        except MessageRefused as error:
            raise TotalRefused(str(error)) from error
        if request.due and not request.due.is_that_of(opened):
            raise TotalRefused(SPOILT)
        return opened


class ScoreAuthority:
    """Authority over scores: it opens one of each client a round."""

    def __init__(
        self,
        authority: Authority,
        noise: ScoreNoise | None = None,
        draw: Callable[[int, str], Draw] = lambda _version, _client: gaussian,
    ) -> None:
        """Take the authority over sums, whose key, roster, policy and history hold for scores too.

        Args:
            authority: opens.
            noise: of differential privacy, on every score; None where it hides no client.
            draw: source of the noise on a client's score, by the number of rounds completed.
        """
        self._authority = authority
        self._noise = noise
        self._draw = draw

    def open(self, request: ScoreRequest) -> list[float | None]:
        """Return the scores as precise as the policy allows, in the request's order.

        A score is None where the ciphertext holds none under its client's key: it is rubbish.

        Raises:
            OpeningRefused, MessageRefused: as `Checks.answered_scores`.
        """
        return self._authority.answered_scores(request, self._opened)

    def _opened(self, request: ScoreRequest, rule: OpeningRule) -> list[float | None]:
        about, bits = request.expected.about, rule.precision_bits
        opened = list[float | None]()
        for signed, content in zip(request.signed, request.scores, strict=True):
            name, nonce = signed.header.sender, signed.header.nonce
            score = self._authority.opener.score(content, about, name, nonce)
            if self._noise:  # rubbish as well: that it is none would be told without noise
                score = self._noise.on(score or 0.0, self._draw(about.round - 1, name))
            if score is not None:
                score = ldexp(round(ldexp(score, bits)), -bits)
            opened.append(score)
        return opened


@final
class CheckingOfficer(Checks[KeyAdder]):
    """Officer, who makes the authority's checks itself and sees no value.

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

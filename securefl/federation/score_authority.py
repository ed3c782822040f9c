"""The authority over scores of profiles: opens several at a time, and logs every opening."""

from __future__ import annotations

from collections.abc import Callable
from math import ldexp

from securefl.exchange.gaussian import Draw, gaussian
from securefl.exchange.policy import OpeningRule
from securefl.exchange.score_noise import ScoreNoise
from securefl.federation.authority import Authority
from securefl.federation.survey import ScoreRequest


class ScoreAuthority:
    """The authority over scores: it opens one of each client a round."""

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

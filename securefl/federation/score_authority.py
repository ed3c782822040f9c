"""The authority over scores of profiles: opens several at a time, and logs every opening."""

from __future__ import annotations

from collections.abc import Callable
from math import ldexp

from securefl.errors import Duplicate, MessageRefused, OpeningRefused
from securefl.exchange.base import ONE_TIME_PROFILE
from securefl.exchange.gaussian import Draw, gaussian
from securefl.exchange.score_noise import ScoreNoise
from securefl.federation.authority import Authority, Opening, require_own_key
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
            OpeningRefused: the policy opens no scores, a client has given no card, or its score was
                opened in this round before (`OpeningHistory.claim_scores`).
            Duplicate: a client is listed twice.
            MessageRefused: a signature does not hold, or the profiles were sent under another key.
        """
        expected, signers = request.expected, tuple(s.header.sender for s in request.signed)
        try:
            opened = self._checked(request, signers)
        except (MessageRefused, OpeningRefused) as error:
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
        self._authority.log(opening)

    def _checked(self, request: ScoreRequest, signers: tuple[str, ...]) -> list[float | None]:
        expected, authority = request.expected, self._authority
        bits = authority.policy.rule_for(request.name).precision_bits
        if len(set(signers)) != len(signers):
            raise Duplicate("a client stands in it twice")
        if len(signers) != len(request.scores):
            raise OpeningRefused(
                f"{len(request.scores)} scores and {len(signers)} headers; must be one of each for "
                "every client"
            )
        require_own_key(authority.opener, ONE_TIME_PROFILE, expected)
        for signed in request.signed:
            authority.roster.check(signed, expected)
        if without := authority.opener.without_card(expected.run, signers):
            raise OpeningRefused(f"no card of {', '.join(without):.200} in this session")
        authority.history.claim_scores(expected.run, expected.round, signers)
        scores = zip(signers, request.signed, request.scores, strict=True)
        opened = [
            authority.opener.score(score, expected.about, name, signed.header.nonce)
            for name, signed, score in scores
        ]
        if self._noise:
            opened = [
                None if s is None else self._noise.on(s, self._draw(expected.round - 1, name))
                for name, s in zip(signers, opened, strict=True)
            ]
        return [None if s is None else ldexp(round(ldexp(s, bits)), -bits) for s in opened]

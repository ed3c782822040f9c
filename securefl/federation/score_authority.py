"""The authority of the profile match: opens scores, several at a time, and logs every opening."""

from __future__ import annotations

from collections.abc import Callable
from math import ldexp

from securefl.errors import Duplicate, KeyFileError, MessageRefused, OpeningRefused
from securefl.exchange.matching import ScoreOpener
from securefl.exchange.policy import Policy
from securefl.federation import message as wire
from securefl.federation.authority import Opening, require_own_key
from securefl.federation.survey import ScoreRequest


class ScoreAuthority:
    """Holds the `ScoreOpener`; of each client it releases one score a round."""

    def __init__(
        self,
        opener: ScoreOpener,
        roster: wire.Roster,
        policy: Policy,
        log: Callable[[Opening], None],
    ) -> None:
        self._opener = opener
        self._roster = roster
        self._policy = policy
        self._log = log
        self._opened: set[tuple[str, int, str]] = set()

    def open(self, request: ScoreRequest) -> list[float | None]:
        """The scores, flooded and as precise as the policy allows, in the order of the request.

        None where the ciphertext is no score under this key: its client sent rubbish.

        Raises:
            OpeningRefused: the policy opens no scores, or a client's score was opened in this
                round before (several scores of one profile would show more of it).
            KeyWornOut: the key has released as many scores as it may.
            Duplicate: a client stands in it twice.
            MessageRefused: a signature does not hold, or the profiles were sent under another key.
            KeyFileError: nobody knows how many scores the key has released.
        """
        expected, signers = request.expected, tuple(s.header.sender for s in request.signed)
        about = expected.round, request.name, len(request.scores)
        key = expected.key_id, expected.epoch
        try:
            opened = self._checked(request, signers)
        except (KeyFileError, MessageRefused, OpeningRefused) as error:
            what = f"round {expected.round}, {request.name!r}"
            self._log(Opening(*about, signers, 0, f"{what}: {error}", *key))
            raise type(error)(f"{what}: {error}") from error
        self._log(Opening(*about, signers, len(signers), "", *key))
        return opened

    def _checked(self, request: ScoreRequest, signers: tuple[str, ...]) -> list[float | None]:
        expected = request.expected
        bits = self._policy.rule_for(request.name).precision_bits
        keys = {(expected.run, expected.round, signer) for signer in signers}
        if len(keys) != len(signers):
            raise Duplicate("a client stands in it twice")
        if len(signers) != len(request.scores):
            raise OpeningRefused(
                f"{len(request.scores)} scores and {len(signers)} headers; must be one of each for "
                "every client"
            )
        if again := sorted(client for *_, client in keys & self._opened):
            raise OpeningRefused(f"opened once already, of {', '.join(again)}")
        require_own_key(self._opener, expected)
        for signed in request.signed:
            self._roster.check(signed, expected)
        self._opened |= keys
        opened = self._opener.open(request.scores)
        return [None if s is None else ldexp(round(ldexp(s, bits)), -bits) for s in opened]

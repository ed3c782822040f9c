"""Surveys before a selection: the server takes one answer of each client that it has asked.

Nothing is summed. Where a profile is encrypted, the server makes a score of it, which only the
authority can open, or officers can.
"""

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass

from securefl.errors import Duplicate, MessageRefused
from securefl.exchange.profile_match import SCORE, Matcher, Profile
from securefl.federation.message import (
    NUMBER,
    Expected,
    Roster,
    SignedHeader,
    headers_bytes,
    split_message,
)
from securefl.federation.total import state_digest
from securefl.types import State


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Scores and the signed headers of their profiles, for the authority."""

    expected: Expected
    """Header fields of the profiles."""
    scores: tuple[bytes, ...]
    signed: tuple[SignedHeader, ...]
    """Signed headers in the order of the scores."""

    def as_bytes(self) -> bytes:
        """Return the bytes that the authority is sent, part after part."""
        return b"".join(self.scores) + headers_bytes(self.signed)

    @property
    def name(self) -> str:
        """Name of the scores in the policy and the log."""
        return SCORE


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Range of numbers that count as answers; another could spoil the draw for all clients."""

    least: float
    most: float
    whole: bool = False
    or_none: bool = False
    """True where NaN counts: there may be no number."""

    def __contains__(self, number: float) -> bool:
        if self.or_none and math.isnan(number):
            return True
        return self.least <= number <= self.most and (not self.whole or number.is_integer())

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.least:.15g} to {self.most:.15g}"


class Survey:
    """Answers to one query in one round, while they arrive."""

    def __init__(
        self, roster: Roster, expected: Expected, n_bytes: int, asked: Collection[str]
    ) -> None:
        self.expected = expected
        self._roster = roster
        self._n_bytes = n_bytes
        self._asked = frozenset(asked)
        self._answered: set[str] = set()

    def admit(self, message: bytes, client: str | None = None) -> tuple[SignedHeader, bytes]:
        """Return header and payload of an answer; of `client` where the sender is known.

        Raises:
            Duplicate: the client has answered already.
            MessageRefused: the answer fails another check, or its client was not asked.
        """
        signed, payload = split_message(message, self._n_bytes)
        self._roster.check(signed, self.expected)
        sender, name = signed.header.sender, self.expected.name
        if client not in {None, sender}:
            raise MessageRefused(f"{client}: sent the {name} of {sender!r}")
        if sender not in self._asked:
            raise MessageRefused(f"{sender} was not asked for its {name}")
        if sender in self._answered:
            raise Duplicate(f"{sender} has sent its {name} already")
        if len(payload) != self._n_bytes:
            raise MessageRefused(
                f"{sender}: payload of {len(payload)} bytes, expected exactly {self._n_bytes}"
            )
        self._answered.add(sender)
        return signed, payload


class NumberSurvey:
    """Survey for one number of each client, in the clear."""

    def __init__(
        self,
        roster: Roster,
        expected: Expected,
        allowed: NumberRange,
        asked: Collection[str],
    ) -> None:
        self._survey = Survey(roster, expected, NUMBER.size, asked)
        self._allowed = allowed

    def receive(self, message: bytes, client: str | None = None) -> float:
        """Return the number.

        Raises:
            MessageRefused: the message fails a check of `Survey.admit`, or the number is not
                allowed.
        """
        signed, payload = self._survey.admit(message, client)
        (number,) = NUMBER.unpack(payload)
        if number not in self._allowed:
            name = self._survey.expected.name
            raise MessageRefused(f"{signed.header.sender}: {name} must be {self._allowed}")
        return float(number)


def profiled_under(state: State, unit: float) -> str:
    """Return the SHA-256, in hex, of what clients make a profile under, which their headers name.

    So whoever opens scores sees that all of a round were sent the same model.
    """
    about = f"SecureFL profile 1\0{state_digest(state)} {state.round} {unit!r}"
    return hashlib.sha256(about.encode()).hexdigest()


class ProfileSurvey:
    """Survey for profiles, each matched with the server's baseline as it arrives and not kept."""

    def __init__(
        self,
        roster: Roster,
        expected: Expected,
        matcher: Matcher,
        baseline: Profile,
        asked: Collection[str],
    ) -> None:
        self._survey = Survey(roster, expected, matcher.n_bytes(len(baseline)), asked)
        self._matcher = matcher
        self._baseline = baseline
        self._scores: list[tuple[SignedHeader, bytes]] = []

    def receive(self, message: bytes, client: str | None = None) -> None:
        """Match one profile.

        Raises:
            MessageRefused: the message fails a check of `Survey.admit`, or the profile is of
                another length or version than the baseline, or, in the clear, malformed.
        """
        signed, payload = self._survey.admit(message, client)
        self._scores.append((signed, self._matcher.match(payload, self._baseline)))

    def request(self) -> ScoreRequest:
        """Return the scores of all profiles that were received."""
        signed, scores = zip(*self._scores, strict=True) if self._scores else ((), ())
        return ScoreRequest(self._survey.expected, scores, signed)

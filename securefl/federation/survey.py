"""What the server asks single clients for before it selects: one answer of each that was asked.

Nothing is added up here. Where a profile is encrypted, the server makes a blinded score of it,
which the authority alone can open.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from securefl.errors import Duplicate, MessageRefused
from securefl.exchange.matching import PROFILE, SCORE, Matcher
from securefl.exchange.profile import Profile
from securefl.federation.message import (
    NUMBER,
    Expected,
    Roster,
    SignedHeader,
    headers_bytes,
    split_message,
)


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Scores, and the signed headers of the profiles that they are of: what the authority gets."""

    expected: Expected
    """Of the profiles."""
    scores: tuple[bytes, ...]
    signed: tuple[SignedHeader, ...]
    """In the order of the scores."""

    def as_bytes(self) -> bytes:
        """What crosses the wire of it, part after part."""
        return b"".join(self.scores) + headers_bytes(self.signed)

    @property
    def name(self) -> str:
        """Of what is opened."""
        return SCORE


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Which numbers count as answers; with others, one client could spoil the draw for all."""

    least: float
    most: float
    whole: bool = False

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most and (not self.whole or number.is_integer())

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.least:.15g} to {self.most:.15g}"


class Survey:
    """Answers as they arrive, one kind of them in one round."""

    def __init__(
        self, roster: Roster, expected: Expected, n_bytes: int, asked: Collection[str]
    ) -> None:
        self.expected = expected
        self._roster = roster
        self._n_bytes = n_bytes
        self._asked = frozenset(asked)
        self._answered: set[str] = set()

    def admit(self, message: bytes, client: str | None = None) -> tuple[SignedHeader, bytes]:
        """Header and payload of an answer; of `client`, where it is known who has sent it.

        Raises:
            MessageRefused: it fails a check, its client was not asked, or has answered already.
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
    """One number of each client, in the clear."""

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
        """The number; raises MessageRefused as `Survey.admit`, and where it is not allowed."""
        signed, payload = self._survey.admit(message, client)
        (number,) = NUMBER.unpack(payload)
        if number not in self._allowed:
            name = self._survey.expected.name
            raise MessageRefused(f"{signed.header.sender}: {name} must be {self._allowed}")
        return float(number)


class ProfileSurvey:
    """Profiles, each matched with the server's baseline as it arrives and not kept."""

    def __init__(
        self,
        run: str,
        roster: Roster,
        round_number: int,
        matcher: Matcher,
        baseline: Profile,
        asked: Collection[str],
    ) -> None:
        expected = Expected.over(matcher, (run, round_number), PROFILE, 2 * len(baseline))
        self._survey = Survey(roster, expected, matcher.n_bytes(len(baseline)), asked)
        self._matcher = matcher
        self._baseline = baseline
        self._scores: list[tuple[SignedHeader, bytes]] = []

    def receive(self, message: bytes, client: str | None = None) -> None:
        """Match one profile.

        Raises:
            MessageRefused: as `Survey.admit`, and where it is of another length or version than the
                baseline, or, in the clear, no profile.
        """
        signed, payload = self._survey.admit(message, client)
        self._scores.append((signed, self._matcher.match(payload, self._baseline)))

    def request(self) -> ScoreRequest:
        """The scores of all that were received."""
        signed, scores = zip(*self._scores, strict=True) if self._scores else ((), ())
        return ScoreRequest(self._survey.expected, scores, signed)

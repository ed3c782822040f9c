"""Beliefs of each process about its consortium. `securefl_keys` has it from verified files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from cryptography import x509

from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.match_forms import MatchForm
from securefl.exchange.matching import ScoreOpener
from securefl.exchange.opener import KeyAdder, Opener
from securefl.exchange.policy import Policy
from securefl.exchange.score_noise import ScoreNoise
from securefl.federation.message import Roster

Role = Literal["client", "server", "authority", "officer"]


class Trust(Protocol):
    """Members of the consortium, by role."""

    def holder(self, certificate: x509.Certificate, role: Role) -> str:
        """Return the name in a certificate; raises KeyFileError where it has not that role now."""

    def transport_holder(self, certificate: x509.Certificate, role: Role) -> str:
        """Return the name in a transport certificate, whose identity has that role now.

        Raises KeyFileError, or what its subclass says, as `holder`.
        """

    def clients(self) -> Roster:
        """Return the clients that may sign contributions."""

    def officers(self) -> tuple[str, ...]:
        """Return the names of those who open sums: "authority" first, then officers in order."""


class Bundle(Trust, Protocol):
    """The files that the consortium has signed for one role."""

    @property
    def age(self) -> tuple[int, int]:
        """Epoch and version of the roster: what is newer is larger."""

    @property
    def card_keys(self) -> CardKeys:
        """The epoch's keys, which clients make their cards for."""

    def newer(self, files: str) -> Self:
        """Return what another bundle says; raises KeyFileError where it is forged, or older."""


class ServerBundle(Bundle, Protocol):
    """The server's."""

    @property
    def scoring(self) -> ScoringContext | None:
        """Parameters of the epoch's match key; None where there is no such key."""


class OfficerBundle(Bundle, Protocol):
    """An officer's."""

    @property
    def policy(self) -> Policy:
        """The consortium's signed policy."""


class ClientBundle(Bundle, Protocol):
    """A client's."""

    @property
    def match_public(self) -> MatchPublicKey | None:
        """The epoch's match key; None where there is none."""


class ScoreKeys(Protocol):
    """The authority's match key. The server imports this module: no secret can be named here."""

    @property
    def score_bytes(self) -> int:
        """Exact length of a score under this key."""

    def opener(self, form: MatchForm, noise: ScoreNoise | None) -> ScoreOpener:
        """Build the capability to open scores; raises ConfigError for a key of another form."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Keys, roster and policy that hold from now on, at the authority."""

    age: tuple[int, int]
    opener: Opener | KeyAdder
    """The same object as long as its key is in force: it has the clients' cards. One of several
    officers adds up keys, and cannot open."""
    trust: Trust
    policy: Policy
    bundles: Mapping[Role, str]
    """Files signed for each role, to be passed on."""
    matches: ScoreKeys | None = None
    """None at an officer."""


class Keeper(Protocol):
    """The authority's keys, roster and policy, which change while it runs."""

    def now(self, scores: int = 0) -> Standing:
        """Return what holds for a round that opens so many scores: new keys if need be.

        Raises:
            KeyWornOut: no key may release so many scores.
            KeyFileError: a file is missing or damaged, or cannot be written.
        """

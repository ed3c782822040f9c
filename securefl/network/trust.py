"""Beliefs of each process about its consortium. `securefl_keys` has it from verified files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from cryptography import x509

from securefl.crypto.match_public import MatchPublicKey, ScoringContext
from securefl.crypto.params import CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.exchange.base import Opener
from securefl.exchange.match_forms import MatchForm
from securefl.exchange.matching import ScoreOpener
from securefl.exchange.policy import Policy
from securefl.exchange.score_noise import ScoreNoise
from securefl.federation.message import Roster

Role = Literal["client", "server", "authority"]


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


class Bundle(Trust, Protocol):
    """The files that the consortium has signed for one role."""

    @property
    def age(self) -> tuple[int, int]:
        """Epoch and version of the roster: what is newer is larger."""

    def newer(self, files: str) -> Self:
        """Return what another bundle says; raises KeyFileError where it is forged, or older."""


class ServerBundle(Bundle, Protocol):
    """The server's."""

    @property
    def adding(self) -> AddingContext:
        """Parameters of the epoch's key."""

    @property
    def scoring(self) -> ScoringContext | None:
        """Parameters of the epoch's match key; None where there is no such key."""


class ClientBundle(Bundle, Protocol):
    """A client's."""

    @property
    def public(self) -> PublicKey:
        """The epoch's key."""

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
    opener: Opener
    trust: Trust
    policy: Policy
    bundles: Mapping[Role, str]
    """Files signed for each role, to be passed on."""
    matches: ScoreKeys
    values_left: Callable[[], int] = lambda: 0
    """Returns the number of values that the key of sums may still release."""


class Keeper(Protocol):
    """The authority's keys, roster and policy, which change while it runs."""

    @property
    def parameters(self) -> CkksParameters:
        """Parameters of its keys, in every epoch."""

    def now(self, needed: int, scores: int = 0) -> Standing:
        """Return what holds for a round that opens so many values and scores: new keys if need be.

        Raises:
            KeyWornOut: no key may release so many.
            KeyFileError: a file is missing or damaged, or cannot be written.
        """

"""Beliefs of each process about its consortium. `securefl_keys` has it from verified files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, Self

from cryptography import x509

from securefl.exchange.policy import Policy
from securefl.io.uncopyable import Held

if TYPE_CHECKING:
    from securefl.exchange.card_keys import CardKeys
    from securefl.exchange.opener import KeyAdder, TotalOpener
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


class TrustedBundle(Trust, Protocol):
    """The files that the consortium has signed for one role."""

    @property
    def age(self) -> tuple[int, int]:
        """Epoch and version of the roster: what is newer is larger."""

    @property
    def card_keys(self) -> CardKeys:
        """Keys of the epoch, which clients make their cards for."""

    def newer(self, files: str) -> Self:
        """Return what another bundle says; raises KeyFileError where it is forged, or older."""


class OfficerBundle(TrustedBundle, Protocol):
    """Bundle of an officer."""

    @property
    def policy(self) -> Policy:
        """Signed policy of the consortium."""


@dataclass(frozen=True, slots=True)
class MemberStanding(Held):
    """Keys, roster and policy that hold from now on, at the authority."""

    age: tuple[int, int]
    opener: TotalOpener | KeyAdder = field(repr=False)
    """The same object as long as its key is in force: it has the clients' cards. One of several
    officers adds up keys, and cannot open."""
    trust: Trust
    policy: Policy
    bundles: Mapping[Role, str]
    """Files signed for each role, to be passed on."""


class Keeper(Protocol):
    """Keys, roster and policy of the authority, which change while it runs."""

    def now(self) -> MemberStanding:
        """Return what holds from now on.

        Raises:
            KeyFileError: a file is missing or damaged, or cannot be written.
        """

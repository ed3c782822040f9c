"""What each process believes of its consortium. `securefl_keys` has it from verified files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from cryptography import x509

from securefl.crypto.params import CkksParameters
from securefl.crypto.public import AddingContext, PublicKey
from securefl.exchange.base import Opener
from securefl.exchange.policy import Policy
from securefl.federation import message as wire

Role = Literal["client", "server", "authority"]


class Trust(Protocol):
    """Who is who."""

    def holder(self, certificate: x509.Certificate, role: Role) -> str:
        """The name in a certificate; raises KeyFileError where it has not that role now."""

    def clients(self) -> wire.Roster:
        """Who may sign contributions."""


class Bundle(Trust, Protocol):
    """The files that the consortium has signed for one role."""

    @property
    def age(self) -> tuple[int, int]:
        """Epoch and version of the roster: what is newer is larger."""

    def newer(self, files: str) -> Self:
        """As another bundle says; raises KeyFileError where it is forged, or older than this."""


class ServerBundle(Bundle, Protocol):
    """The server's."""

    @property
    def adding(self) -> AddingContext:
        """Parameters of the epoch's key."""


class ClientBundle(Bundle, Protocol):
    """A client's."""

    @property
    def public(self) -> PublicKey:
        """The epoch's key."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What holds from now on, at the authority."""

    age: tuple[int, int]
    opener: Opener
    trust: Trust
    policy: Policy
    bundles: Mapping[Role, str]
    """What has been signed for each role, to be passed on."""


class Keeper(Protocol):
    """The authority's keys, roster and policy, which change while it runs."""

    @property
    def parameters(self) -> CkksParameters:
        """Of its keys, in every epoch."""

    def now(self, needed: int) -> Standing:
        """What holds, for a round that opens so many values: under new keys where need be.

        Raises:
            KeyWornOut: no key may release so many.
            KeyFileError: a file is missing or damaged, or cannot be written.
        """

"""The authority of a simulation, or its officers: in the process of clients and server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from securefl.exchange.base import OpenedSum
from securefl.exchange.card_keys import CardKeys
from securefl.federation.authority import Authority
from securefl.federation.server import SumRequest
from securefl.types import MessageSpec


@dataclass(frozen=True, slots=True)
class AuthorityHere:
    """An `Opener` whose authority is in this process."""

    authority: Authority

    @property
    def card_keys(self) -> CardKeys:
        """See `Opener.card_keys`."""
        return self.authority.opener.keys

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """See `Opener.be_ready_for`: keys and members stay."""

    def take_cards(self, run: str, cards: Mapping[str, bytes]) -> Mapping[str, str]:
        """See `Opener.take_cards`."""
        return self.authority.take_cards(run, cards)

    def open(self, request: SumRequest) -> OpenedSum:
        """See `Authority.open`."""
        return self.authority.open(request)

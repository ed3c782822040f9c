"""The officers' keys together, as only a simulation and an authority's folder have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from securefl.crypto.card_secret import CardSecret
from securefl.exchange.answers import Combiner, numbered
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.officer import Officer
from securefl.exchange.one_time_open import OneTimeOpener
from securefl.exchange.policy import Policy
from securefl.exchange.quorum import ALONE, Quorum
from securefl.held import Held


@dataclass(frozen=True, slots=True)
class KeySet(Held):
    """The keys of an epoch, and what a consortium allows with them."""

    secrets: tuple[CardSecret, ...] = field(repr=False)
    """One of each officer; the authority is one of one."""
    quorum: Quorum = ALONE
    policy: Policy | None = None
    """Of the consortium whose keys they are; None where there is none."""

    @property
    def public(self) -> CardKeys:
        """The public halves, for clients and server."""
        return CardKeys(tuple(secret.public for secret in self.secrets), self.quorum)

    def opener(self, say: Callable[[str], None] = lambda _text: None) -> OneTimeOpener:
        """Return the capability to open totals; `say` is told of officers away, and of liars."""
        public = self.public
        combiner = Combiner(public, lambda number, why: say(f"{numbered(number)}: {why}"))
        return OneTimeOpener(public, combiner, self.officers())

    def officers(self) -> list[Officer]:
        """Return the officers, who have no cards yet."""
        public = self.public
        return [Officer(public, secret, n) for n, secret in enumerate(self.secrets)]

    @classmethod
    def ephemeral(cls, quorum: Quorum | None = None, epoch: int = 1) -> KeySet:
        """Make fresh keys that live in memory and end with the process."""
        of = quorum or ALONE
        return cls(tuple(CardSecret.generate(epoch) for _ in range(of.officers)), of)

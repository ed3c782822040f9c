"""An officer: it adds up the keys of the clients on a list, and sees no value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from securefl.crypto.card_secret import CardSecret
from securefl.crypto.one_time import KeySum, OneTimeKey
from securefl.errors import MessageRefused, PeerError
from securefl.exchange.base import MessageId
from securefl.exchange.card_keys import card_about
from securefl.exchange.quorum import ALONE, Quorum

Answer = Mapping[int, KeySum]
"""Sum of keys by group."""


class Answering(Protocol):
    """Officer that is asked for sums of keys."""

    def key_sums(self, about: MessageId, nonces: Mapping[str, str]) -> Answer:
        """Return the sum of keys of one message, for each of the officer's groups.

        Raises:
            PeerError: it is away, or has no card of a client.
        """


@dataclass(frozen=True, slots=True)
class Officer:
    """One officer, with the secrets that cards have told it; the authority is one of one."""

    secret: CardSecret = field(repr=False)
    number: int = 0
    quorum: Quorum = ALONE
    _secrets: dict[tuple[str, str], list[bytes]] = field(default_factory=dict, repr=False)
    """Secrets of the officer's groups, by session and client."""

    def take_card(self, run: str, sender: str, card: bytes) -> None:
        """Keep what a client's card holds.

        Raises:
            MessageRefused: it does not open, or the client had another in this session.
        """
        about, n_groups = card_about(run, sender), len(self.quorum.groups_of(self.number))
        secrets = self.secret.secrets_in(card, n_groups, about)
        if self._secrets.setdefault((run, sender), secrets) != secrets:
            raise MessageRefused("a second card, with another secret")

    def without_card(self, run: str, senders: Collection[str]) -> list[str]:
        """Return the clients of whom there is no card."""
        return [sender for sender in senders if (run, sender) not in self._secrets]

    def key_sums(self, about: MessageId, nonces: Mapping[str, str]) -> Answer:
        """See `Answering.key_sums`; raises PeerError for a client whose card is not here."""
        if without := self.without_card(about.run, nonces):
            raise PeerError(f"has no card of {', '.join(without):.200}")
        digest, groups = about.digest(), self.quorum.groups_of(self.number)
        return {
            group: KeySum.of(
                OneTimeKey.of(
                    [self._secrets[about.run, name][i]], digest, name, bytes.fromhex(nonce)
                )
                for name, nonce in nonces.items()
            )
            for i, group in enumerate(groups)
        }

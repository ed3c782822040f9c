"""An officer: it adds up the keys of the clients on a list, and sees no value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from securefl.crypto.blind import ContentKey
from securefl.crypto.card_secret import CardSecret
from securefl.crypto.derived import commitment
from securefl.crypto.one_time import KeySum, OneTimeKey, polynomial_in
from securefl.crypto.params import MATCHES
from securefl.errors import MessageRefused, PeerError
from securefl.exchange.base import MessageId
from securefl.exchange.card_keys import card_about
from securefl.exchange.one_time import UnderCards
from securefl.exchange.opener import Answer, ScorePart
from securefl.held import Held


@dataclass(frozen=True, slots=True)
class Officer(UnderCards, Held):
    """One officer, with the secrets that cards have told it; the authority is one of one."""

    secret: CardSecret = field(repr=False)
    number: int = 0
    _secrets: dict[str, dict[str, list[bytes]]] = field(default_factory=dict, repr=False)
    """Secrets of the officer's groups by client, of the session that has given cards last."""
    _answered: dict[tuple[str, int, str], bytes] = field(default_factory=dict, repr=False)
    """Digest of the list that each message was answered for; of a profile, of the polynomial."""

    def take_cards(self, run: str, sender: str, cards: bytes) -> None:
        """Keep what the card for this officer holds, one of a client's cards.

        Raises:
            MessageRefused: the cards have another length, or as `take_card`.
        """
        if len(cards) != self.keys.card_bytes:
            raise MessageRefused(
                f"cards of {len(cards)} bytes, expected exactly {self.keys.card_bytes}"
            )
        self.take_card(run, sender, *self.keys.card_of(cards, self.number))

    def take_card(self, run: str, sender: str, card: bytes, commitments: Sequence[bytes]) -> None:
        """Keep what a client's card holds; those of another session are forgotten.

        Raises:
            MessageRefused: it does not open, or holds others than the client has committed to, or
                the client had another in this session.
        """
        secrets = self.secret.secrets_in(card, len(commitments), card_about(run, sender))
        if [commitment(secret) for secret in secrets] != [*commitments]:
            raise MessageRefused("a card with other secrets than its client has signed")
        if run not in self._secrets:
            self._secrets.clear()
        if self._secrets.setdefault(run, {}).setdefault(sender, secrets) != secrets:
            raise MessageRefused("a second card, with another secret")

    def without_card(self, run: str, senders: Collection[str]) -> list[str]:
        """Return the clients of whom there is no card."""
        return [sender for sender in senders if sender not in self._secrets.get(run, {})]

    def wraps(self, run: str, senders: Collection[str], key: ContentKey) -> dict[str, bytes]:
        """Return the key of a total for each of these clients, under the secret of its card.

        Raises:
            PeerError: the card of a client is not here.
        """
        if without := self.without_card(run, senders):
            raise PeerError(f"has no card of {', '.join(without):.200}")
        return {name: key.wrapped(self._secrets[run][name][0]) for name in senders}

    def key_sums(self, about: MessageId, nonces: Mapping[str, str]) -> Answer:
        """See `KeyAdder.key_sums`.

        Raises:
            PeerError: the card of a client is not here, or this message was answered for another
                list: the difference would show single clients.
        """
        if without := self.without_card(about.run, nonces):
            raise PeerError(f"has no card of {', '.join(without):.200}")
        listed = hashlib.sha256(json.dumps(sorted(nonces.items())).encode()).digest()
        if self._answered.setdefault((about.run, about.round, about.name), listed) != listed:
            raise PeerError(f"has answered for {about.name!r} with another list")
        digest, secrets = about.digest(), self._secrets[about.run]
        return {
            group: KeySum.of(
                OneTimeKey.of([secrets[name][i]], digest, name, bytes.fromhex(nonce))
                for name, nonce in nonces.items()
            )
            for i, group in enumerate(self.keys.quorum.groups_of[self.number])
        }

    def score_parts(
        self, about: MessageId, sender: str, nonce: str, polynomial: bytes
    ) -> ScorePart:
        """See `KeyAdder.score_parts`.

        Raises:
            PeerError: the client's card is not here, or its profile was asked about before: two
                answers are two numbers of it.
        """
        if self.without_card(about.run, [sender]):
            raise PeerError(f"has no card of {sender:.100}")
        words = polynomial_in(polynomial)
        asked = hashlib.sha256(nonce.encode() + polynomial).digest()
        what = about.run, about.round, f"{about.name}/{sender}"
        if self._answered.setdefault(what, asked) != asked:
            raise PeerError(f"has answered for the {about.name} of {sender} already")
        digest, secrets = about.digest("profile"), self._secrets[about.run][sender]
        return {
            group: OneTimeKey.of(
                [secrets[i]], digest, sender, bytes.fromhex(nonce), MATCHES
            ).applied(words)
            for i, group in enumerate(self.keys.quorum.groups_of[self.number])
        }

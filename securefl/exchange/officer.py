"""Secret keys of openers: an officer adds up keys, all officers' keys open totals.

The sum of keys opens the sum of just these clients' messages, each once, and nothing else: what a
server has added in another way decrypts to noise, which counts no clients.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from securefl.crypto.blind import ContentKey
from securefl.crypto.card_secret import CardSecret
from securefl.crypto.derived import commitment
from securefl.crypto.one_time import KeySum, OneTimeKey, polynomial_in, released
from securefl.crypto.params import MATCHES
from securefl.errors import MessageRefused, OpeningRefused, PeerError, SecureFLError
from securefl.exchange.answers import Combiner, numbered
from securefl.exchange.blind import BlindTotal, listed
from securefl.exchange.card_keys import ALONE, CardKeys, Quorum, card_about
from securefl.exchange.one_time import UnderCards
from securefl.exchange.one_time_match import split_score
from securefl.exchange.opener import Answer, KeyAdder, ScorePart
from securefl.exchange.policy import Policy
from securefl.exchange.sums import MessageId, OpenedSum
from securefl.io.uncopyable import Held, SecretBytes


@dataclass(frozen=True, slots=True)
class Officer(UnderCards, Held):
    """One officer, with the secrets that cards have told it; the authority is one of one."""

    secret: CardSecret = field(repr=False)
    number: int = 0
    _secrets: dict[str, dict[str, list[SecretBytes]]] = field(default_factory=dict, repr=False)
    """Secrets of the officer's groups by client, of the session that has given cards last."""
    _answered: dict[tuple[str, int, str], bytes] = field(default_factory=dict, repr=False)
    """Digest of the list that each message was answered for; of a profile, of the polynomial."""

    def take_cards(self, run: str, sender: str, cards: bytes) -> None:
        """Keep the secrets in the card for this officer, one of a client's cards.

        Raises:
            MessageRefused: the cards have another length, or as `take_card`.
        """
        if len(cards) != self.keys.card_bytes:
            raise MessageRefused(
                f"cards of {len(cards)} bytes, expected exactly {self.keys.card_bytes}"
            )
        self.take_card(run, sender, *self.keys.card_of(cards, self.number))

    def take_card(self, run: str, sender: str, card: bytes, commitments: Sequence[bytes]) -> None:
        """Keep the secrets in a client's card; those of another session are forgotten.

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
        """Add up the keys of a message: see `KeyAdder.key_sums`.

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
        """Return parts of a score: see `KeyAdder.score_parts`.

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
        keys = [
            OneTimeKey.of([secret], digest, sender, bytes.fromhex(nonce), MATCHES)
            for secret in secrets
        ]
        groups = self.keys.quorum.groups_of[self.number]
        return {g: released(key.applied(words)) for g, key in zip(groups, keys, strict=True)}


@dataclass(frozen=True, slots=True)
class KeySet(Held):
    """Keys of an epoch, and the policy that the consortium has for them."""

    secrets: tuple[CardSecret, ...] = field(repr=False)
    """Secret of each officer; the authority is one of one."""
    quorum: Quorum = ALONE
    policy: Policy | None = None
    """Policy of the consortium whose keys they are; None where there is none."""

    @property
    def public(self) -> CardKeys:
        """Public halves, for clients and server."""
        return CardKeys(tuple(secret.public for secret in self.secrets), self.quorum)

    def opener(self, say: Callable[[str], None] = lambda _text: None) -> "OneTimeOpener":
        """Return the capability to open totals; `say` is told of officers away, and of liars."""
        public = self.public
        combiner = Combiner(public, lambda number, why: say(f"{numbered(number)}: {why}"))
        return OneTimeOpener(public, combiner, self.officers())

    def officers(self) -> list[Officer]:
        """Return the officers, who have no cards yet."""
        public = self.public
        return [Officer(public, secret, n) for n, secret in enumerate(self.secrets)]

    @classmethod
    def ephemeral(cls, quorum: Quorum | None = None, epoch: int = 1) -> "KeySet":
        """Make fresh keys that live in memory and end with the process."""
        of = quorum or ALONE
        return cls(tuple(CardSecret.generate(epoch) for _ in range(of.officers)), of)


@dataclass(frozen=True, slots=True)
class OneTimeOpener(UnderCards, Held):
    """Opener of totals by the answers of officers, all of them in this process."""

    combiner: Combiner
    officers: Sequence[Officer]

    def take_cards(self, run: str, sender: str, cards: bytes) -> None:
        """Give each officer its card; from then on those that can use all cards open sums.

        Raises:
            MessageRefused: too few officers would be left that can use theirs and those of all
                clients before (`Officer.take_cards`).
        """
        refused: dict[int, MessageRefused] = {}
        for number, officer in enumerate(self.officers):
            try:
                officer.take_cards(run, sender, cards)
            except MessageRefused as error:
                refused[number] = error
        self.combiner.note_refusals(run, sender, refused)

    def without_card(self, run: str, senders: Collection[str]) -> list[str]:
        """Return the clients of whom an officer has no card that has all others'."""
        able = [self.officers[number] for number in self.combiner.able(run)]
        without = {name for officer in able for name in officer.without_card(run, senders)}
        return [name for name in senders if name in without]

    def open(
        self, total: bytes, about: MessageId, nonces: Mapping[str, str], precision_bits: int
    ) -> OpenedSum:
        """Open a total: see `Opener.open`; raises as `Combiner.open`."""
        heard: dict[int, Answer | SecureFLError] = {}
        for number in self.combiner.able(about.run):
            officer: KeyAdder = self.officers[number]
            try:
                heard[number] = officer.key_sums(about, nonces)
            except PeerError as error:
                heard[number] = error
        return self.combiner.open(total, about, len(nonces), precision_bits, heard)

    def sealed_for(self, content: bytes, about: MessageId, names: Sequence[str]) -> BlindTotal:
        """Seal for clients: see `Opener.sealed_for`."""
        if len(self.officers) > 1:
            raise OpeningRefused("several officers seal no total for clients: none of them has one")
        key = ContentKey.sealing(content, about.digest(), listed(names))
        return BlindTotal.of(key, self.officers[0].wraps(about.run, names, key))

    def score(self, content: bytes, about: MessageId, sender: str, nonce: str) -> float | None:
        """Open a score: see `Opener.score`; raises as `Combiner.score`."""
        heard: dict[int, ScorePart | SecureFLError] = {}
        _, _, polynomial = split_score(content)
        for number in self.combiner.able(about.run):
            officer: KeyAdder = self.officers[number]
            try:
                heard[number] = officer.score_parts(about, sender, nonce, polynomial)
            except PeerError as error:
                heard[number] = error
        return self.combiner.score(content, sender, heard)

"""k of n officers (replicated secret sharing), and their public keys, for clients' cards.

There is one secret for each group of n - k + 1 officers, and all of them know it. Any k officers
have a member in every group, so together they know all secrets; k - 1 officers are missing in one
group and know nothing of a key. The authority is one officer of one.
"""

import json
from dataclasses import dataclass, field
from itertools import combinations

from securefl.crypto.artefact import digest
from securefl.crypto.cards import CardKey, card_bytes
from securefl.crypto.derived import SEED_BYTES, commitment, group_secret
from securefl.errors import ConfigError
from securefl.exchange.sums import Sender
from securefl.io.uncopyable import SecretBytes
from securefl.types import MOST_OFFICERS


@dataclass(frozen=True, slots=True)
class Quorum:
    """Quorum of the officers that open sums.

    Raises:
        ConfigError: more than seven officers, or not more than half of them are needed: else two
            halves could be shown two lists of clients for one total.
    """

    needed: int = 1
    """Number k of officers that are needed."""
    officers: int = 1
    """Number n of officers."""
    groups: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    """Officers of each group, by number from 0."""
    groups_of: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    """Numbers of the groups that each officer is in."""

    def __post_init__(self) -> None:
        if not 1 <= self.officers <= MOST_OFFICERS:
            raise ConfigError(f"{self.officers} officers: must be 1..{MOST_OFFICERS}")
        if not self.officers / 2 < self.needed <= self.officers:
            raise ConfigError(
                f"{self.needed} of {self.officers} officers: must be more than half of them, and "
                "at most all"
            )
        size = self.officers - self.needed + 1
        groups = tuple(combinations(range(self.officers), size))
        of = tuple(
            tuple(g for g, members in enumerate(groups) if officer in members)
            for officer in range(self.officers)
        )
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "groups_of", of)


ALONE = Quorum()
"""Quorum of the authority alone: one officer, who is needed."""


@dataclass(frozen=True, slots=True)
class CardKeys:
    """Card keys of the officers, all of one epoch.

    Raises:
        ConfigError: not as many as there are officers, one of them twice, or of several epochs.
    """

    keys: tuple[CardKey, ...]
    quorum: Quorum = ALONE
    key_id: str = field(init=False)
    """Id of the one key, or of all with the number that is needed, as SHA-256 in hex."""
    epoch: int = field(init=False)
    """Epoch of the keys."""

    def __post_init__(self) -> None:
        ids = [key.key_id for key in self.keys]
        if len(set(ids)) != self.quorum.officers or len({key.epoch for key in self.keys}) > 1:
            raise ConfigError(
                f"{len(set(ids))} card keys of epochs {sorted({k.epoch for k in self.keys})}, for "
                f"{self.quorum.officers} officers: must be one of each, of one epoch"
            )
        all_ids = digest(json.dumps([self.quorum.needed, *ids]).encode())
        object.__setattr__(self, "key_id", ids[0] if len(ids) == 1 else all_ids)
        object.__setattr__(self, "epoch", self.keys[0].epoch)

    @property
    def card_bytes(self) -> int:
        """Exact length of a client's cards."""
        return cards_bytes(self.quorum)

    def cards(self, run: str, sender: Sender) -> bytes:
        """Return a client's cards of a session, one for each officer in order.

        Then a commitment to each group's secret: the client signs that all of a group's members
        have the same.
        """
        about, secrets = card_about(run, sender.name), self.secrets(sender)
        cards = [
            key.card([secrets[group] for group in self.quorum.groups_of[n]], about)
            for n, key in enumerate(self.keys)
        ]
        return b"".join([*cards, *map(commitment, secrets)])

    def card_of(self, cards: bytes, officer: int) -> tuple[bytes, list[bytes]]:
        """Return an officer's part of `card_bytes`: its card, and commitments to its secrets."""
        sizes = _sizes(self.quorum)
        start, committed = sum(sizes[:officer]), sum(sizes)
        starts = (committed + SEED_BYTES * group for group in self.quorum.groups_of[officer])
        card = cards[start : start + sizes[officer]]
        return card, [cards[at : at + SEED_BYTES] for at in starts]

    def secrets(self, sender: Sender) -> list[SecretBytes]:
        """Return the secrets of all groups, which a client's keys follow from."""
        return [group_secret(sender.secret, g) for g in range(len(self.quorum.groups))]


def cards_bytes(quorum: Quorum) -> int:
    """Return the exact length of a client's cards for so many officers, and its commitments."""
    return sum(_sizes(quorum)) + SEED_BYTES * len(quorum.groups)


def _sizes(quorum: Quorum) -> list[int]:
    return [card_bytes(len(quorum.groups_of[officer])) for officer in range(quorum.officers)]


def card_about(run: str, sender: str) -> bytes:
    """Return what a card is bound to, beside its key: the session and its client."""
    return b"SecureFL card 1\0" + json.dumps([run, sender]).encode()
